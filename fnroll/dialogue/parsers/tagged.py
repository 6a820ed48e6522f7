"""Engine of the formats that write each argument between tags, without quotes.

Such a format cannot be read for certain: a value may hold any text, its own closing tag too. A closing tag
counts where the text after it goes on as a call does; a tag inside a sentence of the value does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import unescape
from typing import Any

from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.parsers.frame import Frame, broken, show
from fnroll.dialogue.parsers.scan import Malformed, Scan, decode_json
from fnroll.dialogue.parsers.schema import convert
from fnroll.dialogue.parsers.turn import Schemas


@dataclass(frozen=True)
class Tags:
    """One tagged format; a `Format`."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    """Markers after which reading goes on when a call is malformed."""
    call: re.Pattern[str]
    """Header of a call, with the group `name`; a group `empty` marks a call without a body."""
    parameter: re.Pattern[str]
    """Header of an argument, with the group `name` and perhaps `kind`, the type as the model states it."""
    damaged: re.Pattern[str]
    """Start of an argument whose header is damaged: it is left out, the others are kept."""
    closing: re.Pattern[str]
    """Closing tag of a value, ahead of what goes on as a call does."""
    boundary: re.Pattern[str]
    """Where a value must end that has no closing tag; the group `fresh` marks the start of another call."""
    end: re.Pattern[str]
    """End of a call."""
    line_closing: re.Pattern[str] | None = None
    """The closing tag of values on lines of their own, if the format frames values by newlines."""
    line_boundary: re.Pattern[str] | None = None
    """The boundary of such values."""
    loose: re.Pattern[str] | None = None
    """What must match where a call begins without its outer tag, to tell it from a mention."""
    is_escaped: bool = False
    """Whether names are escaped as in XML."""
    is_quoted: bool = False

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Iterable[Frame] | None:
        """Read one call; see `Format.read`."""
        if self.loose and opener != self.openers[0] and not self._is_loose_call(scan, start):
            return None
        try:
            name, at, is_empty = self._header(scan, start)
            parameters = schemas.get(name, {})
            arguments, end = ({}, at) if is_empty else self._arguments(scan, at, name, parameters)
        except Malformed as error:
            return (broken(scan, start, error, self.closers, self.openers[:1]),)
        return (Frame(end, (ToolCall(name, arguments, (start, end)),)),)

    def _is_loose_call(self, scan: Scan, start: int) -> bool:
        line = scan.text.rfind("\n", max(0, start - 80), start) + 1
        is_first = not scan.text[max(line, start - 80) : start].strip()
        return is_first and self.loose is not None and scan.match(self.loose, start) is not None

    def _header(self, scan: Scan, start: int) -> tuple[str, int, bool]:
        head = scan.match(self.call, start)
        name = self._name(head) if head else ""
        if head is None or not name:
            raise Malformed("its name is missing or not written as the format asks", start)
        return name, head.end(), bool(head.groupdict().get("empty"))

    def _name(self, head: re.Match[str]) -> str:
        name = head["name"].strip()
        return unescape(name) if self.is_escaped else name

    def _arguments(
        self, scan: Scan, at: int, name: str, parameters: Mapping[str, Any]
    ) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        while True:
            at = scan.skip_space(at)
            if end := scan.match(self.end, at):
                return arguments, end.end()
            head = scan.match(self.parameter, at) or scan.match(self.damaged, at)
            if head is None:
                raise Malformed(
                    f"the call of {show(name)} is not closed or holds text outside its arguments", at
                )
            value, at = self._value(scan, head.end(), name)
            if head.re is self.damaged:
                continue
            key = self._name(head)
            if key in arguments:
                raise Malformed(f"the call of {show(name)} gives {show(key)} twice", at)
            arguments[key] = _typed(value, head.groupdict().get("kind"), parameters, key)

    def _value(self, scan: Scan, begin: int, name: str) -> tuple[str, int]:
        """The text of a value that begins at `begin`, and the position after its closing tag."""
        closing, boundary = self.closing, self.boundary
        if self.line_closing and self.line_boundary and scan.is_at("\n", begin):
            closing, boundary = self.line_closing, self.line_boundary
        stop, close = scan.search(boundary, begin), scan.search(closing, begin)
        last = stop.start() if stop else scan.limit
        if close and close.start() < last:
            return self._unframe(scan.text[begin : close.start()]), close.end()
        if stop is None or stop.groupdict().get("fresh"):
            raise Malformed(f"an argument of {show(name)} is not closed", begin, last if stop else None)
        return self._unframe(scan.text[begin:last]), last

    def _unframe(self, value: str) -> str:
        """Without the newline that the format puts on each side; any other white space is the model's."""
        if self.line_boundary is None:
            return value
        return value.removeprefix("\n").removesuffix("\n")


def _typed(value: str, kind: str | None, parameters: Mapping[str, Any], key: str) -> Any:
    """The value by the type that the model states, or else by the schema."""
    if kind in ("true", "string"):
        return value
    if kind is not None:
        try:
            return decode_json(value)
        except Malformed:
            pass
    return convert(value, parameters, key)
