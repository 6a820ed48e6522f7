"""The few shapes that compiled steps come in, all known before anything runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_SMALLEST_WINDOW = 64
_SMALLEST_WIDTH = 16
# Prefill reads a window that may be four times too long: its matrix products cost more than its reads.
_SMALLEST_PREFILL_WINDOW = 512
_MAX_WIDTH = 256
_STEP = 4
# Estimates for a GPU: columns (tokens of one row) that take as long as reading the weights does anyway, and
# those of the largest forward worth a graph, beyond which two forwards cost what one does.
LEAST_COLUMNS = 256
MOST_COLUMNS = 8192


@dataclass(frozen=True, order=True)
class PrefillShape:
    """A rows, Q columns and the window W of a prefill."""

    rows: int
    width: int
    window: int

    def __str__(self) -> str:
        return f"prefill of {self.rows} x {self.width}, window {self.window}"


@dataclass(frozen=True, order=True)
class DecodeShape:
    """A rows, the first ones, and the window W of a decode step."""

    rows: int
    window: int

    def __str__(self) -> str:
        return f"decode of {self.rows} rows, window {self.window}"


def _powers(least: int, most: int, step: int) -> tuple[int, ...]:
    """Return `least` times the powers of `step`, as far as they are well below `most`, and `most`."""
    found = []
    while least * step < 2 * most:
        found.append(least)
        least *= step
    return (*found, most)


@dataclass(frozen=True)
class Buckets:
    """The shapes of one configuration: B rows, records of up to T tokens.

    Their number grows with the logarithms of B and T: for 16 rows of 512 tokens there are 8 decode steps
    and 9 prefills.
    """

    num_rows: int
    """B."""
    max_length: int
    """T."""

    @functools.cached_property
    def windows(self) -> tuple[int, ...]:
        """Windows of the decode step: powers of two from 64, and T."""
        return _powers(_SMALLEST_WINDOW, self.max_length, 2)

    @functools.cached_property
    def prefill_windows(self) -> tuple[int, ...]:
        """Windows of prefills: powers of four from 512, and T."""
        return _powers(_SMALLEST_PREFILL_WINDOW, self.max_length, _STEP)

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """Widths of prefills: powers of four from 16 to 256, or T."""
        return _powers(_SMALLEST_WIDTH, min(_MAX_WIDTH, self.max_length), _STEP)

    @functools.cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of prefills: 1, powers of four, and B."""
        return tuple(sorted({1, *_powers(1, self.num_rows, _STEP)}))

    def heights(self, width: int) -> tuple[int, ...]:
        """Return the numbers of rows that a prefill of this width comes with; 1 is always one."""
        return tuple(rows for rows in self.rows if rows == 1 or rows * width <= MOST_COLUMNS)

    @functools.cached_property
    def decode_rows(self) -> tuple[int, ...]:
        """Rows of decode steps: a quarter and a half of B, for the end of a rollout, and B."""
        return tuple(sorted({max(1, self.num_rows // part) for part in (4, 2, 1)}))

    def decode_windows(self, rows: int) -> tuple[int, ...]:
        """Return the windows of decode steps of so many rows; fewer rows than B have every other one.

        Records that are left at the end are long ones, and few rows of a window that is too long cost less
        than compiling another graph.
        """
        return self.windows if rows == self.num_rows else self.windows[::-2][::-1]

    def decode(self, count: int, length: int) -> DecodeShape:
        """Return the decode step over the first `count` rows, of records of up to `length` tokens."""
        rows = next(rows for rows in self.decode_rows if rows >= count)
        length = min(length, self.max_length)
        return DecodeShape(rows, next(window for window in self.decode_windows(rows) if window >= length))

    def prefill_window(self, length: int) -> int:
        """Return the prefill window for records of up to `length` tokens."""
        return next(window for window in self.prefill_windows if window >= min(length, self.max_length))

    def decodes(self) -> list[DecodeShape]:
        """Return every shape that a decode step can have."""
        return [
            DecodeShape(rows, window) for rows in self.decode_rows for window in self.decode_windows(rows)
        ]

    def prefills(self) -> list[PrefillShape]:
        """Return every shape that a prefill can have."""
        return [
            PrefillShape(rows, width, window)
            for width in self.widths
            for rows in self.heights(width)
            for window in self.prefill_windows
            if window >= width
        ]

    def width(self, count: int, tokens: int) -> int:
        """Return the width of the next prefill of `count` rows that have up to `tokens` to feed."""

        def price(width: int) -> int:
            return self._cover_rows(count, width)[0]

        return _cover(tokens, self.widths, price)[1]

    def split(self, rows: Sequence[int], width: int) -> list[tuple[Sequence[int], int]]:
        """Split rows into the parts of one forward each: the rows, and how many it computes."""
        parts = []
        while rows:
            height = self._cover_rows(len(rows), width)[1]
            parts.append((rows[:height], height))
            rows = rows[height:]
        return parts

    def _cover_rows(self, count: int, width: int) -> tuple[int, int]:
        return _cover(count, self.heights(width), lambda rows: max(LEAST_COLUMNS, rows * width))


def _cover(count: int, sizes: Sequence[int], price: Callable[[int], int]) -> tuple[int, int]:
    """Return what the cheapest way costs to cover `count` by some of `sizes`, and its first size.

    A cover takes the largest size as often as it fits, and for what is left either one size that is enough,
    or the largest that is not, and goes on. Of ways that cost the same, the one of larger sizes.
    """
    whole, left = divmod(count, sizes[-1])
    cost = whole * price(sizes[-1])
    if not left:
        return cost, sizes[-1]
    enough = next(size for size in sizes if size >= left)
    best, first = price(enough), enough
    if less := [size for size in sizes if size < left]:
        rest = price(less[-1]) + _cover(left - less[-1], sizes, price)[0]
        best, first = min((best, first), (rest, less[-1]), key=lambda way: way[0])
    return cost + best, sizes[-1] if whole else first
