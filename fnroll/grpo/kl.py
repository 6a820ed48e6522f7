"""Estimates of the divergence between the policy and a reference, a token at a time."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from fnroll.checks import check_choice
from fnroll.core.precision import widen
from fnroll.grpo.checks import check_mask, check_shape, select

KL = Literal["k1", "k2", "k3"]
"""Estimators of KL(policy || reference) from tokens of the policy, with d = log policy - log reference.

- `k1`: d. Unbiased, of either sign; as a loss its gradient has mean 0, so it penalises nothing.
- `k2`: d² / 2. Biased, small variance; its gradient is that of the KL on tokens of the present policy.
- `k3`: exp(-d) - 1 + d. Unbiased, never negative; its gradient is that of KL(reference || policy).
"""

K3_BOUND = 20.0
"""`k3` takes d no further than this: `exp` stays finite, and beyond it the gradient is 0."""


def policy_kl(
    log_probs: Tensor,
    ref_log_probs: Tensor,
    loss_mask: Tensor,
    *,
    kl: KL = "k3",
    output_bound: float | None = None,
) -> Tensor:
    """Estimate KL(policy || reference) at every token (Schulman 2020, "Approximating KL Divergence").

    Args:
      log_probs: `[R, T]` float, nats, of the policy, with gradient; off the mask anything.
      ref_log_probs: `[R, T]` float, nats, of the reference; taken as constant.
      loss_mask: `[R, T]` bool.
      kl: which estimator, see `KL`.
      output_bound: clamp of the result to `[-bound, bound]`; None leaves it.

    Returns:
      `[R, T]` float32 or float64, nats, 0 off the mask.

    Raises:
      ValueError: naming the argument that does not fit.
    """
    check_choice("policy_kl", "kl", kl, get_args(KL))
    check_mask(loss_mask)
    check_shape("log_probs", log_probs, loss_mask)
    check_shape("ref_log_probs", ref_log_probs, loss_mask)
    dtype = widen(log_probs).dtype
    difference = select(log_probs, loss_mask, dtype) - select(ref_log_probs.detach(), loss_mask, dtype)
    value = estimate_kl(difference, kl)
    return value if output_bound is None else value.clamp(-output_bound, output_bound)


def estimate_kl(difference: Tensor, kl: KL) -> Tensor:
    """Return the estimate from `log p - log q`, any shape, of tokens drawn from p."""
    if kl == "k1":
        return difference
    if kl == "k2":
        return 0.5 * difference.square()
    bounded = difference.clamp(-K3_BOUND, K3_BOUND)
    # expm1 keeps the digits that exp(-d) - 1 loses where the two policies nearly agree.
    return (-bounded).expm1() + bounded
