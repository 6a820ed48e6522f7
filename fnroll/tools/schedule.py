"""Before which decode steps turns came back in a run that is replayed, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from fnroll.tools.log import ToolEvent
from fnroll.tools.result import ToolResult, TurnKey

Answered = tuple[TurnKey, tuple[ToolResult, ...]]
"""A turn, and what its calls gave."""


class Schedule:
    """Holds answers that a log has at once until they had come in the run that wrote it.

    What shares a forward, and so the last bits of log-probs, is then the same again. Under another
    configuration a turn may be held longer than it has to; none is held while nothing else goes on.

    Args:
      events: from `read_log`; turns without a boundary come back at once.
    """

    def __init__(self, events: Mapping[TurnKey, tuple[ToolEvent, ...]]) -> None:
        self._place = {
            key: (calls[0].boundary, order)
            for order, (key, calls) in enumerate(events.items())
            if calls[0].boundary is not None
        }
        self._released = 0

    def part(self, answered: Iterable[Answered], step: int) -> tuple[list[Answered], deque[Answered]]:
        """Return the turns that come back before decode step `step`, in their order, and the others."""
        due: list[Answered] = []
        held: deque[Answered] = deque()
        for item in answered:
            (held if self.holds(item[0], step) else due).append(item)
        if self._place:
            due.sort(key=lambda item: self._place.get(item[0], (0, -1))[1])
        return due, held

    def holds(self, key: TurnKey, step: int) -> bool:
        """Whether a turn comes back after decode step `step` only."""
        return self._boundary(key) > max(step, self._released)

    def release(self, keys: Iterable[TurnKey]) -> None:
        """Let the turns come back that would do so first, for nothing else goes on."""
        self._released = max(self._released, min(map(self._boundary, keys)))

    def _boundary(self, key: TurnKey) -> int:
        return self._place.get(key, (0, -1))[0]
