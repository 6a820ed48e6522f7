"""Who answers tool calls: a runner, a log, built-in tools."""
