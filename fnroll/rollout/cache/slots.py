"""Which pool slot holds which parked turn, and who gives way when the pool is full."""

from __future__ import annotations

import heapq


class Slots:
    """The host's account of a pool."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._held: dict[int, tuple[int, int]] = {}
        self.peak = 0
        """Most slots that were in use at the same time."""

    def __len__(self) -> int:
        return len(self._held)

    def park(self, line: int, length: int) -> int | None:
        """Give a line a slot for `length` cached tokens, or None if the pool is full of longer ones.

        Of all that want to wait, the one with the fewest cached tokens, which costs least to feed again, goes
        without; of equals the one of the smallest line.
        """
        if not self._free:
            if not self._held:
                return None
            shortest = min(self._held, key=lambda held: (self._held[held][1], held))
            if (length, line) < (self._held[shortest][1], shortest):
                return None
            self.take(shortest)
        slot = heapq.heappop(self._free)
        self._held[line] = (slot, length)
        self.peak = max(self.peak, len(self._held))
        return slot

    def take(self, line: int) -> tuple[int, int] | None:
        """Free a line's slot; return it and how many tokens it holds, or None if the line has none."""
        held = self._held.pop(line, None)
        if held is not None:
            heapq.heappush(self._free, held[0])
        return held

    def find(self, line: int) -> int | None:
        """Return a line's slot, None if it has none."""
        held = self._held.get(line)
        return None if held is None else held[0]
