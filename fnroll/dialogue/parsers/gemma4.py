"""Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.parsers.frame import Frame, broken, closed
from fnroll.dialogue.parsers.literal import GEMMA, read_mapping
from fnroll.dialogue.parsers.scan import MAX_NAME, Malformed, Scan
from fnroll.dialogue.parsers.turn import Schemas, TurnParser

_CLOSER = "<tool_call|>"
_HEADER = re.compile(rf"call:(?P<name>[^{{<\n]{{1,{MAX_NAME}}}+)(?=\{{)")


@dataclass(frozen=True)
class GemmaCall:
    """One call with bare keys and specially quoted strings."""

    openers: tuple[str, ...] = ("<|tool_call>",)
    is_quoted: bool = True

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Iterable[Frame] | None:
        """Read one call; see `Format.read`."""
        header = scan.match(_HEADER, scan.skip_space(start + len(opener)))
        try:
            if header is None:
                raise Malformed('it must begin with "call:", a name and "{"', start)
            arguments, at = read_mapping(scan, header.end(), GEMMA)
            end = closed(scan, at, _CLOSER, self.openers)
        except Malformed as error:
            return (broken(scan, start, error, (_CLOSER,), self.openers),)
        return (Frame(end, (ToolCall(header["name"].strip(), arguments, (start, end)),)),)


GEMMA4 = TurnParser(
    formats=(GemmaCall(),),
    stops=("<eos>", "<turn|>", "<|tool_response>"),
    heads=("<|turn>",),
    thoughts=(("<|channel>thought", "<channel|>"), ("<|channel>", "<channel|>")),
)
"""Parser of Gemma 4."""
