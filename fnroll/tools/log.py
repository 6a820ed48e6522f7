"""The effect log: every tool call and its result as a line, to be replayed without any tool."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from fnroll.dialogue.message import ParseError, ToolCall
from fnroll.tools.result import RESULT_STATUSES, ToolResult, TurnKey

LOG_FORMAT = "fnroll-effects"
LOG_VERSION = 1
_HEADER = {"format": LOG_FORMAT, "version": LOG_VERSION}

_FIELDS: dict[str, tuple[type, ...]] = {
    "prompt_id": (int, str),
    "sample": (int,),
    "turn": (int,),
    "seed": (int,),
    "step": (int,),
    "call": (int,),
    "name": (str, type(None)),
    "arguments": (dict, list, str, int, float, bool, type(None)),
    "text": (str,),
    "status": (str,),
    "seconds": (int, float),
}
_OPTIONAL = {"boundary": (int,)}
"""Fields that logs of version 0.1 do not have."""

_CALL = "call"
_COUNTS = ("sample", "turn", "seed", "step", "call")


class LogError(ValueError):
    """A log file that cannot be used; the message names the file and the line."""


@dataclass(frozen=True)
class ToolEvent:
    """One call and what came back."""

    key: TurnKey
    """The record and the turn."""
    call: int
    """The call's index in its turn."""
    name: str | None
    """The tool's name as the model wrote it; None for a part that could not be parsed."""
    arguments: Any
    """As the model wrote them; None for a part that could not be parsed."""
    result: ToolResult
    """What the model read."""
    boundary: int | None = field(default=None, compare=False)
    """Decode steps that its call had taken when the turn came back; None in logs that do not say."""


def turn_events(
    key: TurnKey,
    calls: Sequence[ToolCall | ParseError],
    results: Sequence[ToolResult],
    boundary: int | None = None,
) -> tuple[ToolEvent, ...]:
    """Pair the calls of a turn with their results.

    Args:
      key: the record and the turn.
      calls: as submitted.
      results: as they came back, in the order of the calls.
      boundary: decode steps taken when they did.

    Returns:
      One event per call.

    Raises:
      ValueError: the numbers differ.
    """
    events = []
    for index, (call, result) in enumerate(zip(calls, results, strict=True)):
        name, arguments = (call.name, call.arguments) if isinstance(call, ToolCall) else (None, None)
        events.append(ToolEvent(TurnKey(*key), index, name, arguments, result, boundary))
    return tuple(events)


