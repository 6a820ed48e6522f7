"""A call read at its opening marker: how it becomes a call or an error, and where reading goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fnroll.dialogue.message import ParseError, Span, ToolCall
from fnroll.dialogue.parsers.scan import Malformed, Scan, decode_json

MAX_CALLS = 4096
"""Most attempts at calls that are read of one turn."""

_KINDS = {str: "a string", list: "an array", bool: "a boolean", int: "a number", float: "a number"}
_SHOWN = 60


@dataclass(frozen=True)
class Frame:
    """What stands at an opening marker: one call, or what is between or behind the calls of a row."""

    end: int
    """Where reading goes on."""
    outcomes: tuple[ToolCall | ParseError, ...]
    """The call, or the error; none for what is no attempt at a call."""
    unread: tuple[Span, ...] = ()
    """What is part of no call that could be read, in order: there a marker is no data."""
    is_whole: bool = False
    """Whether it stands in place of the frames that were read before it at the same marker."""


def show(text: str) -> str:
    """Quote a piece of the model's text for an error message, shortened and always encodable."""
    short = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return '"' + short.encode("utf-8", "replace").decode("utf-8") + '"'


def call_or_error(name: Any, arguments: Any, span: Span, id: Any = None) -> ToolCall | ParseError:
    """Check a call's name and arguments.

    Args:
      name: must be a non-empty string.
      arguments: an object, or a string that decodes to one.
      span: of the call.
      id: as the model wrote it; what is no string, or empty, is none.
    """
    id = call_id(id)
    if not isinstance(name, str) or not name.strip():
        return failure("its name is missing or is not a string", span, id)
    if isinstance(arguments, str):
        try:
            arguments = decode_json(arguments)
        except Malformed as error:
            return failure(f"the arguments of {show(name)} are a string, and {error.text}", span, id)
    if not isinstance(arguments, dict):
        kind = _KINDS.get(type(arguments), "null")
        return failure(f"the arguments of {show(name)} must be an object, not {kind}", span, id)
    return ToolCall(name, arguments, span, id)


def call_from_json(value: Any, span: Span) -> ToolCall | ParseError:
    """Check a decoded `{"name": ..., "arguments": {...}}`; `parameters` is the same as `arguments`."""
    if not isinstance(value, dict):
        return failure('it must be one JSON object with "name" and "arguments"', span)
    for key in ("arguments", "parameters"):
        if key in value:
            return call_or_error(value.get("name"), value[key], span, value.get("id"))
    unknown = [key for key in value if key not in ("name", "type", "id")]
    if unknown:
        # Running the tool with no arguments would hide what the model wrote under another key.
        return failure(f'it has {show(unknown[0])} instead of "arguments"', span, call_id(value.get("id")))
    return call_or_error(value.get("name"), {}, span, value.get("id"))


def call_id(value: Any) -> str | None:
    """The id of a call, if what stands in its place is one."""
    return value if isinstance(value, str) and value.strip() else None


def failure(reason: str, span: Span, id: str | None = None) -> ParseError:
    """The error of one call: `reason` completes the sentence."""
    return ParseError(f"The tool call could not be read: {reason}.", span, id)


def flooded(begin: int, end: int) -> ParseError:
    """The error of all that stands behind the most calls that a turn may make."""
    return failure(
        f"a turn may make at most {MAX_CALLS} calls, and the rest of it was not read", (begin, end)
    )


def broken(
    scan: Scan,
    start: int,
    error: Malformed,
    closers: Sequence[str],
    openers: Sequence[str],
    id: str | None = None,
) -> Frame:
    """The frame of a malformed call.

    It ends with the first closing marker after the place where reading stopped, but never reaches into the
    next call: the good calls of a turn survive a bad one.
    """
    at = max(error.at, start + 1)
    # A string that was not closed may have swallowed the next call, and what stands before it.
    is_torn = bool(openers) and scan.first(tuple(openers), start + 1)[0] < at
    end = error.end
    if end is None:
        fresh, _ = scan.first(tuple(openers), at)
        close, marker = scan.first(tuple(closers), at)
        end = close + len(marker) if close < fresh else fresh
    unread = ((start if is_torn else at, end),)
    return Frame(end, (failure(error.text, (start, end), id),), unread)


def closed(scan: Scan, at: int, closer: str, openers: Sequence[str]) -> int:
    """Where a call ends whose JSON ends at `at`.

    A missing closing marker is accepted, because the JSON is complete; text before the marker is not.

    Raises:
      Malformed: there is text between the JSON and the closing marker.
    """
    after = scan.skip_space(at)
    if scan.is_at(closer, after):
        return after + len(closer)
    close = scan.find(closer, after)
    if close == -1 or scan.first(tuple(openers), at)[0] < close:
        return at
    raise Malformed("there is text after its JSON", at)
