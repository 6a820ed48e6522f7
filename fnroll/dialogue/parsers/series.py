"""Engine of the formats that write JSON calls one after another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fnroll.dialogue.parsers.frame import Frame, call_from_json, failure
from fnroll.dialogue.parsers.scan import GAP, MAX_NAME, Malformed, Scan, read_json

_BODY = r'"(?:arguments|parameters)"'
CALL = re.compile(
    rf'\{{{GAP}(?:"type"{GAP}:{GAP}"function"{GAP},{GAP})?'
    rf'(?:"name"{GAP}:{GAP}"[^"\\]{{0,{MAX_NAME}}}+"{GAP},{GAP}{_BODY}|{_BODY}{GAP}:{GAP}\{{)'
)
"""What is surely the start of a call, and not of an object inside one."""


def read_series(scan: Scan, start: int, at: int, separator: str, closer: str = "") -> Iterator[Frame]:
    """Read calls from `at` on, each a JSON object.

    After a malformed one, reading goes on at the next text that surely begins a call.

    Args:
      scan: the turn.
      start: position of the marker before the first call; that call's span begins with it.
      at: position of the first call.
      separator: stands between two calls; two calls in a row need none.
      closer: ends the series, if the format closes it.
    """
    while True:
        at = end = scan.skip_space(at)
        if closer and scan.is_at(closer, at):
            break
        try:
            value, end = read_json(scan, at)
            yield Frame(end, (call_from_json(value, (start, end)),))
        except Malformed as error:
            end = _next_call(scan, max(error.at, at + 1), closer)
            yield Frame(end, (failure(error.text, (start, end)),), ((error.at, end),))
        at = scan.skip_space(end)
        if scan.is_at(separator, at):
            at += len(separator)
        elif not scan.match(CALL, at):
            break
        start = end = scan.skip_space(at)
        if start >= scan.limit:
            break
    at = scan.skip_space(end)
    is_closed = closer and scan.is_at(closer, at)
    yield Frame(at + len(closer) if is_closed else end, ())


def _next_call(scan: Scan, at: int, closer: str) -> int:
    if call := scan.search(CALL, at):
        return call.start()
    end = scan.find(closer, at) if closer else -1
    return scan.limit if end == -1 else end
