"""Mistral: `[TOOL_CALLS]` before a JSON array (v3), or before each `NAME[ARGS]{...}` (v11 and later)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fnroll.dialogue.parsers.frame import Frame, broken, call_or_error
from fnroll.dialogue.parsers.scan import Malformed, Scan, read_json
from fnroll.dialogue.parsers.series import read_series
from fnroll.dialogue.parsers.turn import THINK, Schemas, TurnParser

_HEADER = re.compile(r"(?P<name>[^\[{]+)(?:\[CALL_ID\](?P<id>[^\[{]*))?(?:\[ARGS\])?\s*+(?=\{)")


@dataclass(frozen=True)
class MistralCalls:
    """The calls after one `[TOOL_CALLS]`."""

    openers: tuple[str, ...] = ("[TOOL_CALLS]",)
    is_quoted: bool = True

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Frame | None:
        """Read one call or one array of calls; see `Format.read`."""
        at = scan.skip_space(start + len(opener))
        if scan.is_at("[", at) and not scan.is_at(opener, at):
            return read_series(scan, start, at + 1, ",", "]")
        if scan.is_at("{", at):
            return read_series(scan, start, at, ",")
        header = scan.match(_HEADER, at)
        identity = (header["id"] or "").strip() or None if header else None
        try:
            if header is None:
                raise Malformed("there is no name with arguments after [TOOL_CALLS]", at)
            arguments, end = read_json(scan, header.end())
        except Malformed as error:
            return broken(scan, start, error, (), self.openers, identity)
        return Frame(end, (call_or_error(header["name"].strip(), arguments, (start, end), identity),))


MISTRAL = TurnParser(
    formats=(MistralCalls(),),
    stops=("</s>",),
    heads=("[/INST]",),
    thoughts=(("[THINK]", "[/THINK]"), THINK),
)
"""Parser of Mistral models from v3 on, Magistral, Ministral and Devstral."""
