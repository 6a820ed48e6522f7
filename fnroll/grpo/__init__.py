"""Policy gradients of groups: advantages, losses, masks and corrections, as pure functions on tensors."""

from fnroll.grpo.advantages import Baseline, Scale, group_advantages
from fnroll.grpo.dynamic import dynamic_filter

__all__ = ["Baseline", "Scale", "dynamic_filter", "group_advantages"]
