"""A compact GRPO loop on the embedded model, made to be copied."""

from fnroll.train.loop import TrainConfig, Trainer

__all__ = ["TrainConfig", "Trainer"]
