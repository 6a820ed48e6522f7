"""What is agreed on between two stretches of decode steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fnroll.rollout.flight.flight import Return


@dataclass(frozen=True)
class Boundary:
    """All that came from outside since the last boundary; nothing else decides what runs next."""

    step: int
    """Decode steps that the call has taken: the boundary's number."""
    is_left: bool
    """Whether any record is left to roll out."""
    aborts: frozenset[int]
    """Records to end, by their places in the batch."""
    returned: tuple[Return, ...]
    """Records that came back from their tools."""
    is_waiting: bool
    """Whether nothing may decode before more tools have answered."""
    steps: int
    """Decode steps up to the next boundary, at most; 0 if there are to be no more."""
    is_saved: bool
    """Whether how all records stand is written first."""


Agreement = Callable[[Boundary], Boundary]
"""From what this rank sees to what all ranks do."""


def alone(boundary: Boundary) -> Boundary:
    """Return what the only rank sees."""
    return boundary
