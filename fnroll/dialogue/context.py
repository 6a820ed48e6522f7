"""What a tool may learn about the call that it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolContext:
    """Which record makes a call; a parameter of a tool with this type is filled in, and no model sees it."""

    prompt_id: int | str
    """The prompt's identity."""
    sample: int
    """The index among the samples of this prompt."""
    turn: int
    """The turn's index in the record."""
    call: int
    """The call's index in the turn."""
    seed: int = 0
    """Of the run."""
    step: int = 0
    """Of the training loop."""
    metadata: Any = field(default=None, repr=False)
    """The record's, an own copy; None without."""
