"""The policy loss of GRPO and its relatives."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from fnroll.checks import check_choice, check_number
from fnroll.core.precision import widen
from fnroll.grpo.aggregate import Aggregation, aggregate
from fnroll.grpo.checks import check_mask, check_shape, select
from fnroll.grpo.kl import KL, policy_kl
from fnroll.grpo.metrics import LossMetrics, masked_mean
from fnroll.grpo.ratio import LOG_RATIO_BOUND, to_ratio
from fnroll.grpo.segments import Segments, check_segments, spread, sum_records

Ratio = Literal["token", "sequence"]
"""`token`: each token has its ratio (PPO, GRPO); `sequence`: the geometric mean over its record (GSPO)."""

Objective = Literal["ppo", "cispo"]
"""`ppo`: the clipped surrogate; `cispo`: the clipped ratio as a constant weight of the log-prob."""


class _Clipped(NamedTuple):
    ratios: Tensor
    loss: Tensor
    low: Tensor
    high: Tensor
    dual: Tensor


class _Values(NamedTuple):
    log_ratio: Tensor
    old_minus_new: Tensor
    kl: Tensor | None


def grpo_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor | None, advantages: Tensor, loss_mask: Tensor, *,
    clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float | None = None,
    kl_coef: float = 0.0, ref_log_probs: Tensor | None = None, kl: KL = "k3",
    aggregation: Aggregation = "token_mean", horizon: int | None = None,
    ratio: Ratio = "token", objective: Objective = "ppo", weights: Tensor | None = None,
    denominator: Tensor | float | None = None, segments: Segments | None = None,
) -> tuple[Tensor, LossMetrics]:  # fmt: skip
    """Compute the policy loss of a microbatch, to be minimised.

    PPO-clip (Schulman et al. 2017, arXiv:1707.06347) with group advantages (GRPO, Shao et al. 2024,
    arXiv:2402.03300), bounds of its own for either side (clip-higher, DAPO, Yu et al. 2025,
    arXiv:2503.14476), dual clip (Ye et al. 2020, arXiv:1912.09729), ratios of whole records (GSPO, Zheng et
    al. 2025, arXiv:2507.18071) or clipped ratios as weights (CISPO, MiniMax 2025, arXiv:2506.13585).

    Positions off the mask may hold anything, inf and NaN included, in every argument. A token of the mask
    whose log-prob is NaN makes the loss NaN.

    Args:
      log_probs: `[R, T]` float, nats, of the recorded tokens under the weights in training, with gradient;
        entry t is of token t, not of the token after it. float64 stays, all else is computed in float32.
      old_log_probs: `[R, T]` float, nats, under the weights that drew the tokens; None means the present
        ones, so every ratio is 1.
      advantages: `[N]`, one a record, or `[R, T]`, one a token; taken as constant.
      loss_mask: `[R, T]` bool, True on the tokens that are trained on.
      clip_low: a ratio counts as at least `1 - clip_low`; 1 takes the bound away.
      clip_high: a ratio counts as at most `1 + clip_high`; inf takes the bound away.
      dual_clip: above 1; where the advantage is negative a ratio counts as at most this.
      kl_coef: factor of the KL term; 0 leaves it out, and `ref_log_probs` only feeds the metrics.
      ref_log_probs: `[R, T]` float, nats, of the reference policy.
      kl: estimator of the KL term, see `KL`.
      aggregation: how tokens are weighed, see `Aggregation`.
      horizon: tokens a record could have at most; `sequence_sum` needs it or a denominator.
      ratio: of each token or of its record, see `Ratio`.
      objective: see `Objective`.
      weights: `[R, T]` float, factors of the policy term, as `importance_weights` gives; not of the KL term.
      denominator: what the whole step is divided by, from `loss_denominator`; None counts this batch alone.
      segments: of a packed batch.

    Returns:
      The loss `[]`, float32 or float64, and metrics; without a token of the mask, 0 with a gradient of zeros.

    Raises:
      ValueError: naming the argument that does not fit, with its value or both shapes.
    """
    _check_options(clip_low, clip_high, dual_clip, kl_coef, ref_log_probs, ratio, objective)
    _check_tensors(log_probs, old_log_probs, advantages, loss_mask, ref_log_probs, weights, segments)
    new, old, advantage = _select(log_probs, old_log_probs, advantages, loss_mask, segments)
    log_ratio = _log_ratio(new, old, loss_mask, ratio, segments)
    clipped = _clip(log_ratio, advantage, new, objective, clip_low, clip_high, dual_clip)
    kl_values = None if ref_log_probs is None else policy_kl(log_probs, ref_log_probs, loss_mask, kl=kl)
    reduce = partial(
        aggregate, loss_mask=loss_mask, aggregation=aggregation, horizon=horizon, denominator=denominator,
        segments=segments,
    )  # fmt: skip
    policy_loss = reduce(_weigh(clipped.loss, weights, loss_mask))
    # Left out rather than multiplied by 0: an infinite estimate would make the loss NaN.
    kl_loss = policy_loss.new_zeros(()) if not kl_coef or kl_values is None else kl_coef * reduce(kl_values)
    values = _Values(log_ratio, old - new, kl_values)
    return policy_loss + kl_loss, _metrics(clipped, values, policy_loss, kl_loss, loss_mask, segments)


def _check_options(
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    kl_coef: float,
    ref_log_probs: Tensor | None,
    ratio: str,
    objective: str,
) -> None:
    check_choice("grpo_policy_loss", "ratio", ratio, get_args(Ratio))
    check_choice("grpo_policy_loss", "objective", objective, get_args(Objective))
    check_number("grpo_policy_loss", "clip_low", clip_low, least=0, most=1)
    check_number("grpo_policy_loss", "clip_high", clip_high, least=0, infinite=True)
    if dual_clip is not None and (objective != "ppo" or not 1 < dual_clip < math.inf):
        raise ValueError(f"dual_clip is {dual_clip!r}; it must be above 1, finite, and with objective 'ppo'")
    if not math.isfinite(kl_coef) or kl_coef < 0:
        raise ValueError(f"kl_coef is {kl_coef!r}; it must be a finite number of at least 0")
    if kl_coef and ref_log_probs is None:
        raise ValueError(f"kl_coef is {kl_coef!r} and ref_log_probs is None; the KL term needs a reference")


def _check_tensors(
    log_probs: Tensor,
    old_log_probs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    ref_log_probs: Tensor | None,
    weights: Tensor | None,
    segments: Segments | None,
) -> None:
    check_mask(loss_mask)
    check_segments(segments, loss_mask)
    check_shape("log_probs", log_probs, loss_mask)
    check_shape("old_log_probs", old_log_probs, loss_mask)
    check_shape("ref_log_probs", ref_log_probs, loss_mask)
    check_shape("weights", weights, loss_mask)
    records = loss_mask.shape[0] if segments is None else segments.num_records
    if advantages.shape not in ((records,), loss_mask.shape):
        raise ValueError(
            f"advantages has shape {list(advantages.shape)} and loss_mask {list(loss_mask.shape)}; "
            f"advantages must be [{records}], one a record, or of loss_mask's shape"
        )


def _select(
    log_probs: Tensor,
    old_log_probs: Tensor | None,
    advantages: Tensor,
    loss_mask: Tensor,
    segments: Segments | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return new and old log-probs and advantages, `[R, T]` in one dtype, 0 off the mask."""
    dtype = widen(log_probs).dtype
    new = select(log_probs, loss_mask, dtype)
    old = new.detach() if old_log_probs is None else select(old_log_probs.detach(), loss_mask, dtype)
    advantages = advantages.detach()
    if advantages.ndim == 1:
        advantages = spread(advantages, loss_mask, segments)
    return new, old, select(advantages, loss_mask, dtype)


