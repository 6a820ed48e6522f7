"""How a record grows."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.core.buffer import put
from fnroll.core.tree import replace
from fnroll.core.types import Records


def append(
    records: Records,
    line: Tensor,
    tokens: Tensor,
    count: Tensor,
    *,
    log_probs: Tensor,
    version: Tensor,
    support: Tensor | None = None,
) -> Records:
    """Append tokens to records; every field that has an entry per token grows here and nowhere else.

    Args:
      records: before.
      line: `[R]` int64; the sink takes what is to be dropped.
      tokens: `[R, K]` int64.
      count: `[R]` int64: how many of the K tokens count.
      log_probs: `[R, K]` float32 of sampled tokens; NaN marks a token that was not sampled.
      version: `[]` or `[R, K]` int32: of the weights that sampled.
      support: `[R, K, S]` int32, what each token was drawn from; only where the records keep supports.
    """
    sink, cap = records.length.shape[0] - 1, records.tokens.shape[1]
    column = torch.arange(tokens.shape[1], device=tokens.device)
    position = records.length[line][:, None] + column
    keep = (column < count[:, None]) & (position < cap)
    where = (torch.where(keep, line[:, None], sink), torch.where(keep, position, 0))
    sampled = ~log_probs.isnan()
    grown = torch.where(line == sink, 0, records.length[line] + keep.sum(dim=-1))
    return replace(
        records,
        tokens=put(records.tokens, where, tokens),
        loss_mask=put(records.loss_mask, where, sampled),
        log_probs=put(records.log_probs, where, torch.where(sampled, log_probs, 0.0)),
        weight_version=put(records.weight_version, where, torch.where(sampled, version, -1)),
        length=put(records.length, (line,), grown),
        support=_append_support(records.support, where, support),
    )


def _append_support(old: Tensor | None, where: tuple[Tensor, Tensor], new: Tensor | None) -> Tensor | None:
    if old is None:
        return None
    if new is None:
        new = torch.full((*where[0].shape, old.shape[-1]), -1, dtype=old.dtype, device=old.device)
    return put(old, where, new)
