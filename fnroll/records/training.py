"""From rolled-out records to the tensors that a trainer takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from fnroll.checks import is_finite
from fnroll.grpo import Segments, group_advantages, old_log_probs_from_rollout
from fnroll.records.record import RolloutRecord


@dataclass(frozen=True)
class TrainingBatch:
    """R rows of T tokens: a record a row, or all records one after the other in one row (packed).

    Entry t of every `[R, T]` field is of token t. N is the number of records; unpacked, N is R.
    """

    input_ids: Tensor
    """`[R, T]` int64, padded on the right."""
    attention_mask: Tensor | None
    """`[R, T]` int64, 1 on tokens; None when packed: positions that start again at 0 part the records."""
    position_ids: Tensor
    """`[R, T]` int64: index of the token in its record; 0 on padding."""
    loss_mask: Tensor
    """`[R, T]` bool, True on sampled tokens."""
    old_log_probs: Tensor
    """`[R, T]` float32, nats, as recorded; 0 where nothing was sampled."""
    advantages: Tensor | None
    """`[N]` float32; None if the records have no rewards."""
    group: Tensor
    """`[N]` int64: the records' groups, numbered in order of appearance."""
    support: Tensor | None = None
    """`[R, T, K]` int32: what each token was drawn from, if the records carry it."""
    segments: Segments | None = None
    """Which record each token of a packed batch belongs to."""

    def __post_init__(self) -> None:
        """Raises a `ValueError` that names two fields and their shapes, if they do not fit together."""
        shape = self.input_ids.shape
        for name in ("attention_mask", "position_ids", "loss_mask", "old_log_probs", "support"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape[:2] != shape:
                _refuse(name, tensor, "input_ids", self.input_ids, "entries are of the same tokens")
        if self.advantages is not None and self.advantages.shape != self.group.shape:
            _refuse("advantages", self.advantages, "group", self.group, "both have an entry a record")
        if self.segments is None and len(self.group) != len(self.input_ids):
            _refuse(
                "group", self.group, "input_ids", self.input_ids, "a row is a record unless segments say so"
            )


def _refuse(name: str, tensor: Tensor, other: str, reference: Tensor, reason: str) -> NoReturn:
    raise ValueError(
        f"TrainingBatch.{name} has shape {list(tensor.shape)} and {other} {list(reference.shape)}; {reason}"
    )


def to_training(
    records: Sequence[RolloutRecord], *, packed: bool = False, pad_id: int = 0, **advantages: Any
) -> TrainingBatch:
    """Return records as tensors.

    Args:
      records: rolled out, with log-probs; with rewards if advantages are wanted.
      packed: put all records into one row, without padding.
      pad_id: what pads `input_ids`; nothing reads it.
      **advantages: options of `fnroll.grpo.group_advantages`.

    Raises:
      ValueError: naming the record, if it is unfinished, holds no rollout, no log-probs, or a
        reward that is not finite.
    """
    for record in records:
        if record.is_unfinished:
            raise ValueError(
                f"{record.label} is {record.status}; only records that have ended are trained on"
            )
    old_log_probs, loss_mask = old_log_probs_from_rollout(records)
    lengths = torch.tensor([len(record.tokens or ()) for record in records], dtype=torch.int64)
    place = torch.arange(old_log_probs.shape[1]).expand_as(old_log_probs)
    valid = place < lengths[:, None]
    input_ids = torch.full(valid.shape, pad_id, dtype=torch.int64)
    for row, record in enumerate(records):
        input_ids[row, : len(record.tokens or ())] = torch.tensor(record.tokens, dtype=torch.int64)
    groups: dict[object, int] = {}
    numbers = [groups.setdefault(record.group, len(groups)) for record in records]
    batch = TrainingBatch(
        input_ids=input_ids,
        attention_mask=valid.long(),
        position_ids=torch.where(valid, place, 0),
        loss_mask=loss_mask,
        old_log_probs=old_log_probs,
        advantages=_advantages(records, numbers, advantages),
        group=torch.tensor(numbers, dtype=torch.int64),
        support=_support(records, valid.shape[1]),
    )
    return _pack(batch, valid) if packed else batch


def _advantages(
    records: Sequence[RolloutRecord], group: Sequence[int], options: dict[str, Any]
) -> Tensor | None:
    if all(record.reward is None for record in records):
        return None
    for record in records:
        if not isinstance(record.reward, bool | None) and not is_finite(record.reward):
            raise ValueError(
                f"{record.label}: reward is {record.reward!r}; it must be a finite number, or None for a "
                f"record that could not be scored"
            )
    # By the records' own numbers, which a caller knows when a message names one.
    own = [record.group for record in records]
    return group_advantages([record.reward for record in records], group if None in own else own, **options)


def _support(records: Sequence[RolloutRecord], width: int) -> Tensor | None:
    # A record without supports (greedy, or too long a prompt) was drawn from the whole vocabulary: all -1.
    if all(record.support is None for record in records):
        return None
    size = max((len(ids) for record in records for ids in record.support or ()), default=0)
    support = torch.full((len(records), width, max(size, 1)), -1, dtype=torch.int32)
    for row, record in enumerate(records):
        for place, ids in enumerate(record.support or ()):
            support[row, place, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return support


def _pack(batch: TrainingBatch, valid: Tensor) -> TrainingBatch:
    record = torch.arange(len(valid))[:, None].expand_as(valid)
    return TrainingBatch(
        input_ids=batch.input_ids[valid][None],
        attention_mask=None,
        position_ids=batch.position_ids[valid][None],
        loss_mask=batch.loss_mask[valid][None],
        old_log_probs=batch.old_log_probs[valid][None],
        advantages=batch.advantages,
        group=batch.group,
        support=None if batch.support is None else batch.support[valid][None],
        segments=Segments(record=record[valid][None], num_records=len(valid)),
    )
