"""Which ids have their keys and values where, and the longest common prefix with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


def to_ids(values: Sequence[int] | Ids) -> Ids:
    """Return ids as an array."""
    return np.asarray(values, dtype=np.int32)


class Prefixes:
    """A table of what some places (rows, slots) hold: ids from position 0 on."""

    def __init__(self, places: int, max_length: int) -> None:
        self._ids = np.zeros((places, max_length), dtype=np.int32)
        self._length = np.zeros(places, dtype=np.int64)

    def put(self, place: int, ids: Ids) -> None:
        """Say that a place holds the keys and values of `ids`, and of nothing else."""
        self._length[place] = len(ids)
        self._ids[place, : len(ids)] = ids

    def take_over(self, other: Prefixes, places: Sequence[int]) -> None:
        """Say that some places hold what they hold in another table."""
        self._length[places] = other._length[places]
        self._ids[places] = other._ids[places]

    def copy(self, source: int, place: int) -> None:
        """Say that a place holds what another holds."""
        self._length[place], self._ids[place] = self._length[source], self._ids[source]

    def forget(self, places: Sequence[int]) -> None:
        """Say that some places hold nothing."""
        self._length[places] = 0

    def find(self, ids: Ids, among: Sequence[int] | None = None) -> tuple[int, int]:
        """Return the place whose ids begin as `ids` does for longest, the first of equals, and for how long.

        Args:
          ids: of a record.
          among: the places to look at; None for all.
        """
        table, length = self._ids[:, : len(ids)], self._length
        if among is not None:
            table, length = table[among], length[among]
        if not len(ids) or not length.any():
            return 0, 0
        equal = table == ids
        common = np.minimum(np.where(equal.all(axis=1), len(ids), equal.argmin(axis=1)), length)
        best = int(common.argmax())
        return best if among is None else among[best], int(common[best])


def count_distinct(prompts: Sequence[Sequence[int]]) -> int:
    """Return the size of the trie of some prompts: the tokens to feed if each prefix is fed once."""
    total, last = 0, to_ids(())
    for prompt in map(to_ids, sorted({tuple(prompt) for prompt in prompts})):
        least = min(len(prompt), len(last))
        equal = prompt[:least] == last[:least]
        total += len(prompt) - (least if equal.all() else int(equal.argmin()))
        last = prompt
    return total
