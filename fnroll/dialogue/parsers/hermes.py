"""JSON in tags: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen 2.5, Qwen 3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fnroll.dialogue.parsers.frame import Frame, broken, call_from_json, closed
from fnroll.dialogue.parsers.scan import Malformed, Scan, read_json
from fnroll.dialogue.parsers.turn import Schemas, TurnParser

OPENER, CLOSER = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class TaggedJson:
    """One JSON call between a pair of tags."""

    openers: tuple[str, ...] = (OPENER,)
    is_quoted: bool = True

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Iterable[Frame] | None:
        """Read one call; see `Format.read`."""
        try:
            value, at = read_json(scan, scan.skip_space(start + len(opener)))
            end = closed(scan, at, CLOSER, self.openers)
        except Malformed as error:
            return (broken(scan, start, error, (CLOSER,), self.openers),)
        return (Frame(end, (call_from_json(value, (start, end)),)),)


HERMES = TurnParser(
    formats=(TaggedJson(),),
    stops=("<|im_end|>", "<|endoftext|>"),
    heads=("<|im_start|>",),
)
"""Parser of Hermes, Qwen 2.5, Qwen 3 and the many models trained on their form."""
