"""How many pool slots a configuration asks for, and whether they fit."""

from __future__ import annotations

import os

import torch

from fnroll.checks import parse_bytes
from fnroll.models.base import Model


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
      pool: slots, or a size as text, or None: two for each row where turns come back, whatever the machine,
        so that all ranks plan alike; none where they do not.
      model: gives the size of a slot and the device.
      rows: B.
      max_length: T.
      multi_turn: whether turns come back.

    Raises:
      ValueError: if a size has no room for one slot, or the memory none for the pool, with both numbers.
    """
    one, device = slot_bytes(model, max_length), model.device
    # All rows may end their turns just when as many parked turns have come back and wait for those rows.
    wanted = (2 * rows if multi_turn else 0) if pool is None else pool
    size = parse_bytes(wanted) or 0 if isinstance(wanted, str) else wanted * one
    if isinstance(pool, str) and 0 < size < one:
        raise ValueError(
            f"RolloutConfig.pool is {pool!r}, {size:,} bytes; one slot of {max_length} tokens of "
            f"{model.name} takes {one:,} bytes"
        )
    slots = size // one
    if slots and (rows + slots) * one > free_bytes(device):
        raise ValueError(
            f"RolloutConfig.pool is {pool!r}: {slots:,} slots and {rows} rows of {max_length} tokens of "
            f"{model.name} take {(rows + slots) * one:,} bytes; {device} has {free_bytes(device):,}, "
            f"room for {max(0, free_bytes(device) // one - rows):,} slots"
        )
    return slots
