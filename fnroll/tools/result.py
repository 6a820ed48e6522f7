"""What comes back from a tool call, and the interface of whoever answers calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from fnroll.dialogue.message import ParseError, ToolCall

ResultStatus = Literal["ok", "error", "timeout", "unknown_tool", "bad_arguments", "parse_error"]
RESULT_STATUSES: tuple[str, ...] = get_args(ResultStatus)


@dataclass(frozen=True)
class ToolResult:
    """The answer to one tool call.

    Attributes:
        text: what the model reads.
        status: "ok" if the tool gave a result; otherwise why not, and `text` says more.
        seconds: how long the tool ran, in seconds; 0 if it did not.
    """

    text: str
    status: ResultStatus
    seconds: float


class TurnKey(NamedTuple):
    """Which turn of which record calls for tools.

    Attributes:
        prompt_id: the prompt's identity.
        sample: the index among the samples of this prompt.
        turn: the turn's index in the record.
        seed: of the run; with the step it keeps the runs of one log apart.
        step: of the training loop.
    """

    prompt_id: int | str
    sample: int
    turn: int
    seed: int = 0
    step: int = 0


class Runner(Protocol):
    """Who answers the tool calls of turns: by running them, or from a log."""

    def submit(self, key: Hashable, calls: Sequence[ToolCall | ParseError]) -> None:
        """Starts all calls of one turn, without waiting for them."""

    def ready(self) -> list[tuple[Hashable, tuple[ToolResult, ...]]]:
        """Takes the turns whose every call is answered, results in call order."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits, at most `timeout` seconds, until `ready` has something to give."""

    def cancel(self, key: Hashable) -> None:
        """Forgets a turn."""

    def close(self) -> None:
        """Ends all calls."""
