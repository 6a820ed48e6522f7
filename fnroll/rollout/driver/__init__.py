"""The loop of a rank."""
