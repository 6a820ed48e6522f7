"""Policy gradients of groups: advantages, losses, masks and corrections, as pure functions on tensors."""

from fnroll.grpo.advantages import Baseline, Scale, group_advantages
from fnroll.grpo.aggregate import Aggregation, aggregate, loss_denominator
from fnroll.grpo.dynamic import dynamic_filter
from fnroll.grpo.kl import KL, policy_kl
from fnroll.grpo.loss import Objective, Ratio, grpo_policy_loss
from fnroll.grpo.metrics import LossMetrics, combine_metrics
from fnroll.grpo.mismatch import (
    Level,
    MismatchMetrics,
    Mode,
    importance_weights,
    mismatch_metrics,
    rejection_mask,
)
from fnroll.grpo.old import Recorded, old_log_probs_from_rollout
from fnroll.grpo.overlong import overlong_mask, overlong_penalty
from fnroll.grpo.returns import token_returns
from fnroll.grpo.segments import Segments

__all__ = [
    "KL",
    "Aggregation",
    "Baseline",
    "Level",
    "LossMetrics",
    "MismatchMetrics",
    "Mode",
    "Objective",
    "Ratio",
    "Recorded",
    "Scale",
    "Segments",
    "aggregate",
    "combine_metrics",
    "dynamic_filter",
    "group_advantages",
    "grpo_policy_loss",
    "importance_weights",
    "loss_denominator",
    "mismatch_metrics",
    "old_log_probs_from_rollout",
    "overlong_mask",
    "overlong_penalty",
    "policy_kl",
    "rejection_mask",
    "token_returns",
]