class EffectLog:
    """An append-only file of tool events, one JSON object a line, whole lines only."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        """Wrap an open file; use `EffectLog.open`.

        Args:
          file: unbuffered, at its end.
          path: for messages.
        """
        self._file = file
        self.path = path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> EffectLog:
        """Open a log for writing; an existing one is continued.

        A last line without its end, which a crash left behind, is cut off.

        Args:
          path: the file; its folder must exist.

        Returns:
          The log.

        Raises:
          LogError: the file is something else or damaged.
        """
        path = Path(path)
        if path.exists():
            read_log(path)
        file = open(path, "a+b", buffering=0)  # noqa: SIM115
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        log = cls(file, path)
        if whole == 0:
            log._append(_HEADER)
        return log

    def write(self, *events: ToolEvent) -> None:
        """Append events, the whole group by one write, and hand them to the operating system at once.

        Args:
          events: best all events of a turn together, so that a crash keeps either all or none of them.
        """
        self._append(*map(_to_line, events))

    def write_calls(self, key: TurnKey, calls: Sequence[ToolCall | ParseError]) -> None:
        """Append the calls of a turn before they run: what a crash leaves of a turn that got no results.

        Args:
          key: the record and the turn.
          calls: as submitted.
        """
        unanswered = [ToolResult("", "ok", 0.0)] * len(calls)
        for event in turn_events(key, calls, unanswered):
            line = _to_line(event)
            kept = {name: line[name] for name in line if name not in ("text", "status", "seconds")}
            self._append({"event": _CALL, **kept})

    def _append(self, *lines: Mapping[str, Any]) -> None:
        # Escaped to ASCII: arguments may hold lone surrogates, which must come back as they were.
        data = memoryview("".join(json.dumps(line, default=repr) + "\n" for line in lines).encode())
        while data:
            data = data[self._file.write(data) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EffectLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_log(path: str | os.PathLike[str]) -> Mapping[TurnKey, tuple[ToolEvent, ...]]:
    """Read a log.

    A last line without its end is ignored: the writer was stopped in it. A turn that is logged twice, because
    it was run again after a crash, counts as it was logged last.

    Args:
      path: the file.

    Returns:
      The events of each turn, in the order of its calls; turns in the order in which they came back.

    Raises:
      LogError: any other damage, with the line's number.
    """
    turns: dict[TurnKey, dict[int, ToolEvent]] = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{os.fspath(path)}, line {number}"
            if not line.endswith(b"\n"):
                # A short foreign file must not pass for a torn header: a writer would cut it off.
                if number == 1 and not json.dumps(_HEADER).encode().startswith(line):
                    raise LogError(f"{where}: this is not an effect log.")
                break
            if number == 1:
                _check_header(_parse(line, where), where)
                continue
            values = _parse(line, where)
            if values.get("event") == _CALL:  # it tells people what ran; a replay needs the results
                continue
            event = _from_line(values, where)
            if event.call == 0:
                turns.pop(event.key, None)  # to the end: turns are in the order in which they came back
                turns[event.key] = {}
            calls = turns.setdefault(event.key, {})
            if event.call > len(calls):
                raise LogError(f"{where}: {place(event.key, event.call)} comes before call {len(calls)}.")
            calls[event.call] = event
    return {key: tuple(calls[index] for index in range(len(calls))) for key, calls in turns.items()}


def place(key: TurnKey, call: int) -> str:
    """Name a call in messages.

    Args:
      key: the record and the turn.
      call: the call's index.

    Returns:
      For example `prompt 7, sample 0, turn 2, call 1`.
    """
    return f"prompt {key.prompt_id!r}, sample {key.sample}, turn {key.turn}, call {call}"


def canonical(arguments: Any) -> str:
    """Write arguments so that equal ones have equal texts, NaN and the type of numbers included.

    Args:
      arguments: of a call.

    Returns:
      JSON with sorted keys.
    """
    return json.dumps(json.loads(json.dumps(arguments, default=repr)), sort_keys=True)


def _to_line(event: ToolEvent) -> dict[str, Any]:
    result = event.result
    line = {
        **event.key._asdict(),
        "call": event.call,
        "name": event.name,
        "arguments": event.arguments,
        "text": result.text,
        "status": result.status,
        "seconds": result.seconds,
        **({} if event.boundary is None else {"boundary": event.boundary}),
    }
    _check_line(line, "EffectLog.write")
    return line


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LogError(f"{where}: damaged, this is not JSON ({error}).") from error
    if not isinstance(value, dict):
        raise LogError(f"{where}: the line is a JSON {type(value).__name__}; it must be an object")
    return value


def _check_header(line: dict[str, Any], where: str) -> None:
    if line.get("format") != LOG_FORMAT:
        raise LogError(
            f"{where}: this is not an effect log; its first line must hold 'format': {LOG_FORMAT!r}."
        )
    if line.get("version") != LOG_VERSION:
        raise LogError(f"{where}: version is {line.get('version')!r}; it must be {LOG_VERSION}")


def _check_line(line: dict[str, Any], where: str) -> None:
    known = {name: kinds for name, kinds in _OPTIONAL.items() if name in line}
    for name, kinds in {**_FIELDS, **known}.items():
        value = line.get(name)
        is_number_wanted = bool not in kinds
        if name not in line or not isinstance(value, kinds) or (is_number_wanted and isinstance(value, bool)):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            shown = repr(value)[:80] if name in line else "missing"
            raise LogError(f"{where}: {name!r} is {shown}; it must be {names}")
    if line["status"] not in RESULT_STATUSES:
        raise LogError(
            f"{where}: 'status' is {line['status']!r}; it must be one of {', '.join(RESULT_STATUSES)}"
        )
    if min(line.get(name, 0) for name in (*_COUNTS, *_OPTIONAL)) < 0 or not 0 <= line["seconds"] < math.inf:
        raise LogError(f"{where}: {', '.join(map(repr, _COUNTS))} and 'seconds' must not be negative.")


def _from_line(line: dict[str, Any], where: str) -> ToolEvent:
    line = {"seed": 0, "step": 0, **line}
    _check_line(line, where)
    key = TurnKey(line["prompt_id"], line["sample"], line["turn"], line["seed"], line["step"])
    result = ToolResult(line["text"], line["status"], float(line["seconds"]))
    return ToolEvent(key, line["call"], line["name"], line["arguments"], result, line.get("boundary"))
