"""What tests a rollout engine: the oracle, strategies, models with known answers."""
