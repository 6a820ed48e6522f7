"""Pure tensors: the state of a rollout, the steps that map it to the next, and the noise they draw."""
