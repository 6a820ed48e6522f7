"""Log-probs that a rollout recorded, as the tensors that a loss takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Recorded(Protocol):
    """What is read of a record; a `RolloutRecord` has it."""

    @property
    def label(self) -> str:
        """How messages name the record."""

    @property
    def tokens(self) -> Sequence[int] | None:
        """Prompt, sampled tokens and tool output."""

    @property
    def loss_mask(self) -> Sequence[bool] | None:
        """True on sampled tokens only."""

    @property
    def log_probs(self) -> Sequence[float | None] | None:
        """Nats, one a token; read where the mask is True."""


def old_log_probs_from_rollout(
    records: Sequence[Recorded], *, width: int | None = None, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Return the log-probs that the rollout recorded, padded on the right, and where they are.

    Entry t is of token t of the record, prompt included: of a model's logits, those at t - 1. They are under
    the distribution that the token was drawn from, so the policy in training must be scored under the same
    temperature and truncation for a ratio of 1.

    Args:
      records: R rolled-out records.
      width: T; None takes the longest record.
      device: where the tensors go.

    Returns:
      `old_log_probs` `[R, T]` float32, nats, 0 where nothing was sampled, and `loss_mask` `[R, T]` bool.

    Raises:
      ValueError: naming the record that has no log-probs, lists of unequal length, a sampled token whose
        log-prob is missing or not finite, or more tokens than `width`.
    """
    for record in records:
        _check(record)
    longest = max((len(record.tokens or ()) for record in records), default=0)
    if width is None:
        width = longest
    elif longest > width:
        label = next(record.label for record in records if len(record.tokens or ()) == longest)
        raise ValueError(f"{label} has {longest} tokens; width is {width}")
    log_probs = torch.zeros((len(records), width), dtype=torch.float32)
    loss_mask = torch.zeros((len(records), width), dtype=torch.bool)
    for row, record in enumerate(records):
        mask, values = record.loss_mask or (), record.log_probs or ()
        kept = [value if sampled else 0.0 for value, sampled in zip(values, mask, strict=True)]
        log_probs[row, : len(kept)] = torch.tensor(kept, dtype=torch.float32)
        loss_mask[row, : len(mask)] = torch.tensor(mask, dtype=torch.bool)
    return log_probs.to(device), loss_mask.to(device)


def _check(record: Recorded) -> None:
    tokens, mask, values = record.tokens, record.loss_mask, record.log_probs
    if tokens is None or mask is None or values is None:
        missing = [name for name in ("tokens", "loss_mask", "log_probs") if getattr(record, name) is None]
        raise ValueError(
            f"{record.label} has no {', no '.join(missing)}; roll it out, with return_log_probs on"
        )
    if not len(tokens) == len(mask) == len(values):
        raise ValueError(
            f"{record.label}: fields with an entry per token differ in length: "
            f"tokens {len(tokens)}, loss_mask {len(mask)}, log_probs {len(values)}"
        )
    for position, (value, sampled) in enumerate(zip(values, mask, strict=True)):
        if sampled and (value is None or not math.isfinite(value)):
            raise ValueError(
                f"{record.label}: log_probs[{position}] is {value!r}; a sampled token has a finite log-prob"
            )
