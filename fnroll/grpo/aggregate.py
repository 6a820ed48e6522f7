"""From a loss per token to one number, the same however the optimiser step is cut into microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from fnroll.checks import check_choice, check_number
from fnroll.core.precision import widen
from fnroll.grpo.checks import check_mask, check_shape, select
from fnroll.grpo.segments import Segments, check_segments, spread, sum_records

Aggregation = Literal["token_mean", "sample_mean", "sequence_sum"]
"""How tokens are weighed.

- `token_mean`: every token of the step alike (DAPO, Yu et al. 2025, arXiv:2503.14476).
- `sample_mean`: every record alike, its tokens share its weight (GRPO, Shao et al. 2024, arXiv:2402.03300).
- `sequence_sum`: the tokens of a record are summed and divided by a constant, the horizon, so that a token
  weighs the same in a long and in a short record (Dr. GRPO, Liu et al. 2025, arXiv:2503.20783).
"""


def loss_denominator(
    *loss_masks: Tensor,
    aggregation: Aggregation = "token_mean",
    horizon: int | None = None,
    segments: Sequence[Segments | None] | None = None,
) -> Tensor:
    """Count what the loss of a whole optimiser step is divided by.

    Counts add up: the denominator of a step is the sum over its microbatches and ranks, so a trainer calls
    this with all masks of its rank, sums over ranks, and passes the result to every loss of the step.

    Args:
      *loss_masks: `[R, T]` bool, of each microbatch; the masks that the losses will get, filters applied.
      aggregation: `token_mean` counts tokens, the others records that have one at least.
      horizon: tokens a record could have at most; `sequence_sum` multiplies its count by it.
      segments: of each microbatch, where batches are packed.

    Returns:
      `[]` int64; 0 if nothing is left to train on.

    Raises:
      ValueError: if `sequence_sum` has no horizon, or masks and segments do not fit.
    """
    check_choice("aggregate", "aggregation", aggregation, get_args(Aggregation))
    device = loss_masks[0].device if loss_masks else None
    total = torch.zeros((), dtype=torch.int64, device=device)
    for mask, layout in zip(loss_masks, segments or [None] * len(loss_masks), strict=True):
        check_mask(mask)
        check_segments(layout, mask)
        counted = mask if aggregation == "token_mean" else sum_records(mask.long(), layout) > 0
        total = total + counted.sum()
    return total * _horizon(horizon) if aggregation == "sequence_sum" else total


def _horizon(horizon: int | None) -> int:
    if horizon is None or horizon < 1:
        raise ValueError(
            f"horizon is {horizon!r}; sequence_sum divides by a constant: give the number of tokens that a "
            f"record could have at most, not the width of a padded batch"
        )
    return horizon


def aggregate(
    values: Tensor,
    loss_mask: Tensor,
    *,
    aggregation: Aggregation = "token_mean",
    horizon: int | None = None,
    denominator: Tensor | float | None = None,
    segments: Segments | None = None,
) -> Tensor:
    """Reduce values per token to one number.

    Args:
      values: `[R, T]` float; off the mask anything, inf and NaN included.
      loss_mask: `[R, T]` bool.
      aggregation: see `Aggregation`.
      horizon: of `sequence_sum` without a denominator.
      denominator: what the whole optimiser step is divided by, from `loss_denominator`; None counts this
        batch alone, which is right only if it is the whole step.
      segments: of a packed batch.

    Returns:
      `[]` float32 or float64: 0 with a gradient of zeros where the mask is empty.

    Raises:
      ValueError: naming the argument that does not fit.
    """
    check_choice("aggregate", "aggregation", aggregation, get_args(Aggregation))
    check_mask(loss_mask)
    check_shape("values", values, loss_mask)
    check_segments(segments, loss_mask)
    values = widen(values)
    values = select(values, loss_mask, values.dtype)
    if aggregation == "sample_mean":
        count = sum_records(loss_mask.long(), segments).clamp(min=1)
        values = values / spread(count, values, segments)
    if denominator is None:
        layout = None if segments is None else [segments]
        denominator = loss_denominator(loss_mask, aggregation=aggregation, horizon=horizon, segments=layout)
    return values.sum() / _positive(denominator, values)


def _positive(denominator: Tensor | float, like: Tensor) -> Tensor | float:
    """Return the denominator, or 1 where it is 0: nothing was counted, and the sum is 0."""
    if isinstance(denominator, Tensor):
        denominator = denominator.detach().to(like).reshape(())
        return torch.where(denominator > 0, denominator, 1.0)
    check_number("aggregate", "denominator", denominator, least=0, infinite=True)
    return denominator or 1.0
