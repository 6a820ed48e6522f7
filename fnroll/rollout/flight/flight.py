"""A record on its way, and what happens to it between turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fnroll.dialogue.chat import Segment
from fnroll.records.record import RolloutRecord
from fnroll.records.status import Reason, Status
from fnroll.rollout.flight.tape import Tape


@dataclass(frozen=True, eq=False, kw_only=True)
class Flight:
    """What the host remembers of a record between turns: a value; the driver keeps the present one."""

    index: int
    """Place in the batch."""
    record: RolloutRecord
    prompt_ids: list[int]
    key: list[int]
    """Two numbers, from `init_keys`."""
    limit: int
    """Length at which the present turn must stop."""
    limit_reason: Reason = Reason.LENGTH
    """What a cut at `limit` means."""
    turn_start: int = 0
    """Place of the present turn's first sampled token."""
    is_exact: bool = True
    """Whether the record's text is what the chat template writes for its conversation."""
    length: int = 0
    """Tokens in use when the present turn began, or when the last one ended."""
    num_sampled: int = 0
    num_turns: int = 0
    num_cut: int = 0
    """Tool outputs that were cut."""
    tool_calls: tuple[Mapping[str, object], ...] = ()
    begun: Tape | None = None
    """What it held when it was cut, if it was begun by an earlier call."""
    is_waiting: bool = False
    """Whether its last turn had ended then and must be read again."""
    segment: Segment | None = None
    """The conversation up to the present turn; None in single-turn rollouts, or where only ids are known."""

    @property
    def start_ids(self) -> list[int]:
        """What it holds when it is loaded."""
        return self.prompt_ids if self.begun is None else self.begun.tokens

    @property
    def prompt_id(self) -> int | str:
        """What tells prompts apart."""
        return 0 if self.record.prompt_id is None else self.record.prompt_id

    @property
    def sample(self) -> int:
        """Index of the sample of its prompt."""
        return self.record.sample or 0

    def replace(self, **changes: Any) -> Flight:
        """Return a copy with some fields changed; a third of the time of `dataclasses.replace`."""
        new = object.__new__(Flight)
        new.__dict__.update(vars(self), **changes)
        return new

    def grow(self, length: int, turns: int = 0) -> Flight:
        """Return the flight when its record has `length` tokens, the new ones sampled, and `turns` more."""
        return self.replace(
            num_sampled=self.num_sampled + length - self.length,
            length=length,
            num_turns=self.num_turns + turns,
        )

    def go_on(self, segment: Segment, limit: int, limit_reason: Reason) -> Flight:
        """Return the flight when a segment was appended to its record, at the begin of the next turn."""
        length = self.length + len(segment.ids)
        return self.replace(
            segment=segment,
            is_exact=self.is_exact and segment.is_exact,
            length=length,
            turn_start=length,
            limit=limit,
            limit_reason=limit_reason,
        )


class Ended(NamedTuple):
    """A record that is over, or that is cut and has no reason."""

    flight: Flight
    tape: Tape
    status: Status
    reason: Reason | None
    error: str | None = None
    """What went wrong, in a sentence."""


@dataclass(frozen=True)
class Return:
    """A record that comes back from its tools."""

    flight: Flight
    """As it is then."""
    ids: list[int]
    """To append before the next turn."""
    status: Status | None = None
    """How the record ends instead, as it stands."""
    reason: Reason | None = None


class Turns(Protocol):
    """What happens between the turns of a record."""

    def end_turn(self, flight: Flight, tape: Tape) -> tuple[Status, Reason] | None:
        """Say how the record ends after a turn that a stop id closed, or None if tools run first."""

    @property
    def must_wait(self) -> bool:
        """Whether nothing may decode before more tools have answered."""

    def take_returned(self, step: int) -> list[Return]:
        """Return the records whose tools have all answered, without waiting.

        Args:
          step: decode steps that the call has taken so far, the number of this boundary.
        """

    def wait(self) -> None:
        """Wait until a record may have returned."""

    def cancel(self, flight: Flight) -> None:
        """Forget a record that waits for its tools, and end them."""
