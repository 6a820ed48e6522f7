"""From a router's logits to the weights of chosen experts, as the families of models compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from fnroll.checks import check_choice, check_int, check_number
from fnroll.core.precision import widen

SIGMOID_EPS = 1e-20
"""Added to the sum of sigmoids before the division, as in DeepSeek-V3's own code."""

_PROBABILITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": lambda logits: F.softplus(logits).sqrt(),
}

SCORE_KINDS = ("softmax_norm", "softmax", "topk_softmax", "sigmoid_norm", "sigmoid", "sqrtsoftplus_norm")
"""How a family weighs the K experts that a router chose.

- `softmax_norm`: softmax over all experts, then divided by the sum over the chosen (Qwen3-MoE, Mixtral).
- `softmax`: softmax over all experts (OLMoE).
- `topk_softmax`: softmax over the chosen experts' logits (gpt-oss); mathematically `softmax_norm`.
- `sigmoid_norm`: sigmoids, divided by their sum over the chosen (DeepSeek-V3, with a scale).
- `sigmoid`: sigmoids as they are.
- `sqrtsoftplus_norm`: square roots of softplus, divided by their sum over the chosen.
"""


@dataclass(frozen=True)
class ScoreFunction:
    """A function from logits and chosen experts to weights."""

    kind: str
    """One of `SCORE_KINDS`."""
    scale: float = 1.0
    """What the weights are multiplied by in the end."""
    wide: bool = True
    """Whether it computes in float32 at least (float32 where the logits are float64 too), as most families
    do, or in the dtype of the logits, as gpt-oss does."""

    def __post_init__(self) -> None:
        check_choice("ScoreFunction", "kind", self.kind, SCORE_KINDS)
        check_number("ScoreFunction", "scale", self.scale, above=0)

    def probabilities(self, router_logits: Tensor) -> Tensor:
        """Return `[T, E]`, what a router ranks experts by, before bias and groups."""
        name = self.kind.removesuffix("_norm").removeprefix("topk_")
        return _PROBABILITIES[name](self._cast(router_logits))

    def __call__(self, router_logits: Tensor, chosen: Tensor) -> Tensor:
        """Return the weights of chosen experts, from the live scores of all experts.

        Args:
          router_logits: `[T, E]` float.
          chosen: `[T, K]` int64, different experts from 0 to E-1; on a GPU another id is an error of the
            device, and an expert twice is nowhere an error, so routes are checked before.

        Returns:
          `[T, K]`, differentiable with respect to the logits.
        """
        if self.kind == "topk_softmax":
            weights = self._cast(router_logits.gather(-1, chosen)).softmax(-1)
        else:
            weights = self.probabilities(router_logits).gather(-1, chosen)
            if self.kind.endswith("_norm"):
                weights = self._normalise(weights, router_logits, chosen)
        return weights if self.scale == 1 else weights * self.scale

    def _cast(self, logits: Tensor) -> Tensor:
        return logits.float() if self.wide else logits

    def _normalise(self, weights: Tensor, router_logits: Tensor, chosen: Tensor) -> Tensor:
        total = weights.sum(-1, keepdim=True)
        if self.kind != "softmax_norm":
            return weights / (total + SIGMOID_EPS)
        # Forced experts can all be too unlikely for a float; among them the softmax is still known.
        vanished = total == 0
        ratio = weights / torch.where(vanished, torch.ones_like(total), total)
        return torch.where(vanished, self._cast(router_logits.gather(-1, chosen)).softmax(-1), ratio)


def select_experts(
    router_logits: Tensor,
    top_k: int,
    score: ScoreFunction,
    *,
    bias: Tensor | None = None,
    num_groups: int = 1,
    top_groups: int = 1,
) -> Tensor:
    """Return the experts that a router chooses by itself.

    With a bias and groups as DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437): the bias ranks and does not
    weigh; a group counts as the sum of its two best experts, and only the best groups take part.

    Args:
      router_logits: `[T, E]` float.
      top_k: K.
      score: of the family.
      bias: `[E]`, added to the probabilities for the ranking; None adds nothing.
      num_groups: into how many groups of equal size the experts fall.
      top_groups: how many of them take part.

    Returns:
      `[T, K]` int64, best first.
    """
    experts = router_logits.shape[-1]
    check_int("select_experts", "top_k", top_k, least=1, below=experts + 1)
    check_int("select_experts", "num_groups", num_groups, least=1, below=experts + 1)
    check_int("select_experts", "top_groups", top_groups, least=1, below=num_groups + 1)
    if experts % num_groups:
        raise ValueError(f"{experts} experts do not fall into {num_groups} groups of equal size")
    ranked = router_logits if score.kind == "topk_softmax" else score.probabilities(router_logits)
    if bias is not None:
        ranked = ranked + bias
    if top_groups < num_groups:
        groups = rearrange(ranked, "... (g e) -> ... g e", g=num_groups)
        best = groups.topk(min(2, groups.shape[-1]), dim=-1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter(
            -1, best.topk(top_groups, dim=-1).indices, True
        )
        ranked = groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    return ranked.topk(top_k, dim=-1).indices


def replay_top_k(
    router_logits: Tensor,
    indices: Tensor,
    native_indices: Tensor,
    score: ScoreFunction,
    *,
    native_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return weights and experts as if the router had chosen the replayed experts (R3, arXiv:2510.11370).

    The choice is the rollout's, the weights are of the model's own logits, renormalised as the family does,
    so gradients reach the router. Rows of -1 take the model's own choice.

    Args:
      router_logits: `[T, E]` float, of this forward.
      indices: `[T, K]` int, in the order that the rollout had: it is the order of a sum.
      native_indices: `[T, K]` int64, the model's own choice.
      score: of the family.
      native_weights: `[T, K]`, the model's own weights, taken in rows of -1 as they are, and whose dtype the
        result has; None computes them.

    Returns:
      weights: `[T, K]` float.
      chosen: `[T, K]` int64.
    """
    wanted = indices.to(torch.int64)
    absent = (wanted < 0).all(-1, keepdim=True)
    chosen = torch.where(absent, native_indices, wanted)
    weights = score(router_logits, chosen)
    if native_weights is not None:
        weights = torch.where(absent, native_weights, weights.to(native_weights.dtype))
    return weights, chosen


def max_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; infinite where one of them is NaN."""
    difference = (widen(a) - widen(b)).abs()
    return float(difference.nan_to_num(nan=torch.inf).max()) if difference.numel() else 0.0
