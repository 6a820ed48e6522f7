"""What happens between the turns of a record: parse, run tools, join, or end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from fnroll.dialogue.chat import Chat, Segment
from fnroll.dialogue.message import Outcome, ToolCall
from fnroll.dialogue.parsers import Parser
from fnroll.dialogue.parsers.turn import Tools
from fnroll.shell.budget import Budget
from fnroll.shell.driver import Flight, Return, Tape
from fnroll.shell.log import EffectLog, turn_events
from fnroll.shell.record import Reason, Status
from fnroll.shell.result import Runner, ToolResult, TurnKey


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
        *,
        seed: int = 0,
        step: int = 0,
    ) -> None:
        self.chat, self.parser, self.schemas = chat, parser, list(schemas)
        self.runner, self.budget, self.log = runner, budget, log
        self._run = (seed, step)
        self._segments: dict[int, Segment] = {}
        self._waiting: dict[TurnKey, tuple[Flight, list[int], tuple[Outcome, ...]]] = {}

    def start(self, flight: Flight, segment: Segment | None) -> None:
        """Remember the conversation that a record's prompt is, None if only its ids are known."""
        if segment is None:
            prefix = self.chat.turn_text(flight.prompt_ids[-64:])
            segment = Segment(ids=(), text="", prefix=prefix, messages=())
        self._segments[flight.index] = segment

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
        if self.log is not None:
            self.log.write_calls(key, outcomes)
        self.runner.submit(key, outcomes)
        return None

    def take_returned(self) -> list[Return]:
        """Return the records whose tools have all answered, without waiting."""
        returned = []
        for key, results in self.runner.ready():
            turn = cast(TurnKey, key)
            flight, sampled, outcomes = self._waiting.pop(turn)
            if self.log is not None:
                self.log.write(*turn_events(turn, outcomes, results))
            returned.append(self._return(turn, flight, sampled, outcomes, results))
        return returned

    def log_ready(self) -> None:
        """Log the turns whose tools have answered and that nobody will take any more."""
        self.take_returned()

    def wait(self) -> None:
        """Wait until a record may have returned.

        Raises:
          RuntimeError: if no tool is running, for then none ever will.
        """
        if not self.runner.wait():
            raise RuntimeError("records wait for tools, but no tool is running")

    def _return(
        self,
        turn: TurnKey,
        flight: Flight,
        sampled: list[int],
        outcomes: Sequence[Outcome],
        results: Sequence[ToolResult],
    ) -> Return:
        messages, calls = [], []
        for index, (outcome, result) in enumerate(zip(outcomes, results, strict=True)):
            text, was_cut = self.budget.cut(result.text)
            flight.num_cut += was_cut
            name = outcome.name if isinstance(outcome, ToolCall) else "invalid_call"
            arguments = outcome.arguments if isinstance(outcome, ToolCall) else {}
            identity = call_id(turn.turn, index)
            calls.append({"name": name, "arguments": arguments, "id": identity})
            messages.append({"role": "tool", "name": name, "content": text, "tool_call_id": identity})
            flight.tool_calls.append(
                {
                    "turn": turn.turn,
                    "name": name,
                    "arguments": arguments,
                    "result": text,
                    "status": result.status,
                }
            )
        too_long = Return(flight, [], status=Status.TRUNCATED, reason=Reason.TOOL_OUTPUT)
        if self.chat.surely_exceeds((m["content"] for m in messages), self.budget.config.max_length):
            return too_long
        try:
            last = self._segments[flight.index]
            segment = self.chat.continue_turn(last.messages, sampled, messages, calls, rendered=last.rendered)
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
