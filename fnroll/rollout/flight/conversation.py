"""What happens between the turns of a record: parse, run tools, join, or end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

from fnroll.dialogue.chat import Chat, Segment
from fnroll.dialogue.message import Outcome, ToolCall
from fnroll.dialogue.parsers import Parser
from fnroll.dialogue.parsers.turn import Tools
from fnroll.records.record import Reason, Status
from fnroll.records.turns import find_turns
from fnroll.rollout.flight.budget import Budget
from fnroll.rollout.flight.flight import Flight, Return
from fnroll.rollout.flight.tape import Tape
from fnroll.tools.log import EffectLog, ToolEvent, turn_events
from fnroll.tools.replay import recall
from fnroll.tools.result import Runner, ToolResult, TurnKey

# Seconds; an abort from another thread is seen after it.
_MOMENT_S = 0.05


def call_id(turn: int, index: int) -> str:
    """Return the id of a call: nine letters and digits, which the strictest chat templates ask for."""
    return f"c{turn % 10**4:04d}{index % 10**4:04d}"


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
        *,
        seed: int = 0,
        step: int = 0,
    ) -> None:
        self.chat, self.parser, self.schemas = chat, parser, list(schemas)
        self.runner, self.budget, self.log = runner, budget, log
        self._run = (seed, step)
        self._segments: dict[int, Segment] = {}
        self._waiting: dict[TurnKey, tuple[Flight, list[int], tuple[Outcome, ...]]] = {}
        self._known = dict(known or {})
        self._answered: deque[tuple[TurnKey, tuple[ToolResult, ...]]] = deque()

    def start(self, flight: Flight, segment: Segment | None) -> None:
        """Remember the conversation that a record's prompt is, None if only its ids are known."""
        if segment is None:
            prefix = self.chat.turn_text(flight.prompt_ids[-64:])
            segment = Segment(ids=(), text="", prefix=prefix, messages=())
        self._segments[flight.index] = segment
        if flight.begun is not None:
            self._restore(flight, flight.begun)

    def _restore(self, flight: Flight, tape: Tape) -> None:
        """Join the turns that a record had when it was cut, as they were joined then."""
        spans = find_turns(tape.loss_mask)
        flight.is_exact = True
        for turn, (start, stop) in enumerate(spans):
            end = spans[turn + 1][0] if turn + 1 < len(spans) else len(tape.tokens)
            if stop == end:
                return
            made = [call for call in flight.tool_calls if call["turn"] == turn]
            try:
                segment = self._join(flight, turn, tape.tokens[start:stop], made)
            except ValueError as error:
                raise ValueError(f"{flight.record.label} cannot be gone on with: {error}") from error
            if list(segment.ids) != tape.tokens[stop:end]:
                raise ValueError(
                    f"{flight.record.label}: its tokens {stop} to {end}, after turn {turn}, are not what the "
                    f"chat template writes for the tool calls of that turn; it was begun with another "
                    f"template, tokenizer or tools, or changed since"
                )
            flight.is_exact &= segment.is_exact
            self._segments[flight.index] = segment

    def _join(
        self, flight: Flight, turn: int, sampled: Sequence[int], made: Sequence[Mapping[str, Any]]
    ) -> Segment:
        """Return what stands between a turn and the next one, given its calls as a record lists them."""
        messages, calls = [], []
        for index, call in enumerate(made):
            name, identity = call["name"], call_id(turn, index)
            calls.append({"name": name, "arguments": call["arguments"], "id": identity})
            messages.append(
                {"role": "tool", "name": name, "content": call["result"], "tool_call_id": identity}
            )
        last = self._segments[flight.index]
        return self.chat.continue_turn(last.messages, sampled, messages, calls, rendered=last.rendered)

    def end_turn(self, flight: Flight, tape: Tape) -> tuple[Status, Reason] | None:
        """Say how the record ends after a turn that a stop id closed, or None if tools run first."""
        sampled = tape.tokens[flight.turn_start :]
        prefix = self._segments[flight.index].prefix
        message = self.parser.parse(self.chat.turn_text(sampled), prefix=prefix, tools=self.schemas)
        outcomes = self.budget.limit_calls(message.outcomes)
        if not outcomes:
            return Status.COMPLETED, Reason.EOS
        if flight.num_turns >= self.budget.max_turns:
            return Status.TRUNCATED, Reason.MAX_TURNS
        if self.budget.left(flight.num_sampled) == 0:
            return Status.TRUNCATED, Reason.LENGTH
        if not self.budget.has_room(len(tape.tokens)):
            # Whatever the tools would say could not be read.
            return Status.TRUNCATED, Reason.TOOL_OUTPUT
        key = TurnKey(flight.prompt_id, flight.sample, flight.num_turns - 1, *self._run)
        self._waiting[key] = (flight, sampled, outcomes)
        if (results := recall(self._known, key, outcomes)) is not None:
            self._answered.append((key, results))
            return None
        if self.log is not None:
            self.log.write_calls(key, outcomes)
        self.runner.submit(key, outcomes)
        return None

    @property
    def must_wait(self) -> bool:
        """Whether nothing may decode before more tools have answered; only with `wait_for_tools`."""
        return self.budget.config.wait_for_tools and len(self._waiting) > len(self._answered)

    def take_returned(self) -> list[Return]:
        """Return the records whose tools have all answered; none of them while one must be waited for."""
        self._collect()
        if self.must_wait:
            return []
        answered, self._answered = self._answered, deque()
        returned = [self._return(key, *self._waiting.pop(key), results) for key, results in answered]
        if self.budget.config.wait_for_tools:
            returned.sort(key=lambda back: back.flight.index)
        return returned

    def _collect(self) -> None:
        """Take the turns whose tools have answered from the runner, and log them."""
        for turn, results in self.runner.ready():
            key = cast(TurnKey, turn)
            if self.log is not None:
                self.log.write(*turn_events(key, self._waiting[key][2], results))
            self._answered.append((key, tuple(results)))

    def cancel(self, flight: Flight) -> None:
        """Forget a record that waits for its tools, and end them."""
        for key in [key for key, (other, *_) in self._waiting.items() if other is flight]:
            del self._waiting[key]
            self._answered = deque(item for item in self._answered if item[0] != key)
            self.runner.cancel(key)

    def log_ready(self) -> None:
        """Log the turns whose tools have answered and that nobody will take any more."""
        self._collect()

    def wait(self) -> None:
        """Wait until a record may have returned, or a moment, so that whoever waits can look around.

        Raises:
          RuntimeError: if no tool is running, for then none ever will.
        """
        start = time.monotonic()
        if (self._answered and not self.must_wait) or self.runner.wait(_MOMENT_S):
            return
        if time.monotonic() - start < _MOMENT_S:  # a runner without turns does not wait
            raise RuntimeError("records wait for tools, but no tool is running")

    def _return(
        self,
        turn: TurnKey,
        flight: Flight,
        sampled: list[int],
        outcomes: Sequence[Outcome],
        results: Sequence[ToolResult],
    ) -> Return:
        made: list[Mapping[str, Any]] = []
        for outcome, result in zip(outcomes, results, strict=True):
            text, was_cut = self.budget.cut(result.text)
            flight.num_cut += was_cut
            made.append(
                {
                    "turn": turn.turn,
                    "name": outcome.name if isinstance(outcome, ToolCall) else "invalid_call",
                    "arguments": outcome.arguments if isinstance(outcome, ToolCall) else {},
                    "result": text,
                    "status": result.status,
                    **({"truncated": True} if was_cut else {}),
                }
            )
        flight.tool_calls.extend(made)
        too_long = Return(flight, [], status=Status.TRUNCATED, reason=Reason.TOOL_OUTPUT)
        if self.chat.surely_exceeds((call["result"] for call in made), self.budget.config.max_length):
            return too_long
        try:
            segment = self._join(flight, turn.turn, sampled, made)
        except ValueError:
            # The template refuses this very conversation; the others go on.
            return Return(flight, [], status=Status.FAILED, reason=Reason.TOOL_ERROR)
        length = flight.length + len(segment.ids)
        limit, limit_reason = self.budget.limit(length, flight.num_sampled)
        if length >= limit:
            return too_long
        flight.is_exact &= segment.is_exact
        self._segments[flight.index] = segment
        return Return(flight, list(segment.ids), limit, limit_reason)
