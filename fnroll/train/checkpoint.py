"""Checkpoints of a training run: all that its next step depends on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fnroll.train.loop import Trainer


_PARTS = ("model", "optimizer", "step", "config")


def save(trainer: Trainer, path: Path) -> None:
    """Write weights, moments, step and configuration; the file is whole or the one that was there before."""
    partial = path.with_name(f".{path.name}.partial")
    state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}
    torch.save({**state, "step": trainer.step, "config": asdict(trainer.config)}, partial)
    partial.replace(path)


def check(trainer: Trainer, path: Path) -> dict[str, Any]:
    """Return the state that `save` wrote, if the trainer can go on from it.

    Raises:
      ValueError: naming what differs, if the checkpoint is of another configuration or model, or the file if
        it is none of a training run.
    """
    state = _read(path)
    _check_config(path, asdict(trainer.config), state["config"])
    _check_shapes(path, trainer.model.state_dict(), state["model"])
    return state


def load(trainer: Trainer, path: Path) -> None:
    """Go on where `save` was called.

    Raises:
      ValueError: as `check` does; the trainer is as it was then.
    """
    state = check(trainer, path)
    trainer.model.load_state_dict(state["model"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    trainer.step = state["step"]
    trainer.rollout.sync_weights(trainer.step)


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes the reader raise anything
        raise ValueError(
            f"{path} is damaged, or no checkpoint: {type(error).__name__} while reading"
        ) from error
    missing = [name for name in _PARTS if not isinstance(state, dict) or name not in state]
    if missing:
        raise ValueError(f"{path} is no checkpoint of a training run: it has no {', no '.join(missing)}")
    return dict(state)


def _check_config(path: Path, own: dict[str, Any], found: dict[str, Any]) -> None:
    for name, value in own.items():
        if name != "steps" and found.get(name) != value:
            raise ValueError(f"{path} was made with {name} {found.get(name)!r}; this run has {value!r}")


def _check_shapes(path: Path, own: dict[str, Any], found: dict[str, Any]) -> None:
    for name in {**own, **found}:
        shapes = [list(state[name].shape) if name in state else None for state in (own, found)]
        if shapes[0] != shapes[1]:
            there, here = (
                "is not there" if shape is None else f"has shape {shape}" for shape in shapes[::-1]
            )
            raise ValueError(f"{path} is of another model: {name} {there}, and here it {here}")
