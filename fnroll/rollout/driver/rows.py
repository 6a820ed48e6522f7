"""Which records run in which rows, and how long they were when last read."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fnroll.core.types import RUNNING

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
        self._busy: npt.NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> npt.NDArray[np.intp]:
        """The rows that hold a record, in order."""
        if self._busy is None:
            self._busy = np.flatnonzero(self._line != _NONE)
        return self._busy

    @property
    def lines(self) -> npt.NDArray[np.int64]:
        """The lines of the running records, in the order of their rows."""
        lines: npt.NDArray[np.int64] = self._line[self.rows]
        return lines

    @property
    def highest(self) -> int:
        """The last row that holds a record."""
        return int(self.rows[-1])

    @property
    def longest(self) -> int:
        """Length of the longest running record when last read."""
        return int(self._length.max())

    @property
    def most_left(self) -> int:
        """The most tokens that a running record may still sample in its turn."""
        return int((self._limit - self._length).max())

    def admit(self, row: int, line: int, length: int, limit: int) -> None:
        """Say that a record runs in a row."""
        self._line[row], self._length[row], self._limit[row] = line, length, limit
        self._count, self._busy = self._count + 1, None

    def plan_moves(self, height: int) -> list[tuple[int, int]]:
        """Return which rows should move where, so that all records are in the first `height` rows."""
        free = np.flatnonzero(self._line[:height] == _NONE)
        outside = [row for row in self.rows.tolist() if row >= height]
        return list(zip(outside, free.tolist(), strict=False))

    def move(self, source: int, row: int) -> None:
        """Say that a record has moved to a free row."""
        line, length, limit = self._line[source], self._length[source], self._limit[source]
        self.free(source)
        self.admit(row, int(line), int(length), int(limit))

    def free(self, row: int) -> None:
        """Say that a row holds no record."""
        self._line[row], self._length[row], self._limit[row] = _NONE, 0, 0
        self._count, self._busy = self._count - 1, None

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
        rows = self.rows
        sampled = int(length.sum() - self._length[rows].sum())
        self._length[rows] = length
        at = np.flatnonzero(status != RUNNING)
        columns = self._line[rows[at]], rows[at], status[at], length[at]
        ended = map(TurnEnd, *(column.tolist() for column in columns))
        return sampled, sorted(end for end in ended if end.status in only)
