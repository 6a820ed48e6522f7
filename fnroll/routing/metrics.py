"""How far a replay was from what the model would have chosen by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fnroll.core.tree import pytree
from fnroll.routing.assembled import AssembledRoutes
from fnroll.routing.schema import Provenance
from fnroll.routing.scores import ScoreFunction


@pytree
class ReplayMetrics:
    """Counts of one or more forwards; no gradient. L layers; padding and placeholders are left out."""

    num_tokens: Tensor
    """`[]` int64, tokens that count."""
    num_flipped_tokens: Tensor
    """`[]` int64, those whose experts differ from the model's own choice in one layer at least."""
    num_forced: Tensor
    """`[L]` int64, tokens with a replayed route."""
    num_missing: Tensor
    """`[L]` int64, tokens that took the model's own choice, since the route is -1."""
    num_flipped: Tensor
    """`[L]` int64, forced tokens whose experts are others, as sets, than the model's own choice."""
    weight_below: Tensor
    """`[L]` float, the sum over forced tokens of the share of the weights that went to experts whose score is
    below the lowest that the model chose itself."""
    min_forced_score: Tensor
    """`[L]` float, the lowest score of a forced expert, as a share of the lowest that the model chose itself
    for the token; infinite without one."""

    @property
    def flip_share(self) -> Tensor:
        """`[L]` share of the forced tokens whose experts are others."""
        return self.num_flipped / self.num_forced.clamp(min=1)

    @property
    def token_flip_share(self) -> Tensor:
        """`[]` share of the tokens whose experts are others in one layer at least."""
        return self.num_flipped_tokens / self.num_tokens.clamp(min=1)

    @property
    def missing_share(self) -> Tensor:
        """`[L]` share of the tokens that took the model's own choice."""
        return self.num_missing / self.num_tokens.clamp(min=1)

    @property
    def weight_below_share(self) -> Tensor:
        """`[L]` mean over forced tokens of the weight that went below the model's own minimum."""
        return self.weight_below / self.num_forced.clamp(min=1)


def replay_metrics(
    router_logits: Sequence[Tensor],
    indices: Tensor,
    native_indices: Tensor,
    score: ScoreFunction,
    *,
    counted: Tensor | None = None,
) -> ReplayMetrics:
    """Compare replayed routes with the model's own choice.

    Args:
      router_logits: L tensors `[T, E]`, of the forward.
      indices: `[T, L, K]` int, the replayed routes; -1 throughout a row where there is none.
      native_indices: `[T, L, K]` int64, the model's own choice.
      score: of the family.
      counted: `[T]` bool, False on padding and placeholders; None counts all tokens.
    """
    wanted = indices.to(torch.int64)
    if counted is None:
        counted = torch.ones(len(wanted), dtype=torch.bool, device=wanted.device)
    known = (wanted >= 0).all(-1)
    forced = known & counted[:, None]
    differs = (wanted.sort(-1).values != native_indices.sort(-1).values).any(-1) & forced
    below, ratio = [], []
    for layer, logits in enumerate(router_logits):
        one = _compare_layer(logits.detach(), wanted[:, layer], native_indices[:, layer], score)
        below.append(torch.where(forced[:, layer], one[0], 0.0).sum())
        ratio.append(_least(torch.where(forced[:, layer], one[1], torch.inf)))
    return ReplayMetrics(
        num_tokens=counted.sum(),
        num_flipped_tokens=differs.any(-1).sum(),
        num_forced=forced.sum(0),
        num_missing=(~known & counted[:, None]).sum(0),
        num_flipped=differs.sum(0),
        weight_below=torch.stack(below),
        min_forced_score=torch.stack(ratio),
    )


def combine_replay_metrics(parts: Sequence[ReplayMetrics]) -> ReplayMetrics:
    """Return the metrics of a step from those of its microbatches."""
    if not parts:
        raise ValueError("combine_replay_metrics needs the metrics of one microbatch at least")
    sums = {
        name: torch.stack([getattr(part, name) for part in parts]).sum(0)
        for name in (
            "num_tokens",
            "num_flipped_tokens",
            "num_forced",
            "num_missing",
            "num_flipped",
            "weight_below",
        )
    }
    lowest = torch.stack([part.min_forced_score for part in parts]).amin(0)
    return ReplayMetrics(**sums, min_forced_score=lowest)


def count_provenance(records: Sequence[AssembledRoutes]) -> dict[str, int]:
    """Count the tokens of each provenance, by its name, and the rollouts that are routed natively."""
    counts = {kind.name.lower(): sum(record.count(kind) for record in records) for kind in Provenance}
    return {**counts, "native_rollouts": sum(record.status == "native" for record in records)}


def _least(values: Tensor) -> Tensor:
    return values.amin() if len(values) else values.new_full((), torch.inf)


def _compare_layer(
    logits: Tensor, wanted: Tensor, native: Tensor, score: ScoreFunction
) -> tuple[Tensor, Tensor]:
    """Return `[T]` the share of weight below the native minimum, and `[T]` the lowest score against it."""
    chosen = torch.where((wanted < 0).all(-1, keepdim=True), native, wanted)
    scores = score.probabilities(logits)
    lowest = scores.gather(-1, native).amin(-1, keepdim=True)
    forced = scores.gather(-1, chosen)
    weights = score(logits, chosen)
    share = torch.where(forced < lowest, weights, 0.0).sum(-1) / weights.sum(-1).clamp(min=1e-20)
    tiny = torch.finfo(forced.dtype).tiny
    return share, (forced.amin(-1) / lowest[:, 0].clamp(min=tiny))
