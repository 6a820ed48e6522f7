"""From rolled-out records to the tensors that a trainer takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from fnroll.checks import is_finite
from fnroll.core.fields import PER_TOKEN
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
        for name in ("attention_mask", "position_ids", *(_NAMES.get(name, name) for name in PER_TOKEN)):
            tensor = getattr(self, name, None)
            if tensor is not None and tensor.shape[:2] != shape:
                _refuse(name, tensor, "input_ids", self.input_ids, "entries are of the same tokens")
        if self.advantages is not None and self.advantages.shape != self.group.shape:
            _refuse("advantages", self.advantages, "group", self.group, "both have an entry a record")
        if self.segments is None and len(self.group) != len(self.input_ids):
            _refuse(
                "group", self.group, "input_ids", self.input_ids, "a row is a record unless segments say so"
            )


_FIELDS = frozenset(field.name for field in fields(TrainingBatch))
# Per-token fields that a trainer knows by another name.
_NAMES = {"tokens": "input_ids", "log_probs": "old_log_probs"}


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
    old_log_probs, _ = old_log_probs_from_rollout(records)
    lengths = torch.tensor([len(record.tokens or ()) for record in records], dtype=torch.int64)
    place = torch.arange(old_log_probs.shape[1]).expand_as(old_log_probs)
    valid = place < lengths[:, None]
    groups: dict[object, int] = {}
    numbers = [groups.setdefault(record.group, len(groups)) for record in records]
    names = [name for name in PER_TOKEN if name in _FIELDS]
    batch = TrainingBatch(
        input_ids=torch.where(valid, _pad(records, "tokens", valid), pad_id),
        old_log_probs=old_log_probs,
        **{name: _pad(records, name, valid) for name in names},
        attention_mask=valid.long(),
        position_ids=torch.where(valid, place, 0),
        advantages=_advantages(records, numbers, advantages),
        group=torch.tensor(numbers, dtype=torch.int64),
    )
    return _pack(batch, valid) if packed else batch


def _pad(records: Sequence[RolloutRecord], name: str, valid: Tensor) -> Any:
    """Return a per-token field of records as `[R, T]`, or of a vector `[R, T, K]`, None if no record has it.

    What a record does not have (supports where it was greedy, or its prompt too long) is empty.
    """
    field, values = PER_TOKEN[name], [getattr(record, name) or () for record in records]
    if field.is_vector and not any(values):
        return None
    dtype = getattr(torch, field.dtype)
    sizes = [max(1, *(len(entry) for value in values for entry in value))] if field.is_vector else []
    padded = torch.full((*valid.shape, *sizes), field.empty, dtype=dtype)
    for row, value in enumerate(values):
        if not field.is_vector:
            padded[row, : len(value)] = torch.tensor(value, dtype=dtype)
            continue
        for at, entry in enumerate(value):
            padded[row, at, : len(entry)] = torch.tensor(entry, dtype=dtype)
    return padded


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


def _pack(batch: TrainingBatch, valid: Tensor) -> TrainingBatch:
    """Return the rows of a batch one after the other in one row."""
    record = torch.arange(len(valid))[:, None].expand_as(valid)
    per_token = [*(_NAMES.get(name, name) for name in PER_TOKEN), "position_ids"]
    packed = {
        name: tensor[valid][None]
        for name in per_token
        if name in _FIELDS and (tensor := getattr(batch, name)) is not None
    }
    segments = Segments(record=record[valid][None], num_records=len(valid))
    return replace(batch, **packed, attention_mask=None, segments=segments)
