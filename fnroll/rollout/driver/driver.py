"""The loop of a rank: agree, load, admit, prefill, decode, and one read of the device."""

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
from fnroll.records.record import RolloutRecord
from fnroll.records.status import Reason, Status
from fnroll.rollout.cache.plan import CachePlan, Placed
from fnroll.rollout.cache.prefixes import Prefixes
from fnroll.rollout.driver.boundary import Agreement, Boundary, alone
from fnroll.rollout.driver.lines import Lines
from fnroll.rollout.driver.prefill import fill_rows
from fnroll.rollout.driver.profile import Profile
from fnroll.rollout.driver.rows import LiveRows
from fnroll.rollout.flight.flight import Ended, Flight, Return, Turns
from fnroll.rollout.flight.tape import Tape, begin, prompt_tape, read_tapes

# Rows that are filled together share a prefill; even one of few tokens costs about as much as a decode step.
# So free rows wait until they are one in so many, for at most so many steps.
ROWS_TO_JOIN = 8
_PATIENCE = 4


class Driver:
    """Runs records through the steps. It holds the only reference to the state, which the steps consume."""

    def __init__(
        self, state: RolloutState, steps: LoweredSteps, *, static: bool, poll_every: int, profile: Profile,
        turns: Turns | None = None, share_prefixes: bool = True, held: Prefixes | None = None,
        agree: Agreement = alone,
    ) -> None:  # fmt: skip
        self.state, self.steps, self.profile, self.turns, self.agree = state, steps, profile, turns, agree
        self._static, self._poll_every = static, poll_every
        self._todo: deque[Flight] = deque()
        self._lines = Lines(state.num_records)
        self._live = LiveRows(state.num_rows)
        self._patience = _PATIENCE
        slots = 0 if state.pool is None else state.pool.owner.shape[0] - 1
        self.plan = CachePlan(state.num_rows, slots, state.max_length, share=share_prefixes, held=held)
        self.ended: deque[Ended] = deque()
        """Records that are over and not yet yielded."""
        self.aborts: deque[Callable[[RolloutRecord], bool]] = deque()
        """Which records to end before the next step; may be added to at any time, from any thread."""
        self.is_save_due: Callable[[int], bool] = lambda steps: False
        """Whether a save is due after so many decode steps."""
        self.on_save: Callable[[], None] = lambda: None
        """Called where a save is due; `unfinished` and `ended` say how records stand."""
        self.on_poll: Callable[[], None] = lambda: None
        """Called after each read of the device."""

    def add(self, flights: Iterable[Flight]) -> None:
        """Take records to roll out, behind those that are there."""
        self._todo.extend(flights)

    def run(self, max_steps: int | None = None) -> Iterator[Ended]:
        """Roll out all records, for at most `max_steps` decode steps; yield each when it has ended."""
        end = None if max_steps is None else self.profile.steps + max_steps
        while (boundary := self.agree(self._look(end))).is_left:
            self._act(boundary)
            while self.ended:
                yield self.ended[0]
                self.ended.popleft()  # not before: what the caller did not come to keep is salvaged
            if not boundary.steps and not self.aborts:
                return

    def _look(self, end: int | None) -> Boundary:
        """Return what this rank sees."""
        step, returned, is_waiting = self.profile.steps, [], False
        aborts = self._take_aborts()
        if self.turns is not None:
            with self.profile.stage("tools"):
                returned, is_waiting = self.turns.take_returned(step), self.turns.must_wait
        return Boundary(
            step=step,
            is_left=bool(self._lines or self._todo),
            aborts=aborts,
            returned=tuple(returned),
            is_waiting=is_waiting,
            steps=self._poll_every if end is None else min(self._poll_every, end - step),
            is_saved=self.is_save_due(step),
        )

    def _take_aborts(self) -> frozenset[int]:
        found: set[int] = set()
        while self.aborts:
            is_meant = self.aborts.popleft()
            flights = (*map(self._lines.__getitem__, self._lines), *self._todo)
            found.update(flight.index for flight in flights if is_meant(flight.record))
        return frozenset(found)

    def _act(self, boundary: Boundary) -> None:
        """Do what was agreed on: save, end and continue records, decode up to the next boundary."""
        if boundary.is_saved:
            self.on_save()
        if boundary.aborts:
            self._abort(boundary.aborts)
        self._take_back([back for back in boundary.returned if back.flight.index not in boundary.aborts])
        if boundary.steps:
            self._advance(boundary)

    def _advance(self, boundary: Boundary) -> None:
        """Load, admit, and decode up to the next boundary, or wait for tools."""
        if self.turns is not None and boundary.is_waiting:
            if not boundary.aborts:  # else the next boundary says whether any other turn is waited for
                with self.profile.stage("tools"):
                    self.turns.wait()
            return
        self._load()
        if self._can_admit():
            self._admit()
        if self._live:
            self._decode(boundary.steps)
            self._poll()
            self.on_poll()
        elif self._lines and self.turns is not None and not self.ended:
            with self.profile.stage("tools"):
                self.turns.wait()

    def unfinished(self) -> list[Ended]:
        """Return the records that have not ended, as they stand; with those that were never loaded."""
        lines, running = list(self._lines), set(self._live.lines.tolist())
        cut = []
        for line, tape in zip(lines, self.read(lines), strict=True):
            status = Status.PENDING if line in self._lines.queued else Status.WAITING
            status = Status.RUNNING if line in running else status
            cut.append(Ended(self._lines[line].grow(len(tape)), tape, status, None))
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

    def _abort(self, indices: frozenset[int]) -> None:
        """End records as they stand."""
        lines = self._lines.select(lambda flight: flight.index in indices)
        self._finish(lines, Status.TRUNCATED, Reason.ABORTED)
        todo, self._todo = self._todo, deque()
        for flight in todo:
            if flight.index not in indices:
                self._todo.append(flight)
                continue
            tape = flight.begun or prompt_tape(flight.prompt_ids)
            self.ended.append(Ended(flight, tape, Status.TRUNCATED, Reason.ABORTED))
            self.profile.records += 1

    def _finish(self, lines: Sequence[int], status: Status, reason: Reason) -> None:
        if not lines:
            return
        tapes = self.read(lines)
        for line, tape in zip(lines, tapes, strict=True):  # first: an interrupt must not make it another end
            if self.turns is not None:
                self.turns.cancel(self._lines[line])
            self._live.discard(line)
            self._lines.put(line, self._lines[line].grow(len(tape)))
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
            self._end_turns(only=(t.COMPLETED, t.TRUNCATED, t.FAILED))
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
            count = min(self._lines.num_free, len(self._todo))
            if not count:
                return
            new = [self._todo.popleft() for _ in range(count)]
            lines = self._lines.load(new)
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
                    self._lines.put(line, flight.replace(is_waiting=False))
                    self._end_turn(line, flight.begun, t.WAITING)

    def _begin(self, flights: Sequence[Flight]) -> Begun:
        tapes = [flight.begun or prompt_tape(flight.prompt_ids) for flight in flights]
        turns, waiting = zip(*((flight.num_turns, flight.is_waiting) for flight in flights), strict=True)
        return begin(tapes, turns, waiting, self.state)

    def _can_admit(self) -> bool:
        free, queued = self.state.num_rows - len(self._live), len(self._lines.queued)
        if not free or not queued or (self._static and self._live):
            return False
        others = len(self._todo) + queued - free
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
            self._lines.unqueue(line for _, line, _ in placed)
            tiers = self.plan.admit(placed)
        with self.profile.stage("prefill"):
            self.state = fill_rows(self.steps, self.state, tiers, self.profile)

    def _decode(self, most: int) -> None:
        """Run the decode steps up to the next boundary, at most so many."""
        length, count = self._live.longest, min(most, self._live.most_left)
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
        failed = self._end_turns(only=(t.COMPLETED, t.TRUNCATED, t.WAITING, t.FAILED))
        self.plan.forget(failed)
        if self.profile.tokens - before < count - len(failed):
            raise RuntimeError("a row did not decode: what is cached of its record is not what the plan says")

    def _end_turns(self, only: tuple[int, ...]) -> list[int]:
        """End the turns of some statuses; return the rows in which one failed."""
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
                    self._end_turn(line, tape, status, row)
                self._live.free(row)  # not before: what was not closed when an exception came is salvaged
                if line in self._lines:
                    self.plan.end_turn(row, line, tape.tokens)
        with self.profile.stage("park"):
            self._park([Placed(row, line, length) for line, row, _, length in ended if line in self._lines])
        return [row for _, row, status, _ in ended if status == t.FAILED]

    def _park(self, waiting: list[Placed]) -> None:
        """Keep the keys and values of turns that wait for their tools, as far as the pool has room."""
        parked = self.plan.park(waiting)
        if parked:
            rows, slots, lines = map(self._tensor, zip(*parked, strict=True))
            longest = max(placed.length for placed in waiting)
            self.state = self.steps.park(self.state, rows, slots, lines, length=longest)
            self.profile.pool_peak = self.plan.slots.peak

    def _end_turn(self, line: int, tape: Tape, status: int, row: int | None = None) -> None:
        flight = self._lines[line].grow(len(tape), turns=1)
        self._lines.put(line, flight)
        if status == t.FAILED:
            error = f"the logits of token {len(tape)} are not finite, or rule out every token (row {row})"
            self._close(line, tape, Status.FAILED, Reason.NOT_FINITE, error)
        elif status == t.TRUNCATED:
            self._close(line, tape, Status.TRUNCATED, flight.limit_reason)
        elif self.turns is None:
            self._close(line, tape, Status.COMPLETED, Reason.EOS)
        elif (ending := self.turns.end_turn(flight, tape)) is not None:
            self._close(line, tape, *ending)

    def _close(self, line: int, tape: Tape, status: Status, reason: Reason, error: str | None = None) -> None:
        flight = self._lines.take(line)
        if (slot := self.plan.close(line)) is not None:
            self.state = self.steps.release(self.state, self._tensor([slot]))
        self.profile.records += 1
        # Of what followed its first tokens all but the last had to be fed.
        self.profile.least_tokens += flight.length - len(flight.start_ids) - 1
        self.ended.append(Ended(flight, tape, status, reason, error))

    def _take_back(self, returned: Sequence[Return]) -> None:
        """Append what tools said to the records that go on, and end the others."""
        for back in returned:
            line = self._lines.find(back.flight.index)
            self._lines.put(line, back.flight)
            if back.status is not None and back.reason is not None:
                self._close(line, self.read([line])[0], back.status, back.reason)
        going_on = [back for back in returned if back.status is None]
        if not going_on:
            return
        lines = [self._lines.find(back.flight.index) for back in going_on]
        for line, back in zip(lines, going_on, strict=True):
            self.plan.append(line, back.ids)
        self._lines.queued.update(lines)
        self.state = self.steps.append_tool(
            self.state,
            self._tensor(lines),
            self._pad([back.ids for back in going_on]),
            self._tensor([len(back.ids) for back in going_on]),
            self._tensor([back.flight.limit for back in going_on]),
        )

    def read(self, lines: Sequence[int]) -> list[Tape]:
        """Return what some lines hold."""
        return read_tapes(self.state.records, self._tensor(lines)) if lines else []
