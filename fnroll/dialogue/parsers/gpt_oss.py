"""Harmony, the format of gpt-oss: a turn is a row of messages, each with a channel and maybe a recipient."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fnroll.dialogue.message import ParsedTurn, ParseError, ToolCall
from fnroll.dialogue.parsers.frame import MAX_CALLS, call_or_error, failure, flooded, show
from fnroll.dialogue.parsers.scan import Malformed, Scan, read_json
from fnroll.dialogue.parsers.schema import parameter_schemas
from fnroll.dialogue.parsers.turn import Schemas, Tools, end_of_turn
from fnroll.dialogue.parsers.walk import trim

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_THOUGHT = f"{_CHANNEL}analysis"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = re.compile(r"(?:^|\s)to=(?P<name>[^\s<]+)")
_CHANNEL_NAME = re.compile(r"\s*+(?P<name>\w*)")
_PEOPLE = ("assistant", "user", "all")


@dataclass
class _Turn:
    """What was read so far."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    outcomes: list[ToolCall | ParseError] = field(default_factory=list)
    count: int = 0
    """Attempts at calls."""

    def message(self) -> ParsedTurn:
        thoughts = [kept for text in self.reasoning if (kept := trim(text))]
        return ParsedTurn(
            content=trim("".join(self.content)),
            reasoning="\n".join(thoughts) or None,
            calls=tuple(outcome for outcome in self.outcomes if isinstance(outcome, ToolCall)),
            errors=tuple(outcome for outcome in self.outcomes if isinstance(outcome, ParseError)),
        )


@dataclass(frozen=True)
class HarmonyParser:
    """A parser of whole Harmony turns."""

    def parse(self, text: str, *, prefix: str, tools: Tools) -> ParsedTurn:
        """Parse one turn; see `Parser.parse`."""
        scan = Scan(text, end_of_turn(text, _ENDS))
        schemas, turn = parameter_schemas(tools), _Turn()
        # The prompt may end inside a header, or inside a message whose header it gives.
        begun = prefix[prefix.rfind(_START) + len(_START) :] if _START in prefix else ""
        if _MESSAGE in begun:
            at = _read_body(scan, 0, 0, begun[: begun.find(_MESSAGE)], schemas, turn)
        else:
            at = _read_message(scan, 0, begun, schemas, turn)
        while at < scan.limit:
            at = _read_message(scan, at, "", schemas, turn)
        return turn.message()


def _read_message(scan: Scan, start: int, begun: str, schemas: Schemas, turn: _Turn) -> int:
    """Read a header and its message; return where the next one begins."""
    begin = start + len(_START) if scan.is_at(_START, start) else start
    stop, marker = scan.first((_MESSAGE, _START, *_ENDS), begin)
    header = begun + scan.text[begin:stop]
    if marker == _MESSAGE:
        return _read_body(scan, start, stop + len(_MESSAGE), header, schemas, turn)
    end = stop if marker == _START else stop + len(marker)
    # A header without a message says nothing, unless it was going to call a tool.
    if (name := _recipient(header)) and name not in _PEOPLE:
        turn.outcomes.append(failure(f"the call of {show(name)} has no <|message|>", (start, end)))
    elif _CHANNEL not in header:
        turn.content.append(scan.text[begin:stop])
    return end


def _read_body(scan: Scan, start: int, begin: int, header: str, schemas: Schemas, turn: _Turn) -> int:
    recipient = _recipient(header)
    if recipient and recipient not in _PEOPLE:
        return _read_call(scan, start, begin, recipient, schemas, turn)
    end, after = _end_of_body(scan, begin)
    channel = header.rpartition(_CHANNEL)[2] if _CHANNEL in header else ""
    match = _CHANNEL_NAME.match(channel)
    is_thought = match is not None and match["name"] == "analysis"
    (turn.reasoning if is_thought else turn.content).append(scan.text[begin:end])
    if is_thought and after < scan.limit:
        # The rule of all families: what stands before the end of the last thought was thought too.
        turn.outcomes.clear()
    return after


def _read_call(scan: Scan, start: int, begin: int, recipient: str, schemas: Schemas, turn: _Turn) -> int:
    if turn.count == MAX_CALLS:
        if scan.find(_THOUGHT, begin) != -1:
            # Whether a thought begins there is not known; what stands before one is not run.
            turn.outcomes.clear()
        turn.outcomes.append(flooded(start, scan.limit))
        return scan.limit
    turn.count += 1
    name = recipient.removeprefix("functions.")
    try:
        if name == recipient and name not in schemas:
            raise Malformed(
                f"there is no recipient {show(name)}; a tool is addressed as functions.NAME", begin
            )
        arguments, at = read_json(scan, scan.skip_space(begin))
        end = scan.skip_space(at)
        after = next((end + len(mark) for mark in _ENDS if scan.is_at(mark, end)), end)
        if after == end < scan.limit and not scan.is_at(_START, end):
            raise Malformed("there is text after its JSON", at)
        turn.outcomes.append(call_or_error(name, arguments, (start, after)))
    except Malformed as error:
        _, after = _end_of_body(scan, error.at)
        turn.outcomes.append(failure(error.text, (start, after)))
    return after


def _end_of_body(scan: Scan, at: int) -> tuple[int, int]:
    """The end of a message and the position after its closing token.

    A closing token that no header follows is a mention of it.
    """
    while True:
        end, marker = scan.first(_ENDS, at)
        after = end + len(marker)
        if after >= scan.limit or scan.is_at(_START, after):
            return end, after
        at = after


def _recipient(header: str) -> str:
    """The recipient in the header's last channel, or else in its role."""
    role, _, channel = header.rpartition(_CHANNEL)
    found = _RECIPIENT.search(channel) or _RECIPIENT.search(role.partition(_CHANNEL)[0])
    return found["name"] if found else ""


GPT_OSS = HarmonyParser()
"""Parser of gpt-oss."""
