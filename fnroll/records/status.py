"""How a record stands, and why it ended."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """How a record ended, or what it waits for."""

    PENDING = "PENDING"
    """Unfinished: waits for a row."""
    RUNNING = "RUNNING"
    """Unfinished: in the middle of a turn."""
    WAITING = "WAITING"
    """Unfinished: a turn has ended and its tools have not answered."""
    COMPLETED = "COMPLETED"
    TRUNCATED = "TRUNCATED"
    FAILED = "FAILED"


UNFINISHED = frozenset((Status.PENDING, Status.RUNNING, Status.WAITING))
"""Of records that can be gone on with."""


class Reason(StrEnum):
    """Why a record ended."""

    EOS = "eos"
    """The model ended its last turn with a stop id."""
    LENGTH = "length"
    """`max_length` or `max_new_tokens` was reached."""
    TURN_LENGTH = "turn_length"
    """`max_new_tokens_per_turn` was reached."""
    MAX_TURNS = "max_turns"
    """A tool was wanted in the last allowed turn."""
    TOOL_OUTPUT = "tool_output"
    """A tool output did not fit below `max_length`."""
    PROMPT = "prompt"
    """The prompt left no room for a token."""
    TOOL_ERROR = "tool_error"
    """The tool runner itself failed."""
    ABORTED = "aborted"
    """The rollout was stopped from outside."""
    NOT_FINITE = "not_finite"
    """The model gave no distribution: a logit was NaN or infinite, or all of them were ruled out."""
