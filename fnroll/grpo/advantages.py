"""Advantages of records from the rewards of their group."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from fnroll.checks import check_choice, check_number
from fnroll.grpo.rewards import Grouped, Groups, Rewards, group_rewards, to_tensor

Baseline = Literal["mean", "leave_one_out"]
"""`mean` of the group, the record included (GRPO); `leave_one_out`: of the others (RLOO)."""

Scale = Literal["group", "batch", "none"]
"""Divide by the standard deviation of the group's rewards (GRPO), of all in the batch, or by nothing."""


def group_advantages(
    rewards: Rewards,
    group: Groups,
    *,
    baseline: Baseline = "mean",
    scale: Scale = "group",
    eps: float = 1e-6,
    ddof: int = 1,
    allow_unequal: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute how much better than its group each record did, `(reward - baseline) / (std + eps)`.

    GRPO (Shao et al. 2024, arXiv:2402.03300), Dr. GRPO with `scale="none"` (Liu et al. 2025,
    arXiv:2503.20783), RLOO with `baseline="leave_one_out", scale="none"` (Ahmadian et al. 2024,
    arXiv:2402.14740). Statistics are taken in float64, the mean first and the deviations from it second.

    A group whose rewards are all equal gets exactly 0. So does a group with one scored record, with a
    warning: nothing can be learned from it. Records whose reward is None get 0 and are left out of every
    statistic.

    Args:
      rewards: `[R]` float, or a sequence with None where a record could not be scored.
      group: `[R]` int, or a sequence of hashables, in any order.
      baseline: what is taken off, see `Baseline`.
      scale: what is divided by, see `Scale`.
      eps: added to the standard deviation.
      ddof: 1 for the standard deviation of a sample, 0 for that of a population.
      allow_unequal: accept groups of unequal size; each group then has its own statistics all the same, so
        that a large group weighs more in a mean over records.
      dtype: of the result.

    Returns:
      `[R]` in `dtype`, on the device of `rewards` if that is a tensor (which is read on the host).

    Raises:
      ValueError: for a reward that is NaN or infinite, groups of unequal size, or rewards and groups of
        different length; it names the record or the sizes.
    """
    check_choice("group_advantages", "baseline", baseline, get_args(Baseline))
    check_choice("group_advantages", "scale", scale, get_args(Scale))
    check_choice("group_advantages", "ddof", ddof, (0, 1))
    check_number("group_advantages", "eps", eps, least=0, infinite=True)
    grouped = group_rewards(rewards, group, allow_unequal=allow_unequal)
    _warn_of_single(grouped)
    everyone = [index for key in grouped.members for index in grouped.scored(key)]
    batch_std = _std(grouped.values(everyone), ddof)
    advantages = [0.0] * len(grouped.rewards)
    for key in grouped.members:
        scored = grouped.scored(key)
        values = grouped.values(scored)
        std = {"group": _std(values, ddof), "batch": batch_std, "none": None}[scale]
        for index, value in zip(scored, _centre(values, baseline), strict=True):
            advantages[index] = value if std is None else _divide(value, std + eps)
    return to_tensor(advantages, rewards, dtype)


def _warn_of_single(grouped: Grouped) -> None:
    single: list[Hashable] = [key for key in grouped.members if len(grouped.scored(key)) == 1]
    if single:
        shown = ", ".join(map(repr, single[:5])) + (" ..." if len(single) > 5 else "")
        warnings.warn(
            f"{len(single)} of {len(grouped.members)} groups have one scored record, whose advantage is 0: "
            f"{shown}",
            stacklevel=3,
        )


def _centre(values: Sequence[float], baseline: Baseline) -> list[float]:
    """Return the rewards of a group without their baseline; exactly 0 where all are equal."""
    count = len(values)
    # The mean of equal numbers need not be that number, and the rest would be scaled up to look like signal.
    if count < 2 or min(values) == max(values):
        return [0.0] * count
    mean = math.fsum(values) / count
    # Without one of them, the mean moves by its deviation / (n - 1): no difference of large sums.
    factor = count / (count - 1) if baseline == "leave_one_out" else 1.0
    return [(value - mean) * factor for value in values]


def _std(values: Sequence[float], ddof: int) -> float:
    """Return the standard deviation, of the deviations from the mean; 0 for fewer than two values."""
    deviations = _centre(values, "mean")
    largest = max(map(abs, deviations), default=0.0)
    if largest == 0:
        return 0.0
    # Relative to the largest, so that no square over- or underflows.
    total = math.fsum((deviation / largest) ** 2 for deviation in deviations)
    return largest * math.sqrt(total / (len(values) - ddof))


def _divide(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
