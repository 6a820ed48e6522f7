"""Mistral: `[TOOL_CALLS]` before a JSON array (v3), or before each `NAME[ARGS]{...}` (v11 and later)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fnroll.dialogue.parsers.frame import Frame, broken, call_or_error
from fnroll.dialogue.parsers.scan import MAX_NAME, Malformed, Scan, read_json
from fnroll.dialogue.parsers.series import read_series
from fnroll.dialogue.parsers.turn import THINK, Schemas, TurnParser

_TEXT = rf"[^\[{{]{{0,{MAX_NAME}}}+"
_HEADER = re.compile(rf"(?P<name>{_TEXT})(?:\[CALL_ID\](?P<id>{_TEXT}))?(?P<mark>\[ARGS\])?")
_OPENERS = ("[TOOL_CALLS]",)


@dataclass(frozen=True)
class MistralCalls:
    """The calls after one `[TOOL_CALLS]`."""

    openers: tuple[str, ...] = _OPENERS
    is_quoted: bool = True

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Iterable[Frame] | None:
        """Read one call or one array of calls; see `Format.read`."""
        at = scan.skip_space(start + len(opener))
        if scan.is_at("[", at) and not scan.is_at(opener, at):
            return read_series(scan, start, at + 1, ",", "]")
        if scan.is_at("{", at):
            return read_series(scan, start, at, ",")
        return (_read_named(scan, start, at),)


def _read_named(scan: Scan, start: int, at: int) -> Frame:
    """Read the call whose name begins at `at`."""
    name, identity = "", None
    try:
        if header := scan.match(_HEADER, at):
            name, identity = header["name"].strip(), (header["id"] or "").strip() or None
            at = scan.skip_space(header.end())
        if not header or not name or not (header["mark"] or scan.is_at("{", at)):
            raise Malformed("there is no name with arguments after [TOOL_CALLS]", at)
        arguments, end = read_json(scan, at)
    except Malformed as error:
        return broken(scan, start, error, (), _OPENERS, identity)
    return Frame(end, (call_or_error(name, arguments, (start, end), identity),))


MISTRAL = TurnParser(
    formats=(MistralCalls(),),
    stops=("</s>",),
    heads=("[/INST]",),
    thoughts=(("[THINK]", "[/THINK]"), THINK),
)
"""Parser of Mistral models from v3 on, Magistral, Ministral and Devstral."""
