"""A record on its way through the driver, and what happens to it between turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fnroll.records.record import Reason, RolloutRecord, Status
from fnroll.rollout.flight.tape import Tape


@dataclass(eq=False, slots=True)
class Flight:
    """A record on its way: what the host remembers of it between turns."""

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
    tool_calls: list[Mapping[str, object]] = field(default_factory=list)
    begun: Tape | None = None
    """What it held when it was cut, if it was begun by an earlier call."""
    is_waiting: bool = False
    """Whether its last turn had ended then and must be read again."""

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


class Ended(NamedTuple):
    """A record that is over, or that is cut and has no reason."""

    flight: Flight
    tape: Tape
    status: Status
    reason: Reason | None


@dataclass(frozen=True)
class Return:
    """A record that comes back from its tools."""

    flight: Flight
    ids: list[int]
    """To append before the next turn."""
    limit: int = 0
    limit_reason: Reason = Reason.LENGTH
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

    def take_returned(self) -> list[Return]:
        """Return the records whose tools have all answered, without waiting."""

    def wait(self) -> None:
        """Wait until a record may have returned."""

    def cancel(self, flight: Flight) -> None:
        """Forget a record that waits for its tools, and end them."""
