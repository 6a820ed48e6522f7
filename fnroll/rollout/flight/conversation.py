"""What happens between the turns of a record: parse, run tools, join, or end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from fnroll.dialogue.chat import Chat
from fnroll.dialogue.message import Outcome, ToolCall
from fnroll.dialogue.parsers import Parser
from fnroll.dialogue.parsers.turn import Tools
from fnroll.records.status import Reason, Status
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.flight import Flight, Return
from fnroll.rollout.flight.join import join_turn
from fnroll.rollout.flight.tape import Tape
from fnroll.tools.log import EffectLog, ToolEvent, turn_events
from fnroll.tools.replay import recall
from fnroll.tools.result import Runner, ToolResult, TurnKey
from fnroll.tools.schedule import Schedule

# Seconds; an abort from another thread is seen after it.
_MOMENT_S = 0.05


class _Asked(NamedTuple):
    """A turn that waits for its tools."""

    flight: Flight
    sampled: list[int]
    outcomes: tuple[Outcome, ...]


class Conversations:
    """The turns of all records in flight. The driver asks it what to do when a turn ends.

    Args:
      chat: joins turns.
      parser: reads them.
      schemas: of the tools, for the parser.
      runner: answers the calls, by running tools or from a log.
      budget: how many tokens and turns a record may take, and how much of a tool output is kept.
      log: where calls and results are written to.
      known: calls that were answered before; those that are made again are answered from here.
      schedule: before which steps turns came back in the run that is replayed.
      seed: of the run; the log tells runs apart by it and the step.
      step: of the training loop.
    """

    def __init__(
        self,
        chat: Chat,
        parser: Parser,
        schemas: Tools,
        runner: Runner,
        budget: Budget,
        log: EffectLog | None = None,
        known: Mapping[TurnKey, tuple[ToolEvent, ...]] | None = None,
        schedule: Schedule | None = None,
        *,
        seed: int = 0,
        step: int = 0,
    ) -> None:
        self.chat, self.parser, self.schemas = chat, parser, list(schemas)
        self.runner, self.budget, self.log = runner, budget, log
        self._run = (seed, step)
        self._waiting: dict[TurnKey, _Asked] = {}
        self._known = dict(known or {})
        self._schedule = schedule or Schedule({})
        self._answered: deque[tuple[TurnKey, tuple[ToolResult, ...]]] = deque()
        self._step = 0
        # Turns that a replay holds back are logged when they come back, as in the run that it repeats.
        self._unlogged: set[TurnKey] = set()

    def end_turn(self, flight: Flight, tape: Tape) -> tuple[Status, Reason] | None:
        """Say how the record ends after a turn that a stop id closed, or None if tools run first."""
        sampled = tape.tokens[flight.turn_start :]
        assert flight.segment is not None
        text = self.chat.turn_text(sampled)
        turn = self.parser.parse(text, prefix=flight.segment.prefix, tools=self.schemas)
        outcomes = self.budget.limit_calls(turn.outcomes)
        if not outcomes:
            return Status.COMPLETED, Reason.EOS
        if flight.num_turns >= self.budget.max_turns:
            return Status.TRUNCATED, Reason.MAX_TURNS
        if self.budget.left(flight.num_sampled) == 0:
            return Status.TRUNCATED, Reason.LENGTH
        if not self.budget.has_room(len(tape)):
            # Whatever the tools would say could not be read.
            return Status.TRUNCATED, Reason.TOOL_OUTPUT
        key = TurnKey(flight.prompt_id, flight.sample, flight.num_turns - 1, *self._run)
        self._waiting[key] = _Asked(flight, sampled, outcomes)
        if (results := recall(self._known, key, outcomes)) is not None:
            self._answered.append((key, results))
            return None
        if self.log is not None:
            self.log.write_calls(key, outcomes)
        self.runner.submit(key, outcomes, flight.record.metadata)
        return None

    @property
    def must_wait(self) -> bool:
        """Whether nothing may decode before more tools have answered; only with `wait_for_tools`."""
        return self.budget.config.wait_for_tools and len(self._waiting) > len(self._answered)

    def take_returned(self, step: int) -> list[Return]:
        """Return the records whose tools have all answered; none of them while one must be waited for."""
        self._step = step
        self._collect()
        if self.must_wait:
            return []
        due, self._answered = self._schedule.part(self._answered, step)
        for key, results in due:
            self._log(key, results)
        returned = [self._return(key, self._waiting.pop(key), results) for key, results in due]
        if self.budget.config.wait_for_tools:
            returned.sort(key=lambda back: back.flight.index)
        return returned

    def _collect(self) -> None:
        """Take the turns whose tools have answered from the runner, and log them."""
        for turn, results in self.runner.ready():
            key = cast(TurnKey, turn)
            self._unlogged.add(key)
            if not self._schedule.holds(key, self._step):
                self._log(key, results)
            self._answered.append((key, tuple(results)))

    def _log(self, key: TurnKey, results: Sequence[ToolResult]) -> None:
        if self.log is not None and key in self._unlogged:
            self.log.write(*turn_events(key, self._waiting[key].outcomes, results, boundary=self._step))
        self._unlogged.discard(key)

    def cancel(self, flight: Flight) -> None:
        """Forget a record that waits for its tools, and end them."""
        for key in [key for key, asked in self._waiting.items() if asked.flight.index == flight.index]:
            del self._waiting[key]
            self._answered = deque(item for item in self._answered if item[0] != key)
            self._unlogged.discard(key)
            self.runner.cancel(key)

    def log_ready(self) -> None:
        """Log the turns whose tools have answered and that nobody will take any more."""
        self._collect()
        for key, results in self._answered:
            self._log(key, results)

    def wait(self) -> None:
        """Wait until a record may have returned, or a moment, so that whoever waits can look around.

        Raises:
          RuntimeError: if no tool is running, for then none ever will.
        """
        start = time.monotonic()
        if self._answered and not self.must_wait:
            self._schedule.release(key for key, _ in self._answered)  # nothing else will come before them
            return
        if self.runner.wait(_MOMENT_S):
            return
        if time.monotonic() - start < _MOMENT_S:  # a runner without turns does not wait
            raise RuntimeError("records wait for tools, but no tool is running")

    def _return(self, turn: TurnKey, asked: _Asked, results: Sequence[ToolResult]) -> Return:
        made = [
            self._describe(turn, outcome, result)
            for outcome, result in zip(asked.outcomes, results, strict=True)
        ]
        flight = asked.flight.replace(
            tool_calls=(*asked.flight.tool_calls, *made),
            num_cut=asked.flight.num_cut + sum("truncated" in call for call in made),
        )
        too_long = Return(flight, [], Status.TRUNCATED, Reason.TOOL_OUTPUT)
        if self.chat.surely_exceeds((call["result"] for call in made), self.budget.config.max_length):
            return too_long
        try:
            segment = join_turn(self.chat, flight, turn.turn, asked.sampled, made)
        except ValueError:
            # The template refuses this very conversation; the others go on.
            return Return(flight, [], Status.FAILED, Reason.TOOL_ERROR)
        length = flight.length + len(segment.ids)
        limit, limit_reason = self.budget.limit(length, flight.num_sampled)
        if length >= limit:
            return too_long
        return Return(flight.go_on(segment, limit, limit_reason), list(segment.ids))

    def _describe(self, turn: TurnKey, outcome: Outcome, result: ToolResult) -> Mapping[str, Any]:
        """Return a call as a record lists it."""
        text, was_cut = self.budget.cut(result.text)
        return {
            "turn": turn.turn,
            "name": outcome.name if isinstance(outcome, ToolCall) else "invalid_call",
            "arguments": outcome.arguments if isinstance(outcome, ToolCall) else {},
            "result": text,
            "status": result.status,
            **({} if outcome.id is None else {"id": outcome.id}),
            **({"truncated": True} if was_cut else {}),
        }
