"""The files of a rollout: lines, saves, states; each whole or the one before it."""
