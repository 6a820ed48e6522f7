"""Checkpoints of a training run: all that its next step depends on."""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from fnroll.records.files.atomic import write_file
from fnroll.rollout.rollout import Rollout

# Behind what torch writes stand these bytes and a digest of it; torch does not mind.
_SEAL = b"fnroll-sha256:"
_PARTS = ("model", "optimizer", "step", "config")


class Trained(Protocol):
    """What a checkpoint reads and writes of a training run."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    rollout: Rollout
    config: Any
    """A dataclass."""
    step: int


def save_checkpoint(run: Trained, path: Path) -> None:
    """Write weights, moments, step and configuration; the file is whole or the one that was there before."""
    state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    file = io.BytesIO()
    torch.save({**state, "step": run.step, "config": asdict(run.config)}, file)
    data = file.getvalue()
    write_file(path, [data, _SEAL, hashlib.sha256(data).digest()])


def check_checkpoint(run: Trained, path: Path) -> dict[str, Any]:
    """Return the state that `save_checkpoint` wrote, if a run can go on from it.

    Raises:
      ValueError: naming what differs, if the checkpoint is of another configuration or model, or the file if
        it is none of a training run.
    """
    state = _read(path)
    _check_config(path, asdict(run.config), state["config"])
    _check_shapes(path, run.model.state_dict(), state["model"])
    return state


def load_checkpoint(run: Trained, path: Path) -> None:
    """Go on where `save_checkpoint` was called.

    Raises:
      ValueError: as `check_checkpoint` does; the run is as it was then.
    """
    state = check_checkpoint(run, path)
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.step = state["step"]
    run.rollout.sync_weights(run.step)


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    body = data[: -len(_SEAL) - 32]
    if data[len(body) : -32] == _SEAL:
        if hashlib.sha256(body).digest() != data[-32:]:
            raise ValueError(f"{path} is damaged: the digest of what it holds is not the one at its end")
    elif b"fnroll-sha" in data[-2 * (len(_SEAL) + 32) :]:
        raise ValueError(f"{path} is damaged: its end is cut or changed")
    else:
        body = data  # of version 0.1, which wrote no digest
    try:
        state = torch.load(io.BytesIO(body), weights_only=True)
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
