"""The host API, and one call of it."""
