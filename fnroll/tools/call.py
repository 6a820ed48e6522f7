"""A tool call on its way, and the turn that it belongs to."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fnroll.dialogue.context import ToolContext
from fnroll.dialogue.output import clean_text, describe_error
from fnroll.dialogue.tool import BoundCall, ToolError
from fnroll.tools.loop import BackgroundLoop
from fnroll.tools.result import ToolResult, turn_key


@dataclass(eq=False)
class Turn:
    """The calls of one turn and what they gave so far."""

    key: Hashable
    results: list[ToolResult | None]
    metadata: Any = None
    """Of the record that makes the calls."""


@dataclass(eq=False)
class Call:
    """One running or waiting call. All fields but the first three change under the runner's lock."""

    turn: Turn
    index: int
    bound: BoundCall
    before: Call | None = None
    """The call of this turn that must have ended when this one begins."""
    after: Call | None = None
    """The call that waits for this one."""
    is_begun: bool = False
    """Whether its tool was called, or is about to be."""
    is_settled: bool = False
    """Whether its result is known."""
    has_ended: bool = False
    """Whether its tool's code runs no more, which may be long after its time limit."""
    posted: float | None = None
    started: float | None = None
    loop: BackgroundLoop | None = None
    task: asyncio.Task[None] | None = None
    value: Any = None
    """The awaitable that a plain tool returned."""

    def make(self) -> Any:
        """Call the tool.

        Returns:
          Its result, or the awaitable of it.
        """
        tool, arguments = self.bound.tool, self.bound.arguments
        if tool.context is not None:
            arguments = {**arguments, tool.context: self._context()}
        return tool.function(**arguments)

    def check_key(self) -> None:
        """Make sure that the turn's key tells what the tool asks for.

        Raises:
          ValueError: the tool takes a `ToolContext`, and the key is no `TurnKey`.
        """
        if (tool := self.bound.tool).context is not None:
            try:
                turn_key(self.turn.key)
            except ValueError as error:
                raise ValueError(
                    f"ToolRunner.submit: {error}, as tool {tool.name!r} asks for a ToolContext"
                ) from error

    def explain(self, error: BaseException) -> str:
        """Write what the tool raised for the model.

        Args:
          error: any exception, also one that cannot be written.

        Returns:
          One sentence; a `ToolError` as its author wrote it.
        """
        name = self.bound.tool.name
        try:
            if isinstance(error, ToolError):
                return clean_text(f"Error: {error}")
            return f"Error: tool {name!r} raised {describe_error(error)}"
        except BaseException:
            return f"Error: tool {name!r} raised an exception that cannot be written"

    def _context(self) -> ToolContext:
        key = turn_key(self.turn.key)
        metadata = copy.deepcopy(self.turn.metadata)
        return ToolContext(key.prompt_id, key.sample, key.turn, self.index, key.seed, key.step, metadata)


def chain_serial(calls: Sequence[Call]) -> list[Call]:
    """Let the calls of each tool that asks for it wait for one another.

    Args:
      calls: of one turn, in order.

    Returns:
      Those that wait for no other.
    """
    last: dict[str, Call] = {}
    free = []
    for call in calls:
        tool = call.bound.tool
        call.before = last.get(tool.name) if tool.is_serial else None
        if call.before is None:
            free.append(call)
        else:
            call.before.after = call
        last[tool.name] = call
    return free
