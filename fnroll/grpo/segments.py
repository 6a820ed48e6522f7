"""Which record a token belongs to: its row, or in a packed batch what `Segments` says."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.core.tree import pytree, static


@pytree
class Segments:
    """The records of a packed batch, several of which share a row.

    Example of three records in one row of eight, the last two positions padding::

        record  0 0 0 1 1 2 0 0     num_records = 3
    """

    record: Tensor
    """`[R, T]` int64 in `[0, num_records)`; positions that the loss mask hides may hold any of them."""
    num_records: int = static()
    """N, how many records the batch holds."""


def count_records(like: Tensor, segments: Segments | None) -> int:
    """Return N: the rows of `like` `[R, T]`, or the records that were packed into them."""
    return like.shape[0] if segments is None else segments.num_records


def sum_records(values: Tensor, segments: Segments | None) -> Tensor:
    """Return the sums `[N]` over the tokens of each record of `values` `[R, T]`."""
    if segments is None:
        return values.sum(dim=-1)
    zeros = values.new_zeros(segments.num_records)
    return zeros.index_add(0, segments.record.flatten(), values.flatten())


def spread(per_record: Tensor, like: Tensor, segments: Segments | None) -> Tensor:
    """Return `[R, T]`: at each token the value `[N]` of its record.

    Raises:
      ValueError: if `per_record` has not one value a record.
    """
    records = count_records(like, segments)
    if per_record.shape != (records,):
        raise ValueError(f"one value a record is wanted: shape [{records}], not {list(per_record.shape)}")
    if segments is None:
        return per_record[:, None].expand(like.shape)
    return per_record[segments.record]


def check_segments(segments: Segments | None, loss_mask: Tensor) -> None:
    """Require int64 segments of the shape of `loss_mask`."""
    if segments is None:
        return
    record = segments.record
    if record.shape != loss_mask.shape or record.dtype != torch.int64:
        raise ValueError(
            f"segments.record is {record.dtype} of shape {list(record.shape)}; "
            f"it must be torch.int64 of loss_mask's shape {list(loss_mask.shape)}"
        )
