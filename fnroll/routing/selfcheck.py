"""Which function of its logits a router's weights are, found by trying."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fnroll.routing.errors import RouterUnsupportedError
from fnroll.routing.scores import SCORE_KINDS, ScoreFunction, max_difference

_SLACK = 8
"""Roundings, of the dtype of the weights, that a function may be off and still be the router's."""


@dataclass(frozen=True)
class ScoreChoice:
    """What was found."""

    score: ScoreFunction
    error: float
    """Largest absolute difference from the router's weights."""


def choose_score(
    router_logits: Tensor,
    native_indices: Tensor,
    native_weights: Tensor,
    *,
    scales: Sequence[float] = (1.0,),
    where: str = "a router",
) -> ScoreChoice:
    """Return the function that reproduces the weights of a router best.

    The best and not the first that is good enough: functions of other families come within a few roundings.

    Args:
      router_logits: `[T, E]` of some forward; tokens that differ.
      native_indices: `[T, K]` int64, what the router chose.
      native_weights: `[T, K]`, the weights that it gave.
      scales: to be tried, as the router's own scaling factor.
      where: class and name of the router, for messages.

    Raises:
      RouterUnsupportedError: if no function comes near, or if functions that differ elsewhere do so alike.
    """

    def measure(score: ScoreFunction) -> ScoreChoice:
        weights = score(router_logits, native_indices).to(native_weights.dtype)
        return ScoreChoice(score, max_difference(weights, native_weights))

    factors = dict.fromkeys([*map(float, scales), 1.0])
    functions = (
        ScoreFunction(kind, scale, wide)
        for kind in SCORE_KINDS
        for wide in (True, False)
        for scale in factors
    )
    tried = sorted(map(measure, functions), key=lambda choice: choice.error)
    best = tried[0]
    size = float(native_weights.abs().max()) if native_weights.numel() else 0.0
    if not size or best.error > _SLACK * torch.finfo(native_weights.dtype).eps * size:
        raise RouterUnsupportedError(
            f"{where}: no known function of its logits gives its weights; the best, {best.score}, is off by "
            f"{best.error:.3g} of {size:.3g}. Known: {', '.join(SCORE_KINDS)}, each with a scale"
        )
    for other in tried[1:]:
        if other.error == best.error and not _same(best.score, other.score, router_logits, native_indices):
            raise RouterUnsupportedError(
                f"{where}: {best.score} and {other.score} both give its weights for these tokens, and differ "
                f"for others; try with other tokens"
            )
    return best


def _same(a: ScoreFunction, b: ScoreFunction, logits: Tensor, chosen: Tensor) -> bool:
    """Say whether two functions agree, up to rounding, also on logits that spread."""
    size = logits.shape[-1]
    probe = torch.linspace(-2, 3, 3 * size, dtype=torch.float64).sin().reshape(3, size).to(logits)
    ids = torch.stack([torch.arange(chosen.shape[-1], device=chosen.device)] * 3)
    left, right = (replace(score, wide=True)(probe, ids) for score in (a, b))
    return max_difference(left, right) < 1e-4
