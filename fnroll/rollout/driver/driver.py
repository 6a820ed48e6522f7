"""The loop of a rank: load, admit, prefill, decode, and one read of the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from fnroll.compile.steps import LoweredSteps
from fnroll.core import types as t
from fnroll.core.types import Begun, RolloutState, Rows
from fnroll.records.record import Reason, RolloutRecord, Status
from fnroll.rollout.cache.plan import CachePlan, Feed, Placed, Tier
from fnroll.rollout.cache.prefixes import Prefixes
from fnroll.rollout.driver.profile import Profile
from fnroll.rollout.driver.rows import LiveRows
from fnroll.rollout.flight.flight import Ended, Flight, Turns
from fnroll.rollout.flight.tape import Tape, begin, prompt_tape, read_tapes

# A row joins another's prefill if that computes at most this many empty columns; a forward of its own,
# which reads all weights again, would cost about as much.
_PADDING = 16
# Rows that are filled together share a prefill; even one of few tokens costs about as much as a decode step.
# So free rows wait until they are one in so many, for at most so many steps.
ROWS_TO_JOIN = 8
_PATIENCE = 4


def group_prefill(feeds: Sequence[Feed]) -> list[list[Feed]]:
    """Group rows by how many tokens they are fed, so that each forward computes few empty columns."""
    groups: list[list[Feed]] = []
    for feed in sorted(feeds, key=lambda feed: -feed.missing):
        if groups and groups[-1][0].missing - feed.missing <= _PADDING:
            groups[-1].append(feed)
        else:
            groups.append([feed])
    return groups


class Driver:
    """Runs records through the steps. It holds the only reference to the state, which the steps consume."""

    def __init__(
        self, state: RolloutState, steps: LoweredSteps, *, static: bool, poll_every: int, profile: Profile,
        turns: Turns | None = None, share_prefixes: bool = True, held: Prefixes | None = None,
    ) -> None:  # fmt: skip
        self.state, self.steps, self.profile, self.turns = state, steps, profile, turns
        self._static, self._poll_every = static, poll_every
        self._free_lines = list(range(state.num_records))
        self._todo: deque[Flight] = deque()
        self._lines: dict[int, Flight] = {}
        self._line_of: dict[int, int] = {}
        self._queued: set[int] = set()
        self._live = LiveRows(state.num_rows)
        self._patience = _PATIENCE
        slots = 0 if state.pool is None else state.pool.owner.shape[0] - 1
        self.plan = CachePlan(state.num_rows, slots, state.max_length, share=share_prefixes, held=held)
        self.ended: deque[Ended] = deque()
        """Records that are over and not yet yielded."""
        self.aborts: deque[Callable[[RolloutRecord], bool]] = deque()
        """Which records to end before the next step; may be added to at any time, from any thread."""
        self.on_poll: Callable[[], None] = lambda: None
        """Called after each read of the device."""

    def add(self, flights: Iterable[Flight]) -> None:
        """Take records to roll out, behind those that are there."""
        self._todo.extend(flights)

    def run(self, max_steps: int | None = None) -> Iterator[Ended]:
        """Roll out all records, for at most `max_steps` decode steps; yield each when it has ended."""
        end = None if max_steps is None else self.profile.steps + max_steps
        while self._lines or self._todo:
            self._abort()
            if self.turns is not None:
                with self.profile.stage("tools"):
                    self._take_returned(self.turns)
            is_over = end is not None and self.profile.steps >= end
            if not is_over:
                self._advance(None if end is None else end - self.profile.steps)
            while self.ended:
                yield self.ended[0]
                self.ended.popleft()  # not before: what the caller did not come to keep is salvaged
            if is_over and not self.aborts:
                return

    def _advance(self, most: int | None) -> None:
        """Load, admit, and decode up to the next poll, or wait for tools."""
        if self.turns is not None and self.turns.must_wait:
            with self.profile.stage("tools"):
                self.turns.wait()
            return
        self._load()
        if self._can_admit():
            self._admit()
        if self._live:
            self._decode(most)
            self._poll()
            self.on_poll()
        elif self._lines and self.turns is not None and not self.ended:
            with self.profile.stage("tools"):
                self.turns.wait()

    def unfinished(self) -> list[Ended]:
        """Return the records that have not ended, as they stand; with those that were never loaded."""
        lines, running = sorted(self._lines), set(self._live.lines.tolist())
        cut = []
        for line, tape in zip(lines, self.read(lines), strict=True):
            status = Status.PENDING if line in self._queued else Status.WAITING
            status = Status.RUNNING if line in running else status
            self._grow(self._lines[line], tape)
            cut.append(Ended(self._lines[line], tape, status, None))
        for flight in self._todo:
            status = Status.WAITING if flight.is_waiting else Status.PENDING
            cut.append(Ended(flight, flight.begun or prompt_tape(flight.prompt_ids), status, None))
        return cut

    def leave(self) -> Prefixes:
        """Return what rows and slots hold between two steps, for a driver that gets the same buffers."""
        rows, lines = self._live.rows.tolist(), self._live.lines.tolist()
        for row, line, tape in zip(rows, lines, self.read(lines), strict=True):
            self.plan.end_turn(row, line, tape.tokens)
        return self.plan.held

    def _abort(self) -> None:
        """End the records that somebody asked to end, as they stand."""
        while self.aborts:
            is_meant = self.aborts.popleft()
            lines = sorted(line for line, flight in self._lines.items() if is_meant(flight.record))
            self._finish(lines, Status.TRUNCATED, Reason.ABORTED)
            todo, self._todo = self._todo, deque()
            for flight in todo:
                if is_meant(flight.record):
                    tape = flight.begun or prompt_tape(flight.prompt_ids)
                    self.ended.append(Ended(flight, tape, Status.TRUNCATED, Reason.ABORTED))
                    self.profile.records += 1
                else:
                    self._todo.append(flight)

    def _finish(self, lines: Sequence[int], status: Status, reason: Reason) -> None:
        if not lines:
            return
        tapes = self.read(lines)
        for line, tape in zip(lines, tapes, strict=True):  # first: an interrupt must not make it another end
            if self.turns is not None:
                self.turns.cancel(self._lines[line])
            self._queued.discard(line)
            self._live.discard(line)
            self._grow(self._lines[line], tape)
            self._close(line, tape, status, reason)
        codes = (t.STATUS_NAMES.index(status), t.REASON_NAMES.index(reason))
        self.state = self.steps.finish(
            self.state, self._tensor(lines), *(self._tensor([code] * len(lines)) for code in codes)
        )

    def salvage(self) -> list[Ended]:
        """Return the records that had ended when `run` was left by an exception and that it did not yield."""
        # A step that was cut off wrote to the lines of running records only, and a status comes last. What is
        # on the host already is not lost, whatever keeps the device from being read.
        with suppress(Exception):
            self._end_turns(only=(t.COMPLETED, t.TRUNCATED))
        return list(self.ended)

    def _tensor(self, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.state.stop_ids.device)

    def _pad(self, lists: Sequence[list[int]]) -> Tensor:
        width = max(map(len, lists))
        padded = np.array([ids + [0] * (width - len(ids)) for ids in lists], dtype=np.int64)
        # Four times as quick as a tensor made of lists.
        return torch.from_numpy(padded).to(self.state.stop_ids.device)

    def _load(self) -> None:
        """Put new records into free lines, as far as there are any."""
        with self.profile.stage("load"):
            count = min(len(self._free_lines), len(self._todo))
            if not count:
                return
            new = [self._todo.popleft() for _ in range(count)]
            lines, self._free_lines = self._free_lines[:count], self._free_lines[count:]
            for line, flight in zip(lines, new, strict=True):
                self._lines[line] = flight
                self._line_of[flight.index] = line
            self._queued.update(line for line in lines if not self._lines[line].is_waiting)
            for line, flight in zip(lines, new, strict=True):
                self.plan.load(line, flight.start_ids)
            self.state = self.steps.enqueue(
                self.state,
                self._tensor(lines),
                self._pad([flight.start_ids for flight in new]),
                self._tensor([flight.length for flight in new]),
                self._tensor([flight.limit for flight in new]),
                self._tensor([flight.key for flight in new]),
                *([self._begin(new)] if any(flight.begun for flight in new) else []),
            )
        with self.profile.stage("turns"):
            for line, flight in zip(lines, new, strict=True):
                if flight.is_waiting and flight.begun is not None:
                    flight.is_waiting = False
                    self._end_turn(line, flight.begun, t.WAITING)

    def _begin(self, flights: Sequence[Flight]) -> Begun:
        tapes = [flight.begun or prompt_tape(flight.prompt_ids) for flight in flights]
        turns, waiting = zip(*((flight.num_turns, flight.is_waiting) for flight in flights), strict=True)
        return begin(tapes, turns, waiting, self.state)

    def _can_admit(self) -> bool:
        free = self.state.num_rows - len(self._live)
        if not free or not self._queued or (self._static and self._live):
            return False
        others = len(self._todo) + len(self._queued) - free
        is_worth_a_wait = self._live and others > 0 and free < self.state.num_rows // ROWS_TO_JOIN
        if is_worth_a_wait and self._patience >= self._poll_every:
            self._patience -= self._poll_every
            return False
        self._patience = _PATIENCE
        return True

    def _admit(self) -> None:
        with self.profile.stage("admit"):
            self.state, admitted = self.steps.admit(self.state)
            lines = admitted.cpu().numpy()
            rows = (lines != Rows.IDLE).nonzero()[0]
            pairs = zip(rows.tolist(), lines[rows].tolist(), strict=True)
            placed = [Placed(row, line, self._lines[line].length) for row, line in pairs]
            for row, line, length in placed:
                self._live.admit(row, line, length, self._lines[line].limit)
            self._queued.difference_update(line for _, line, _ in placed)
            tiers = self.plan.admit(placed)
        with self.profile.stage("prefill"):
            for tier in tiers:
                self._copy(tier)
                for group in group_prefill(tier.feeds):
                    self._prefill(group)

    def _copy(self, tier: Tier) -> None:
        """Bring keys and values into rows that were just admitted."""
        for copies, pooled in ((tier.shared, False), (tier.pooled, True)):
            if copies:
                sources, rows, lengths = map(self._tensor, zip(*copies, strict=True))
                longest = max(copy.length for copy in copies)
                self.state = self.steps.share(
                    self.state, sources, rows, lengths, length=longest, pooled=pooled
                )
                self.profile.shared_tokens += sum(copy.length for copy in copies)
        if tier.unparked:
            slots, rows, _ = map(self._tensor, zip(*tier.unparked, strict=True))
            longest = max(copy.length for copy in tier.unparked)
            self.state = self.steps.unpark(self.state, slots, rows, length=longest)
            self.profile.unparked_tokens += sum(copy.length for copy in tier.unparked)

    def _prefill(self, group: list[Feed]) -> None:
        done, longest = 0, group[0].missing
        while group:
            rows = [feed.row for feed in group]
            width = self.steps.prefill_width(len(rows), longest - done)
            length = max(feed.cached + min(done + width, feed.missing) for feed in group)
            self.state, shapes = self.steps.prefill(self.state, rows, width=width, length=length)
            fed = sum(min(feed.missing - done, width) for feed in group)
            self.profile.forwards += len(shapes)
            self.profile.fed_tokens += fed
            self.profile.padded_tokens += sum(shape.rows * shape.width for shape in shapes) - fed
            done += width
            group = [feed for feed in group if feed.missing > done]

    def _decode(self, most: int | None) -> None:
        """Run the decode steps up to the next poll, at most so many."""
        length, count = self._live.longest, min(self._poll_every, self._live.most_left)
        count = count if most is None else min(count, most)
        with self.profile.stage("decode"):
            self._pack(length)
            rows = self._live.highest + 1
            for step in range(count):
                self.state, shape = self.steps.decode(self.state, length + step, rows)
                self.profile.padded_tokens += shape.rows
        self.profile.steps += count
        self.profile.forwards += count

    def _pack(self, length: int) -> None:
        """Move the last records of a rollout into the first rows, where a step computes fewer."""
        if self._todo or len(self._lines) > len(self._live):
            return
        shape = self.steps.decode_shape(self.state, length, len(self._live))
        moves = self._live.plan_moves(shape.rows)
        if moves:
            sources, rows = map(self._tensor, zip(*moves, strict=True))
            self.state = self.steps.move(self.state, sources, rows, length=length)
        for source, row in moves:
            self._live.move(source, row)
            self.plan.move(source, row)

    def _poll(self) -> None:
        """Read the device, and see which turns ended."""
        count, before = len(self._live), self.profile.tokens
        self._end_turns(only=(t.COMPLETED, t.TRUNCATED, t.WAITING))
        if self.profile.tokens - before < count:
            raise RuntimeError("a row did not decode: what is cached of its record is not what the plan says")

    def _end_turns(self, only: tuple[int, ...]) -> None:
        with self.profile.stage("poll"):
            records, index = self.state.records, torch.from_numpy(self._live.lines)
            index = index.to(self.state.stop_ids.device)
            status, length = torch.stack((records.status, records.length))[:, index].cpu().numpy()
            sampled, ended = self._live.read(status, length, only)
            self.profile.tokens += sampled
            self.profile.fed_tokens += sampled
            self.profile.padded_tokens -= sampled
            tapes = self.read([line for line, *_ in ended])
        with self.profile.stage("turns"):
            for (line, row, status, _), tape in zip(ended, tapes, strict=True):
                if line in self._lines:
                    self._end_turn(line, tape, status)
                self._live.free(row)  # not before: what was not closed when an exception came is salvaged
                if line in self._lines:
                    self.plan.end_turn(row, line, tape.tokens)
        with self.profile.stage("park"):
            self._park([Placed(row, line, length) for line, row, _, length in ended if line in self._lines])

    def _park(self, waiting: list[Placed]) -> None:
        """Keep the keys and values of turns that wait for their tools, as far as the pool has room."""
        parked = self.plan.park(waiting)
        if parked:
            rows, slots, lines = map(self._tensor, zip(*parked, strict=True))
            longest = max(placed.length for placed in waiting)
            self.state = self.steps.park(self.state, rows, slots, lines, length=longest)
            self.profile.pool_peak = self.plan.slots.peak

    @staticmethod
    def _grow(flight: Flight, tape: Tape) -> None:
        flight.num_sampled += len(tape.tokens) - flight.length
        flight.length = len(tape.tokens)

    def _end_turn(self, line: int, tape: Tape, status: int) -> None:
        flight = self._lines[line]
        self._grow(flight, tape)
        flight.num_turns += 1
        if status == t.TRUNCATED:
            self._close(line, tape, Status.TRUNCATED, flight.limit_reason)
        elif self.turns is None:
            self._close(line, tape, Status.COMPLETED, Reason.EOS)
        elif (ending := self.turns.end_turn(flight, tape)) is not None:
            self._close(line, tape, *ending)

    def _close(self, line: int, tape: Tape, status: Status, reason: Reason) -> None:
        flight = self._lines.pop(line)
        del self._line_of[flight.index]
        self._free_lines.append(line)
        if (slot := self.plan.close(line)) is not None:
            self.state = self.steps.release(self.state, self._tensor([slot]))
        self.profile.records += 1
        # Of what followed its first tokens all but the last had to be fed.
        self.profile.least_tokens += flight.length - len(flight.start_ids) - 1
        self.ended.append(Ended(flight, tape, status, reason))

    def _take_returned(self, turns: Turns) -> None:
        returned = turns.take_returned()
        for back in returned:
            if back.status is not None and back.reason is not None:
                line = self._line_of[back.flight.index]
                self._close(line, self.read([line])[0], back.status, back.reason)
        going_on = [item for item in returned if item.status is None]
        if not going_on:
            return
        lines = [self._line_of[item.flight.index] for item in going_on]
        for item in going_on:
            item.flight.length += len(item.ids)
            item.flight.turn_start = item.flight.length
            item.flight.limit, item.flight.limit_reason = item.limit, item.limit_reason
            self.plan.append(self._line_of[item.flight.index], item.ids)
        self._queued.update(lines)
        self.state = self.steps.append_tool(
            self.state,
            self._tensor(lines),
            self._pad([item.ids for item in going_on]),
            self._tensor([len(item.ids) for item in going_on]),
            self._tensor([item.limit for item in going_on]),
        )

    def read(self, lines: Sequence[int]) -> list[Tape]:
        """Return what some lines hold."""
        return read_tapes(self.state.records, self._tensor(lines)) if lines else []
