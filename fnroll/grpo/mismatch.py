"""Corrections for tokens drawn by other arithmetic, or older weights, than those that train."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from fnroll.checks import check_choice, check_number
from fnroll.core.precision import widen
from fnroll.core.tree import pytree
from fnroll.grpo.checks import check_mask, check_shape, select
from fnroll.grpo.kl import estimate_kl
from fnroll.grpo.metrics import masked_mean
from fnroll.grpo.ratio import to_ratio
from fnroll.grpo.segments import Segments, check_segments, spread, sum_records

Level = Literal["token", "sequence", "sequence_mean"]
"""Whose the ratio is: the token's, its record's (the product over tokens), or the geometric mean of that."""

Mode = Literal["truncate", "mask"]
"""Past a bound, `truncate` cuts the ratio to `upper`; `mask` makes it 0, past `lower` too."""

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


@pytree
class MismatchMetrics:
    """How far trainer and rollout disagree; tensors without gradient, 0 where no token counts."""

    ratio_quantiles: Tensor
    """`[7]`, of the ratio over tokens, at `QUANTILES`."""
    kl_k1: Tensor
    """`[]` nats, estimate of KL(rollout || trainer), of either sign."""
    kl_k3: Tensor
    """`[]` nats, the same, never negative."""
    effective_sample_size: Tensor
    """`[]` in (0, 1], share of the tokens that equal weights would need to be worth the same."""
    share_above: Tensor
    """`[]` share of tokens whose ratio is above `upper`."""
    share_below: Tensor
    """`[]` share of tokens whose ratio is below `lower`."""
    num_tokens: Tensor
    """`[]` int64."""


def importance_weights(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    loss_mask: Tensor,
    *,
    level: Level = "token",
    mode: Mode = "truncate",
    upper: float = 2.0,
    lower: float = 0.0,
    segments: Segments | None = None,
) -> Tensor:
    """Compute the weights that make tokens of the rollout count as if the trainer had drawn them.

    Truncated importance sampling (Ionides 2008; for rollouts Yao et al. 2025, "Your Efficient RL Framework
    Secretly Brings You Off-Policy RL Training"); with `mode="mask"` and a `lower` bound, IcePop (Ling team
    2025, arXiv:2510.18855). The result is the `weights` of `grpo_policy_loss`, whose `old_log_probs` are then
    the trainer's.

    Args:
      log_probs: `[R, T]` float, nats, by the trainer under the weights before the step.
      rollout_log_probs: `[R, T]` float, nats, as recorded.
      loss_mask: `[R, T]` bool; what it hides may be anything.
      level: of which the ratio is, see `Level`.
      mode: what happens past a bound, see `Mode`.
      upper: largest ratio.
      lower: smallest ratio that `mask` lets through; `truncate` does not read it.
      segments: of a packed batch.

    Returns:
      `[R, T]` float32 or float64 without gradient, 0 off the mask. A ratio that is NaN is masked by `mask`
      and stays NaN with `truncate`.

    Raises:
      ValueError: naming the argument that does not fit.
    """
    check_choice("importance_weights", "mode", mode, get_args(Mode))
    ratio = _ratio(log_probs, rollout_log_probs, loss_mask, level, upper, lower, segments)
    if mode == "truncate":
        ratio = ratio.clamp(max=upper)
    else:
        ratio = torch.where((ratio >= lower) & (ratio <= upper), ratio, 0.0)
    return select(ratio, loss_mask, ratio.dtype)


def rejection_mask(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    loss_mask: Tensor,
    *,
    level: Level = "token",
    upper: float = 2.0,
    lower: float = 0.5,
    segments: Segments | None = None,
) -> Tensor:
    """Leave out of the loss mask what trainer and rollout disagree about; arguments as `importance_weights`.

    Used for loss and denominator alike, the kept tokens share the weight of the rejected ones; weights of
    `mode="mask"` leave the denominator as it was.

    Returns:
      `[R, T]` bool, True where the mask is and the ratio is within `[lower, upper]`; NaN is not.
    """
    ratio = _ratio(log_probs, rollout_log_probs, loss_mask, level, upper, lower, segments)
    return loss_mask & (ratio >= lower) & (ratio <= upper)


def mismatch_metrics(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    loss_mask: Tensor,
    *,
    level: Level = "token",
    upper: float = 2.0,
    lower: float = 0.0,
    segments: Segments | None = None,
) -> MismatchMetrics:
    """Measure how far trainer and rollout disagree; arguments as `importance_weights`."""
    ratio = _ratio(log_probs, rollout_log_probs, loss_mask, level, upper, lower, segments)
    log_ratio = _log_ratio(log_probs, rollout_log_probs, loss_mask)
    weight = select(ratio, loss_mask, ratio.dtype)
    squares = weight.square().sum() * loss_mask.sum()
    return MismatchMetrics(
        ratio_quantiles=_quantiles(ratio, loss_mask),
        kl_k1=masked_mean(estimate_kl(-log_ratio, "k1"), loss_mask),
        kl_k3=masked_mean(estimate_kl(-log_ratio, "k3"), loss_mask),
        effective_sample_size=torch.where(squares > 0, weight.sum().square() / squares, 0.0),
        share_above=masked_mean(ratio > upper, loss_mask),
        share_below=masked_mean(ratio < lower, loss_mask),
        num_tokens=loss_mask.sum(),
    )


def _log_ratio(log_probs: Tensor, rollout_log_probs: Tensor, loss_mask: Tensor) -> Tensor:
    dtype = widen(log_probs).dtype
    trainer = select(log_probs.detach(), loss_mask, dtype)
    return trainer - select(rollout_log_probs.detach(), loss_mask, dtype)


def _ratio(
    log_probs: Tensor,
    rollout_log_probs: Tensor,
    loss_mask: Tensor,
    level: Level,
    upper: float,
    lower: float,
    segments: Segments | None,
) -> Tensor:
    """Return trainer / rollout `[R, T]` at the chosen level; positive and finite, or NaN."""
    check_choice("importance_weights", "level", level, get_args(Level))
    check_mask(loss_mask)
    check_segments(segments, loss_mask)
    check_shape("log_probs", log_probs, loss_mask)
    check_shape("rollout_log_probs", rollout_log_probs, loss_mask)
    check_number("importance_weights", "upper", upper, least=0, infinite=True)
    check_number("importance_weights", "lower", lower, least=0, most=upper, infinite=True)
    log_ratio = _log_ratio(log_probs, rollout_log_probs, loss_mask)
    if level != "token":
        total = sum_records(log_ratio, segments)
        if level == "sequence_mean":
            total = total / sum_records(loss_mask.long(), segments).clamp(min=1)
        log_ratio = spread(total, log_ratio, segments)
    return to_ratio(log_ratio)


def _quantiles(ratio: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the quantiles `[7]` over the mask, interpolated; without a count read on the host."""
    hidden = torch.where(loss_mask, ratio, torch.inf).flatten()
    # One more, so that there is something to look at in an empty batch; it sorts behind all others.
    ordered = torch.cat([hidden, hidden.new_full((1,), torch.inf)]).sort().values
    count = loss_mask.sum()
    at = torch.tensor(QUANTILES, dtype=torch.float64, device=ratio.device) * (count - 1).clamp(min=0)
    low, high = at.floor().long(), at.ceil().long()
    share = (at - low).to(ratio.dtype)
    value = ordered[low] + share * (ordered[high] - ordered[low])
    return torch.where(count > 0, value, 0.0)
