"""What comes back from a tool call, and the interface of whoever answers calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from fnroll.dialogue.message import ParseError, ToolCall

ResultStatus = Literal["ok", "error", "timeout", "unknown_tool", "bad_arguments", "parse_error"]
RESULT_STATUSES: tuple[str, ...] = get_args(ResultStatus)


@dataclass(frozen=True)
class ToolResult:
    """The answer to one tool call."""

    text: str
    """What the model reads."""
    status: ResultStatus
    """`ok` if the tool gave a result; otherwise why not, and `text` says more."""
    seconds: float
    """How long the tool ran, in seconds; 0 if it did not."""


class TurnKey(NamedTuple):
    """Which turn of which record calls for tools."""

    prompt_id: int | str
    """The prompt's identity."""
    sample: int
    """The index among the samples of this prompt."""
    turn: int
    """The turn's index in the record."""
    seed: int = 0
    """Of the run; with the step it keeps the runs of one log apart."""
    step: int = 0
    """Of the training loop."""


def turn_key(key: Hashable) -> TurnKey:
    """Read a key as what names a turn of a record.

    Args:
      key: a `TurnKey`, or a tuple as long.

    Returns:
      The key.

    Raises:
      ValueError: it is something else.
    """
    if not isinstance(key, tuple) or not 3 <= len(key) <= 5:
        raise ValueError(f"key is {key!r}; it must be a TurnKey or as long")
    return TurnKey(*key)


class Runner(Protocol):
    """Who answers the tool calls of turns: by running them, or from a log."""

    def submit(self, key: Hashable, calls: Sequence[ToolCall | ParseError], metadata: Any = None) -> None:
        """Start all calls of one turn, without waiting for them; `metadata` is the record's."""

    def ready(self) -> list[tuple[Hashable, tuple[ToolResult, ...]]]:
        """Take the turns whose every call is answered, results in call order."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, at most `timeout` seconds, until `ready` has something to give."""

    def cancel(self, key: Hashable) -> None:
        """Forget a turn."""

    def close(self) -> None:
        """End all calls."""
