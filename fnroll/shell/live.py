"""Which records run in which rows, and how long they were when last read."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_NONE = -1


class TurnEnd(NamedTuple):
    """A record whose turn has ended."""

    line: int
    row: int
    status: int
    length: int


class LiveRows:
    """An array entry a row, so that a poll costs the host a few calls however many rows there are."""

    def __init__(self, rows: int) -> None:
        self._line = np.full(rows, _NONE, dtype=np.int64)
        self._length = np.zeros(rows, dtype=np.int64)
        self._limit = np.zeros(rows, dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def lines(self) -> npt.NDArray[np.int64]:
        """The lines of the running records, in the order of their rows."""
        lines: npt.NDArray[np.int64] = self._line[self._line != _NONE]
        return lines

    @property
    def longest(self) -> int:
        """Length of the longest running record when last read."""
        return int(self._length[self._line != _NONE].max())

    @property
    def most_left(self) -> int:
        """The most tokens that a running record may still sample in its turn."""
        live = self._line != _NONE
        return int((self._limit[live] - self._length[live]).max())

    def admit(self, row: int, line: int, length: int, limit: int) -> None:
        """Say that a record runs in a row."""
        self._line[row], self._length[row], self._limit[row] = line, length, limit
        self._count += 1

    def free(self, row: int) -> None:
        """Say that a row holds no record."""
        self._line[row] = _NONE
        self._count -= 1

    def discard(self, line: int) -> None:
        """Free the row of a record, if it has one."""
        for row in np.flatnonzero(self._line == line):
            self.free(int(row))

    def read(
        self, status: npt.NDArray[np.int64], length: npt.NDArray[np.int64], only: Collection[int]
    ) -> tuple[int, list[TurnEnd]]:
        """Take in what `lines` hold now.

        Args:
          status: of `lines`.
          length: of `lines`.
          only: statuses of turns that have ended.

        Returns:
          How many tokens were sampled since the last read; the records whose turn has ended, by line.
        """
        rows = np.flatnonzero(self._line != _NONE)
        sampled = int((length - self._length[rows]).sum())
        self._length[rows] = length
        over = np.flatnonzero(np.isin(status, list(only)))
        ended = sorted(
            TurnEnd(int(self._line[rows[i]]), int(rows[i]), int(status[i]), int(length[i])) for i in over
        )
        return sampled, ended
