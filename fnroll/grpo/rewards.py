"""Rewards and groups as they come from records: read, checked, and sorted into groups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Rewards = Tensor | Sequence[float | None]
Groups = Tensor | Sequence[Hashable]


class Grouped(NamedTuple):
    """Rewards in float64, and which records are whose group."""

    rewards: list[float | None]
    members: dict[Hashable, list[int]]

    def scored(self, key: Hashable) -> list[int]:
        """Return the records of a group that have a reward."""
        return [index for index in self.members[key] if self.rewards[index] is not None]

    def values(self, indices: Sequence[int]) -> list[float]:
        """Return the rewards of scored records."""
        return [value for index in indices if (value := self.rewards[index]) is not None]


def group_rewards(rewards: Rewards, group: Groups, *, allow_unequal: bool) -> Grouped:
    """Sort rewards into groups, which keep the order in which they first appear.

    Args:
      rewards: `[R]` float or a sequence with None where a record has no score.
      group: `[R]` int or a sequence of anything hashable; members of a group need not stand together.
      allow_unequal: accept groups of unequal size.

    Raises:
      ValueError: for another number of groups than rewards, a reward that is not finite or no number, a
        record without a group, or groups of unequal size; it names the record or the sizes.
    """
    values = list(_host(rewards, "rewards"))
    keys = list(_host(group, "group"))
    if len(values) != len(keys):
        raise ValueError(
            f"rewards has {len(values)} entries and group {len(keys)}; they must be one a record"
        )
    members: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        if key is None:
            raise ValueError(f"group[{index}] is None; every record needs a group")
        members.setdefault(key, []).append(index)
    if not allow_unequal:
        _check_sizes(members)
    return Grouped([_number(v, i, k) for i, (v, k) in enumerate(zip(values, keys, strict=True))], members)


def _host(values: Tensor | Sequence[object], name: str) -> Sequence[object]:
    if not isinstance(values, Tensor):
        return values
    if values.ndim != 1:
        raise ValueError(f"{name} has shape {list(values.shape)}; it must be [R], one entry a record")
    host: list[object] = values.detach().cpu().tolist()
    return host


def _number(value: object, index: int, key: Hashable) -> float | None:
    if value is None:
        return None
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    try:
        number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"rewards[{index}], of group {key!r}, is {value!r}; it must be a finite number, "
            f"or None for a record that could not be scored"
        )
    return number


def _check_sizes(members: dict[Hashable, list[int]]) -> None:
    sizes = {key: len(indices) for key, indices in members.items()}
    if len(set(sizes.values())) <= 1:
        return
    usual = Counter(sizes.values()).most_common(1)[0][0]
    odd = [f"group {key!r} has {size}" for key, size in sizes.items() if size != usual]
    more = "" if len(odd) <= 5 else f" and {len(odd) - 5} more"
    raise ValueError(
        f"groups differ in size: most have {usual} records, {', '.join(odd[:5])}{more}; "
        f"pass allow_unequal=True if that is meant"
    )


def to_tensor(values: Sequence[float] | Sequence[bool], like: Rewards, dtype: torch.dtype) -> Tensor:
    """Return values of records as `[R]`, on the device of the rewards if they have one."""
    return torch.tensor(values, dtype=dtype, device=like.device if isinstance(like, Tensor) else None)
