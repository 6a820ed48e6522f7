"""Checkpoints of a training run: all that its next step depends on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fnroll.train.loop import Trainer


def save(trainer: Trainer, path: Path) -> None:
    """Write weights, moments, step and configuration; the file is whole or the one that was there before."""
    partial = path.with_name(f".{path.name}.partial")
    state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
    torch.save({**state, "step": trainer.step, "config": asdict(trainer.config)}, partial)
    partial.replace(path)


def load(trainer: Trainer, path: Path) -> None:
    """Go on where `save` was called.

    Raises:
      ValueError: naming what differs, if the checkpoint is of another configuration or model.
    """
    state = torch.load(path, weights_only=True)
    _check_config(path, asdict(trainer.config), state["config"])
    _check_shapes(path, trainer.model.state_dict(), state["model"])
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.step = state["step"]
    trainer.rollout.sync_weights(trainer.step)


def _check_config(path: Path, own: dict[str, Any], found: dict[str, Any]) -> None:
    for name, value in own.items():
        if name != "steps" and found.get(name) != value:
            raise ValueError(f"{path} was made with {name} {found.get(name)!r}; this run has {value!r}")


def _check_shapes(path: Path, own: dict[str, Any], found: dict[str, Any]) -> None:
    for name in {**own, **found}:
        shapes = [list(state[name].shape) if name in state else None for state in (own, found)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{path} is of another model: {name} has shape {shapes[1]}, here {shapes[0]}")
