"""Multi-turn, tool-calling language-model rollouts as pure functions on an immutable value."""
