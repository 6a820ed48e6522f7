"""How a step runs: donated, compiled, captured; in which shapes."""
