"""Answers tool calls from an effect log; no tool is ever called."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from types import TracebackType
from typing import Any

from fnroll.dialogue.message import ParseError, ToolCall
from fnroll.dialogue.output import clean_text
from fnroll.tools.log import ToolEvent, canonical, place, read_log, turn_events
from fnroll.tools.result import ToolResult, TurnKey, turn_key


class ReplayError(RuntimeError):
    """A rollout asks for something else than what its log holds."""


class ReplayRunner:
    """Has the interface of `ToolRunner`, and gives what the log holds, at once."""

    def __init__(self, log: str | os.PathLike[str] | Mapping[TurnKey, tuple[ToolEvent, ...]]) -> None:
        """Read the log.

        Args:
          log: a path, or what `read_log` gave.

        Raises:
          LogError: the file is damaged.
        """
        self._log = log if isinstance(log, Mapping) else read_log(log)
        self._finished: dict[Hashable, tuple[ToolResult, ...]] = {}

    def submit(self, key: Hashable, calls: Sequence[ToolCall | ParseError], metadata: Any = None) -> None:
        """Look up all calls of one turn.

        Args:
          key: prompt id, sample and turn, as a `TurnKey` or a tuple.
          calls: must equal those that were logged.
          metadata: ignored; no tool is called.

        Raises:
          ReplayError: a call is missing in the log or differs from it.
        """
        try:
            turn = turn_key(key)
        except ValueError as error:
            raise ReplayError(f"ReplayRunner.submit: {error}") from error
        logged = self._log.get(turn, ())
        results = []
        for index, call in enumerate(calls):
            if index >= len(logged):
                raise ReplayError(f"{place(turn, index)}: the log does not hold this call.")
            _check_same(turn, call, logged[index])
            results.append(logged[index].result)
        if len(logged) > len(calls):
            raise ReplayError(f"{place(turn, len(calls))}: the log holds this call, but the turn does not.")
        self._finished[key] = tuple(results)

    def ready(self) -> list[tuple[Hashable, tuple[ToolResult, ...]]]:
        """Take all submitted turns.

        Returns:
          Key and results of each, in the order of `submit`.
        """
        finished = list(self._finished.items())
        self._finished.clear()
        return finished

    def wait(self, timeout: float | None = None) -> bool:
        """Tell whether `ready` has something to give; never waits.

        Args:
          timeout: ignored.

        Returns:
          Whether there is something.
        """
        return bool(self._finished)

    def cancel(self, key: Hashable) -> None:
        """Forget a turn; an unknown key is ignored.

        Args:
          key: as given to `submit`.
        """
        self._finished.pop(key, None)

    def close(self) -> None:
        """Forget all turns."""
        self._finished.clear()

    def __enter__(self) -> ReplayRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def recall(
    known: Mapping[TurnKey, tuple[ToolEvent, ...]], key: TurnKey, calls: Sequence[ToolCall | ParseError]
) -> tuple[ToolResult, ...] | None:
    """Look up what the calls of a turn gave before.

    Args:
      known: what `read_log` gave.
      key: the record and the turn.
      calls: as they are made now.

    Returns:
      The results, in the order of the calls; None if not all of these very calls are known.
    """
    logged = known.get(key, ())
    if len(logged) != len(calls):
        return None
    try:
        for call, event in zip(calls, logged, strict=True):
            _check_same(key, call, event)
    except ReplayError:
        return None
    return tuple(event.result for event in logged)


def _check_same(key: TurnKey, call: ToolCall | ParseError, logged: ToolEvent) -> None:
    (event,) = turn_events(key, (call,), (logged.result,))
    where = place(key, logged.call)
    if event.name != logged.name:
        raise ReplayError(f"{where}: the rollout calls {event.name!r}, but the log holds {logged.name!r}.")
    if canonical(event.arguments) != canonical(logged.arguments):
        raise ReplayError(
            f"{where}: the rollout calls {event.name!r} with {canonical(event.arguments)[:200]}, but the log "
            f"holds {canonical(logged.arguments)[:200]}."
        )
    if isinstance(call, ParseError) and clean_text(call.text) != logged.result.text:
        raise ReplayError(
            f"{where}: the parse error is {call.text!r}, but the log holds {logged.result.text!r}."
        )
