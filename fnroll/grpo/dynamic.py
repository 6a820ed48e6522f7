"""Dynamic sampling: train on groups that tell something."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.grpo.rewards import Groups, Rewards, group_rewards, to_tensor


def dynamic_filter(
    rewards: Rewards,
    group: Groups,
    *,
    max_groups: int | None = None,
    allow_unequal: bool = False,
) -> Tensor:
    """Choose the groups whose rewards differ (DAPO's dynamic sampling, Yu et al. 2025, arXiv:2503.14476).

    A group whose scored records all have one reward, exactly, gives advantages of 0: it is dropped, as is a
    group with fewer than two scored records. The caller rolls out more prompts until enough groups are left.

    Args:
      rewards: `[R]` float, or a sequence with None where a record could not be scored.
      group: `[R]` int, or a sequence of hashables, in any order.
      max_groups: keep no more than this many, those that appear first; None keeps all.
      allow_unequal: accept groups of unequal size.

    Returns:
      `[R]` bool, True on every record of a kept group, those without a reward included.

    Raises:
      ValueError: as `group_advantages`, or for a negative `max_groups`.
    """
    if max_groups is not None and max_groups < 0:
        raise ValueError(f"max_groups is {max_groups!r}; it must be at least 0, or None")
    grouped = group_rewards(rewards, group, allow_unequal=allow_unequal)
    told = [key for key in grouped.members if len(set(grouped.values(grouped.scored(key)))) > 1]
    keep = [False] * len(grouped.rewards)
    for key in told[:max_groups]:
        for index in grouped.members[key]:
            keep[index] = True
    return to_tensor(keep, rewards, torch.bool)
