"""Forward search in a turn, and JSON read from the middle of it, both in linear time.

A pattern looks at no more than `MAX_NAME` characters of a name and as much white space: what an attempt at a
call costs is then bounded, however many attempts a text holds and whatever stands behind them.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from fnroll.dialogue.depth import TOO_DEEP, is_deep

MAX_NAME = 256
"""Longest name of a tool or an argument in characters, where no quotes of JSON hold it."""

GAP = rf"\s{{0,{MAX_NAME}}}+"
"""White space inside the markup of a call, for a pattern."""

_SPACE = re.compile(r"\s*+")
_FIRST_WINDOW = 256
# A literal, number or escape cut by the end of a window is reported within this many characters of it.
_CUT_MARGIN = 16


class Malformed(Exception):
    """A call that cannot be read."""

    def __init__(self, text: str, at: int, end: int | None = None) -> None:
        """Say what is wrong.

        Args:
          text: completes the sentence "The tool call could not be read: ...".
          at: where reading stopped.
          end: where the call ends, if that is known.
        """
        super().__init__(text)
        self.text = text
        self.at = at
        self.end = end


class Scan:
    """Forward searches in one text up to a limit.

    Each result is remembered until the search position passes it. A text with thousands of openers and
    no closer is then searched for the closer once, not once per opener.
    """

    def __init__(self, text: str, limit: int | None = None) -> None:
        self.text = text
        self.limit = len(text) if limit is None else limit
        self._found: dict[str, tuple[int, int]] = {}
        self._matched: dict[tuple[re.Pattern[str], int], tuple[int, re.Match[str] | None]] = {}

    def within(self, limit: int) -> Scan:
        """The same text read up to `limit`, with the same memory."""
        narrowed = Scan(self.text, min(limit, self.limit))
        narrowed._found, narrowed._matched = self._found, self._matched
        return narrowed

    def find(self, marker: str, start: int) -> int:
        """Position of the first `marker` at or after `start` that ends before the limit, or -1."""
        asked, at = self._found.get(marker, (start + 1, -1))
        if start < asked or -1 < at < start:
            at = self.text.find(marker, start)
            self._found[marker] = (start, at)
        return at if at != -1 and at + len(marker) <= self.limit else -1

    def first(self, markers: tuple[str, ...], start: int) -> tuple[int, str]:
        """The earliest of several markers, the longest of those at one position; `(limit, "")` if none."""
        hits = [(at, -len(m), m) for m in markers if (at := self.find(m, start)) != -1]
        at, _, marker = min(hits, default=(self.limit, 0, ""))
        return at, marker

    def search(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """First match of `pattern` at or after `start`; its width must be bounded."""
        key = (pattern, self.limit)
        asked, match = self._matched.get(key, (start + 1, None))
        if start < asked or (match is not None and match.start() < start):
            match = pattern.search(self.text, start, self.limit)
            self._matched[key] = (start, match)
        return match

    def match(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """Match of `pattern` exactly at `start`; its width must be bounded."""
        return pattern.match(self.text, start, self.limit)

    def is_at(self, marker: str, at: int) -> bool:
        """Whether `marker` stands at position `at`."""
        return self.text.startswith(marker, at, self.limit)

    def skip_space(self, at: int) -> int:
        """Position of the first character at or after `at` that is not white space."""
        match = _SPACE.match(self.text, at, self.limit)
        return match.end() if match else at


def read_json(scan: Scan, start: int) -> tuple[Any, int]:
    """Read one strict JSON value.

    Args:
      scan: the turn.
      start: position of the value's first character.

    Returns:
      The value and the position after it.

    Raises:
      Malformed: the text at `start` is no JSON value, has a duplicate key, `NaN`, or is nested too deeply.
    """
    width = _FIRST_WINDOW
    # The decoder's errors count lines from the start of their document, so a window keeps them cheap.
    while True:
        window = scan.text[start : min(start + width, scan.limit)]
        try:
            value, used = _STRICT.raw_decode(window)
        except json.JSONDecodeError as error:
            if start + width >= scan.limit or not _is_cut(error, len(window)):
                reason = f"it is not valid JSON ({error.msg} at character {error.pos + 1})"
                raise Malformed(reason, start + error.pos) from None
            width *= 2
        except RecursionError:
            raise Malformed(f"its arguments are {TOO_DEEP}", start) from None
        except ValueError as error:
            raise Malformed(f"it is not valid JSON ({error})", start + _loose_length(window)) from None
        else:
            if is_deep(value):
                raise Malformed(f"its arguments are {TOO_DEEP}", start + used)
            return value, start + used


def decode_json(text: str) -> Any:
    """Decode a text that is one strict JSON value, or raise `Malformed`."""
    scan = Scan(text)
    value, at = read_json(scan, scan.skip_space(0))
    if scan.skip_space(at) != scan.limit:
        raise Malformed("there is text after its JSON value", at)
    return value


def _is_cut(error: json.JSONDecodeError, width: int) -> bool:
    return error.msg.startswith("Unterminated") or error.pos >= width - _CUT_MARGIN


def _loose_length(window: str) -> int:
    """Length of a value that is JSON but for duplicate keys, `NaN` and the size of its integers."""
    try:
        return _LOOSE.raw_decode(window)[1]
    except (ValueError, RecursionError):
        return 0


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has the same key twice")
    return result


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
_LOOSE = json.JSONDecoder(parse_int=str)
