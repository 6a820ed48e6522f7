"""How many pool slots a configuration asks for, and whether they fit."""

from __future__ import annotations

import os

import torch

from fnroll.models.base import Model
from fnroll.shell.checks import parse_bytes


def slot_bytes(model: Model, max_length: int) -> int:
    """Return the bytes of one row or slot of `max_length` tokens, its sink included."""
    numbers = sum(heads * (key + value) for heads, key, value in model.cache_shapes)
    return numbers * (max_length + 1) * model.dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Return the bytes that a device can give: what is free on CUDA, all of a host's memory elsewhere.

    A host has no figure of its own for what it could free, so only what can never fit is told.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def count_slots(pool: int | str | None, model: Model, *, rows: int, max_length: int, multi_turn: bool) -> int:
    """Return how many slots the pool of a rollout has.

    Args:
      pool: slots, or a size as text, or None: as many as rows, as far as half of the memory goes, where turns
        come back; none where they do not.
      model: gives the size of a slot and the device.
      rows: B.
      max_length: T.
      multi_turn: whether turns come back.

    Raises:
      ValueError: if a size has no room for one slot, or the memory none for the pool, with both numbers.
    """
    one, device = slot_bytes(model, max_length), model.device
    if pool is None:
        return min(rows, free_bytes(device) // 2 // one) if multi_turn else 0
    size = parse_bytes(pool) or 0 if isinstance(pool, str) else pool * one
    if isinstance(pool, str) and 0 < size < one:
        raise ValueError(
            f"RolloutConfig.pool is {pool!r}, {size:,} bytes; one slot of {max_length} tokens of "
            f"{model.name} takes {one:,} bytes"
        )
    slots = size // one
    if slots and slots * one > free_bytes(device):
        raise ValueError(
            f"RolloutConfig.pool is {pool!r}: {slots:,} slots of {max_length} tokens of {model.name} take "
            f"{slots * one:,} bytes; {device} has {free_bytes(device):,}"
        )
    return slots
