"""What a line of the state holds, on the host, and how it gets back into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fnroll.core.types import Begun, Records, RolloutState


class Tape(NamedTuple):
    """What a line of the state holds, on the host; equal lengths."""

    tokens: list[int]
    loss_mask: list[bool]
    log_probs: list[float]
    weight_versions: list[int]
    support: list[list[int]] | None = None
    """What each token was drawn from, -1 left in; None where supports are not kept."""


def prompt_tape(prompt: Sequence[int]) -> Tape:
    """Return what a line holds before anything is sampled."""
    count = len(prompt)
    return Tape(list(prompt), [False] * count, [0.0] * count, [-1] * count)


def read_tapes(records: Records, lines: Tensor) -> list[Tape]:
    """Return what some lines hold, `[R]` int64, at least one."""
    lengths = records.length[lines].tolist()
    longest = max(lengths)
    fields = [records.tokens, records.loss_mask, records.log_probs, records.weight_version]
    if records.support is not None:
        fields.append(records.support)
    columns = [field[lines, :longest].cpu().numpy() for field in fields]
    return [
        Tape(*[column[place, :length].tolist() for column in columns]) for place, length in enumerate(lengths)
    ]


def begin(tapes: Sequence[Tape], turns: Sequence[int], waiting: Sequence[bool], state: RolloutState) -> Begun:
    """Return what a state must know of records that were begun elsewhere, beside their tokens.

    Args:
      tapes: of the records.
      turns: finished, of each; not counting the one that a waiting record has just ended.
      waiting: whether each waits for its tools.
      state: they go into.
    """
    longest, device = max(len(tape.tokens) for tape in tapes), state.stop_ids.device

    def pad(values: Sequence[Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        rows = [[*row, *[fill] * (longest - len(row))] for row in values]
        return torch.tensor(rows, dtype=dtype, device=device)

    sampled = [
        [
            log_prob if mask else math.nan
            for log_prob, mask in zip(tape.log_probs, tape.loss_mask, strict=True)
        ]
        for tape in tapes
    ]
    return Begun(
        log_probs=pad(sampled, math.nan, torch.float32),
        version=pad([tape.weight_versions for tape in tapes], -1, torch.int32),
        turn=torch.tensor(turns, device=device) + torch.tensor(waiting, device=device),
        waiting=torch.tensor(waiting, device=device),
        support=_pad_support(tapes, longest, state),
    )


def _pad_support(tapes: Sequence[Tape], longest: int, state: RolloutState) -> Tensor | None:
    kept = state.records.support
    if kept is None:
        return None
    padded = torch.full((len(tapes), longest, kept.shape[-1]), -1, dtype=kept.dtype)
    for row, tape in enumerate(tapes):
        for place, ids in enumerate(tape.support or ()):
            padded[row, place, : len(ids)] = torch.tensor(ids, dtype=kept.dtype)
    return padded.to(kept.device)