def _weigh(term: Tensor, weights: Tensor | None, loss_mask: Tensor) -> Tensor:
    return term if weights is None else term * select(weights.detach(), loss_mask, term.dtype)


def _log_ratio(
    new: Tensor, old: Tensor, loss_mask: Tensor, ratio: Ratio, segments: Segments | None
) -> Tensor:
    """Return log-ratios `[R, T]` of tokens or of their records."""
    if ratio == "token":
        return new - old
    count = sum_records(loss_mask.long(), segments).clamp(min=1)
    mean = sum_records((new - old).detach(), segments) / count
    # The record's value, with the gradient of the token alone: equal to GSPO where the advantage is one a
    # record, and right too where it differs from token to token (GSPO-token, section 4.3 of the paper).
    return spread(mean, new, segments) + new - new.detach()


def _clip(
    log_ratio: Tensor,
    advantage: Tensor,
    log_probs: Tensor,
    objective: Objective,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> _Clipped:
    """Return the loss of every token, `[R, T]`, and where a bound is in force."""
    ratios = to_ratio(log_ratio)
    if objective == "ppo":
        return _ppo(ratios, advantage, clip_low, clip_high, dual_clip)
    return _cispo(ratios, advantage, log_probs, clip_low, clip_high)


def _ppo(
    ratios: Tensor, advantage: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> _Clipped:
    """Return `-min(r A, clip(r) A)`, as a choice of the ratio: where a bound is in force, no gradient."""
    high = (advantage > 0) & (ratios > 1 + clip_high)
    low = (advantage < 0) & (ratios < 1 - clip_low)
    dual = (advantage < 0) & (ratios > (math.inf if dual_clip is None else dual_clip))
    kept = torch.where(high, 1 + clip_high, torch.where(low, 1 - clip_low, ratios))
    if dual_clip is not None:
        kept = torch.where(dual, dual_clip, kept)
    return _Clipped(ratios, -kept * advantage, low, high, dual)


def _cispo(
    ratios: Tensor, advantage: Tensor, log_probs: Tensor, clip_low: float, clip_high: float
) -> _Clipped:
    """Return `-stop(clip(r)) A log p`: every token keeps its gradient, its weight is bounded."""
    fixed = ratios.detach()
    low, high = fixed < 1 - clip_low, fixed > 1 + clip_high
    weight = fixed.clamp(1 - clip_low, 1 + clip_high)
    return _Clipped(ratios, -weight * advantage * log_probs, low, high, torch.zeros_like(low))


@torch.no_grad()
def _metrics(
    clipped: _Clipped,
    values: _Values,
    policy_loss: Tensor,
    kl_loss: Tensor,
    loss_mask: Tensor,
    segments: Segments | None,
) -> LossMetrics:
    ratios = torch.where(loss_mask, clipped.ratios, 0.0).flatten()
    return LossMetrics(
        policy_loss=policy_loss.detach(),
        kl_loss=kl_loss.detach(),
        clip_low=masked_mean(clipped.low, loss_mask),
        clip_high=masked_mean(clipped.high, loss_mask),
        clip_dual=masked_mean(clipped.dual, loss_mask),
        ratio_mean=masked_mean(clipped.ratios, loss_mask),
        # A batch without a position has no largest ratio.
        ratio_max=torch.cat([ratios, ratios.new_zeros(1)]).max(),
        share_bounded=masked_mean(values.log_ratio.abs() > LOG_RATIO_BOUND, loss_mask),
        kl_old=masked_mean(values.old_minus_new, loss_mask),
        kl_ref=None if values.kl is None else masked_mean(values.kl, loss_mask),
        num_tokens=loss_mask.sum(),
        num_records=(sum_records(loss_mask.long(), segments) > 0).sum(),
    )
