"""The host's plan of what is cached where."""
