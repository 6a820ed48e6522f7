"""What to do with records that were cut off at the length limit."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.grpo.checks import check_mask
from fnroll.grpo.segments import Segments, check_segments, spread


def overlong_mask(loss_mask: Tensor, is_truncated: Tensor, *, segments: Segments | None = None) -> Tensor:
    """Take truncated records out of the loss (overlong filtering, DAPO, Yu et al. 2025, arXiv:2503.14476).

    Whether a record was cut off is its status, never what its last token is. Use the result for the loss and
    for `loss_denominator` alike.

    Args:
      loss_mask: `[R, T]` bool.
      is_truncated: `[N]` bool, one a record.
      segments: of a packed batch.

    Returns:
      `[R, T]` bool.

    Raises:
      ValueError: if a mask is not bool, or there is not one `is_truncated` a record.
    """
    check_mask(loss_mask)
    check_segments(segments, loss_mask)
    if is_truncated.dtype != torch.bool:
        raise ValueError(f"is_truncated is {is_truncated.dtype}; it must be torch.bool, one a record")
    return loss_mask & ~spread(is_truncated, loss_mask, segments)


def overlong_penalty(lengths: Tensor, *, max_length: int, buffer: int, factor: float = 1.0) -> Tensor:
    """Compute the soft overlong punishment, to be added to rewards (DAPO, arXiv:2503.14476, equation 13).

    0 up to `max_length - buffer` tokens, then falling in a straight line to `-factor` at `max_length`, and
    `-factor` beyond.

    Args:
      lengths: `[R]` int, tokens of each record, counted as `max_length` counts them.
      max_length: tokens at which a record is cut off.
      buffer: tokens before it over which the punishment grows.
      factor: of the punishment.

    Returns:
      `[R]` float32.

    Raises:
      ValueError: if `buffer` is not within 1 and `max_length`.
    """
    if not 1 <= buffer <= max_length:
        raise ValueError(f"buffer is {buffer!r}; it must be at least 1 and at most max_length, {max_length}")
    over = (lengths - (max_length - buffer)).float() / buffer
    return -factor * over.clamp(0.0, 1.0)
