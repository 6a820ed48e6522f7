"""How a record grows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fnroll.core.buffer import put
from fnroll.core.fields import PER_TOKEN
from fnroll.core.tree import replace
from fnroll.core.types import Records

Entries = Mapping[str, Tensor]
"""By per-token field: `[R, K]`, or `[R, K, S]` of a vector; fields left out are empty."""


def append(records: Records, line: Tensor, count: Tensor, entries: Entries) -> Records:
    """Append tokens to records; every field that has an entry per token grows here and nowhere else.

    Args:
      records: before.
      line: `[R]` int64; the sink takes what is to be dropped.
      count: `[R]` int64: how many of the K tokens count.
      entries: `tokens` at least. `loss_mask` says which of them were sampled; other fields hold something
        at those only, whatever is given for the rest.
    """
    sink, cap = records.length.shape[0] - 1, records.tokens.shape[1]
    tokens = entries["tokens"]
    column = torch.arange(tokens.shape[1], device=tokens.device)
    position = records.length[line][:, None] + column
    keep = (column < count[:, None]) & (position < cap)
    where = (torch.where(keep, line[:, None], sink), torch.where(keep, position, 0))
    grown = {
        name: put(old, where, _entry(name, old, entries))
        for name in PER_TOKEN
        if (old := getattr(records, name)) is not None
    }
    length = torch.where(line == sink, 0, records.length[line] + keep.sum(dim=-1))
    return replace(records, **grown, length=put(records.length, (line,), length))


def _entry(name: str, old: Tensor, entries: Entries) -> Tensor:
    """Return what a field of the appended tokens holds."""
    tokens, mask, empty = entries["tokens"], entries.get("loss_mask"), PER_TOKEN[name].empty
    if name == "tokens":
        return tokens
    if mask is None or name not in entries:
        shape = (*tokens.shape, *old.shape[2:])
        return torch.full(shape, empty, dtype=old.dtype, device=old.device)
    sampled = mask.reshape(*mask.shape, *[1] * (old.ndim - 2))
    return torch.where(sampled, entries[name], empty).to(old.dtype)
