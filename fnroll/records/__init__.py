"""What goes into a rollout and what comes out of it, and its files."""
