"""Policy gradients of groups: advantages, losses, masks and corrections, as pure functions on tensors."""

from fnroll.grpo.advantages import Baseline, Scale, group_advantages
from fnroll.grpo.aggregate import Aggregation, aggregate, loss_denominator
from fnroll.grpo.dynamic import dynamic_filter
from fnroll.grpo.kl import KL, policy_kl
from fnroll.grpo.loss import Objective, Ratio, grpo_policy_loss
from fnroll.grpo.metrics import LossMetrics, combine_metrics
from fnroll.grpo.segments import Segments

__all__ = [
    "KL",
    "Aggregation",
    "Baseline",
    "LossMetrics",
    "Objective",
    "Ratio",
    "Scale",
    "Segments",
    "aggregate",
    "combine_metrics",
    "dynamic_filter",
    "group_advantages",
    "grpo_policy_loss",
    "loss_denominator",
    "policy_kl",
]
