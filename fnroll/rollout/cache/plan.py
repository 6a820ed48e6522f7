"""What is cached where, and who takes it over: the host's plan, made of ids and numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fnroll.rollout.cache.prefixes import Ids, Prefixes, to_ids
from fnroll.rollout.cache.slots import Slots

# A copy of fewer tokens saves less than its calls cost.
LEAST_SHARED = 16
# A record may copy from one that was admitted with it, which itself copied, and so on: a forward more each.
MOST_TIERS = 4


class Copy(NamedTuple):
    """Keys and values that move."""

    source: int
    """Row or slot."""
    target: int
    """Row or slot."""
    length: int
    """Tokens."""


class Feed(NamedTuple):
    """Tokens that a row has to be fed before it decodes."""

    row: int
    cached: int
    """Tokens that it has already."""
    missing: int
    """Tokens to feed."""


class Parked(NamedTuple):
    """A turn that gets a slot."""

    row: int
    slot: int
    line: int


class Placed(NamedTuple):
    """A record and the row that it has, or that it has just left."""

    row: int
    line: int
    length: int
    """Tokens in use."""


@dataclass
class Tier:
    """Copies, then one prefill: the rows of a later tier copy from those of an earlier one."""

    shared: list[Copy] = field(default_factory=list)
    """From row to row; all at once, since a source may be the target of another copy."""
    pooled: list[Copy] = field(default_factory=list)
    """From slot to row; the slot keeps them."""
    unparked: list[Copy] = field(default_factory=list)
    """From slot to row; the slot is free then."""
    feeds: list[Feed] = field(default_factory=list)


class CachePlan:
    """Knows which ids have their keys and values in which row or slot, and lets nothing be fed twice.

    It lives as long as one call: a new one knows nothing, so nothing is taken over from old weights, unless
    it is given what an earlier one left.

    Args:
      rows: B.
      slots: P.
      max_length: T.
      share: whether records copy common prefixes from each other.
      held: what rows and slots, in this order, hold already; None for nothing.
    """

    def __init__(
        self, rows: int, slots: int, max_length: int, *, share: bool, held: Prefixes | None = None
    ) -> None:
        self.slots, self._rows, self._share = Slots(slots), rows, share
        self._ids: dict[int, Ids | Sequence[int]] = {}
        # Before the present admission; what the rows hold after their prefill in it.
        self.held = Prefixes(rows + slots if share else 0, max_length) if held is None else held
        """What rows and slots hold."""
        self._fresh = Prefixes(rows if share else 0, max_length)

    def __len__(self) -> int:
        return len(self._ids)

    def load(self, line: int, prompt: Sequence[int]) -> None:
        """Remember the prompt of a new record."""
        if self._share:
            self._ids[line] = prompt

    def append(self, line: int, ids: Sequence[int]) -> None:
        """Remember what was appended to a record between turns."""
        if self._share:
            self._ids[line] = np.concatenate((to_ids(self._ids[line]), to_ids(ids)))

    def end_turn(self, row: int, line: int, tokens: Sequence[int]) -> None:
        """Remember what a record holds whose turn has ended in a row; all but the last is cached there."""
        if self._share:
            ids = self._ids[line] = to_ids(tokens)
            self.held.put(row, ids[:-1])

    def park(self, ended: Sequence[Placed]) -> list[Parked]:
        """Give slots to turns that have just ended, and take them from those that cost less to feed again."""
        for placed in ended:
            self.slots.park(placed.line, placed.length - 1)
        slots = [(placed, self.slots.find(placed.line)) for placed in ended]
        parked = [Parked(placed.row, slot, placed.line) for placed, slot in slots if slot is not None]
        for item in parked if self._share else ():
            self.held.put(self._rows + item.slot, to_ids(self._ids[item.line])[:-1])
        return parked

    def forget(self, rows: Sequence[int]) -> None:
        """Say that some rows hold nothing that another record could use."""
        if self._share:
            self.held.forget(rows)

    def move(self, source: int, row: int) -> None:
        """Say that what a row holds has been copied to another."""
        if self._share:
            self.held.copy(source, row)

    def close(self, line: int) -> int | None:
        """Forget a record that is over; return the slot that it held."""
        self._ids.pop(line, None)
        held = self.slots.take(line)
        return None if held is None else held[0]

    def admit(self, admitted: Sequence[Placed]) -> list[Tier]:
        """Say how the rows of records that were just admitted get their keys and values."""
        tiers = [Tier() for _ in range(MOST_TIERS)]
        place: dict[int, int] = {}
        rows = [placed.row for placed in admitted]
        if self._share:
            self._fresh.forget(rows)
        for placed in admitted:
            number, cached = self._fill(placed, tiers, place)
            place[placed.row] = number
            if placed.length - 1 > cached:
                tiers[number].feeds.append(Feed(placed.row, cached, placed.length - 1 - cached))
            if self._can_share(placed):
                self._fresh.put(placed.row, self._fed(placed))
        if self._share:
            self.held.take_over(self._fresh, rows)
        return [tier for tier in tiers if tier.shared or tier.pooled or tier.unparked or tier.feeds]

    def _can_share(self, placed: Placed) -> bool:
        return self._share and placed.length - 1 >= LEAST_SHARED

    def _fed(self, placed: Placed) -> Ids:
        """Return what a row holds once it is filled: all that its record knows but the last token."""
        ids = self._ids[placed.line] = to_ids(self._ids[placed.line])
        return ids[: placed.length - 1]

    def _fill(self, placed: Placed, tiers: list[Tier], place: dict[int, int]) -> tuple[int, int]:
        """Plan what a row takes over; return the tier that it is fed in and how much it has then."""
        held = self.slots.take(placed.line)
        if held is not None:
            tiers[0].unparked.append(Copy(held[0], placed.row, held[1]))
            return 0, held[1]
        if not self._can_share(placed):
            return 0, 0
        ids = self._fed(placed)
        source, common = self.held.find(ids)
        leaders = [row for row, number in place.items() if number + 1 < MOST_TIERS]
        leader, more = self._fresh.find(ids, leaders) if leaders else (0, 0)
        if more >= common + LEAST_SHARED or common < LEAST_SHARED <= more:
            number = place[leader] + 1
            tiers[number].shared.append(Copy(leader, placed.row, more))
            return number, more
        if common < LEAST_SHARED:
            return 0, 0
        if source < self._rows:
            tiers[0].shared.append(Copy(source, placed.row, common))
        else:
            tiers[0].pooled.append(Copy(source - self._rows, placed.row, common))
        return 0, common
