"""What a loss reports of itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fnroll.core.tree import pytree, replace


@pytree
class LossMetrics:
    """Numbers about one call of the loss; all are `[]` tensors without gradient, 0 where no token counts.

    Shares and means are over the tokens of the loss mask.
    """

    policy_loss: Tensor
    """The loss without the KL term."""
    kl_loss: Tensor
    """The KL term, its coefficient applied; the two add up to the loss."""
    clip_low: Tensor
    """Share clipped at `1 - clip_low`, the bound in force: a PPO token is counted only if its advantage
    is negative, so that the clip takes its gradient."""
    clip_high: Tensor
    """Share clipped at `1 + clip_high`; PPO: only where the advantage is positive."""
    clip_dual: Tensor
    """Share clipped at `dual_clip`."""
    ratio_mean: Tensor
    """Mean ratio, of the record where ratios are of records."""
    ratio_max: Tensor
    """Largest ratio."""
    share_bounded: Tensor
    """Share whose log-ratio left the bound within which `exp` is taken."""
    kl_old: Tensor
    """Nats, mean of `old_log_probs - log_probs`, which estimates KL(old || policy)."""
    kl_ref: Tensor | None
    """Nats, mean of the chosen estimate against the reference; None without one."""
    num_tokens: Tensor
    """Int64, tokens of the mask."""
    num_records: Tensor
    """Int64, records with one of them."""


def masked_mean(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Return the mean `[]` over the mask of `[R, T]` values, bools as 0 and 1; 0 where it is empty."""
    values = values if values.is_floating_point() else values.float()
    return torch.where(loss_mask, values, 0.0).sum() / loss_mask.sum().clamp(min=1)


_MEANS = ("clip_low", "clip_high", "clip_dual", "ratio_mean", "share_bounded", "kl_old", "kl_ref")
_SUMS = ("policy_loss", "kl_loss", "num_tokens", "num_records")


def combine_metrics(parts: Sequence[LossMetrics]) -> LossMetrics:
    """Return the metrics of a step from those of its microbatches, which share one denominator.

    Losses and counts add up; shares and means are weighted by tokens.

    Raises:
      ValueError: if there is none.
    """
    if not parts:
        raise ValueError("combine_metrics needs the metrics of one microbatch at least")
    tokens = torch.stack([part.num_tokens for part in parts])
    weight = tokens / tokens.sum().clamp(min=1)

    def stacked(name: str) -> Tensor:
        return torch.stack([getattr(part, name) for part in parts])

    means = {name: (stacked(name) * weight).sum() for name in _MEANS if getattr(parts[0], name) is not None}
    sums = {name: stacked(name).sum() for name in _SUMS}
    return replace(parts[0], **means, **sums, ratio_max=stacked("ratio_max").max())
