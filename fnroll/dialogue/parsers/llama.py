"""Llama 3 (a JSON object, or several, as the whole answer) and Llama 4 (a Python list of calls)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.parsers.frame import Frame, broken, failure
from fnroll.dialogue.parsers.literal import PYTHON, read_literal, separator
from fnroll.dialogue.parsers.scan import GAP, MAX_NAME, Malformed, Scan, read_json
from fnroll.dialogue.parsers.series import CALL, read_series
from fnroll.dialogue.parsers.turn import Schemas, TurnParser

_TAG, _BEGIN, _END = "<|python_tag|>", "<|python_start|>", "<|python_end|>"
_WORD = rf"[^\W\d][\w.-]{{0,{MAX_NAME}}}+"
_NAME = re.compile(rf"(?P<name>{_WORD})\(")
_KEY = re.compile(rf"(?P<name>[^\W\d]\w{{0,{MAX_NAME}}}+){GAP}=")
_LIST = re.compile(rf"\[{GAP}{_WORD}\(")
_NEXT = re.compile(rf"\){GAP},{GAP}(?={_WORD}\()")
_CLOSED = re.compile(rf"\]{GAP}(?:<\|python_end\|>{GAP})?\Z")


@dataclass(frozen=True)
class LlamaCalls:
    """Calls at the start of an answer or after a Python tag, in JSON or in Python's form."""

    openers: tuple[str, ...] = (_TAG, _BEGIN)
    is_quoted: bool = True

    def read(self, scan: Scan, start: int, opener: str, schemas: Schemas) -> Iterable[Frame] | None:
        """Read all calls in a row; see `Format.read`."""
        at = scan.skip_space(start + len(opener))
        if scan.is_at("{", at):
            return read_series(scan, start, at, ";") if opener or _is_call(scan, at) else None
        if scan.match(_LIST, at):
            return _read_list(scan, start, at + 1)
        return (self._read_tool(scan, start, at),) if opener else None

    def _read_tool(self, scan: Scan, start: int, at: int) -> Frame:
        """A built-in tool after a Python tag: `NAME.call(...)`."""
        try:
            name, arguments, end = _read_call(scan, at)
        except Malformed as error:
            return broken(scan, start, error, (_END,), self.openers)
        call = ToolCall(name.removesuffix(".call"), arguments, (start, end))
        return Frame(_behind_end(scan, end), (call,))


def _is_call(scan: Scan, at: int) -> bool:
    """Whether a JSON object at the start of an answer is a call; an answer may be JSON too."""
    try:
        value, _ = read_json(scan, at)
    except Malformed:
        return scan.match(CALL, at) is not None
    return "name" in value and ("parameters" in value or "arguments" in value)


def _behind_end(scan: Scan, at: int) -> int:
    after = scan.skip_space(at)
    return after + len(_END) if scan.is_at(_END, after) else at


def _read_list(scan: Scan, start: int, at: int) -> Iterator[Frame]:
    """The calls of a list, from the position after its bracket."""
    while True:
        at = begin = scan.skip_space(at)
        if scan.is_at("]", at):
            yield Frame(_behind_end(scan, at + 1), ())
            return
        try:
            name, arguments, begin = _read_call(scan, at)
            yield Frame(begin, (ToolCall(name, arguments, (at, begin)),))
            at = separator(scan, begin, "]")
        except Malformed as error:
            if error.at >= scan.limit and not scan.search(_CLOSED, begin):
                # A list is one expression: cut before its bracket, none of it was said.
                cut = failure("the list of calls is not closed", (start, scan.limit))
                yield Frame(scan.limit, (cut,), ((begin, scan.limit),), is_whole=True)
                return
            at = _behind_call(scan, begin, error)
            yield Frame(at, (failure(error.text, (begin, at)),), ((min(error.at, at), at),))


def _behind_call(scan: Scan, begin: int, error: Malformed) -> int:
    """Where the list goes on after a malformed call: at the next call, or at the end of the list."""
    at = error.at if begin < error.at < scan.limit else begin + 1
    if fresh := scan.search(_NEXT, at):
        return fresh.end()
    close = scan.find("]", at)
    return scan.limit if close == -1 else close


def _read_call(scan: Scan, at: int) -> tuple[str, dict[str, Any], int]:
    head = scan.match(_NAME, at)
    if head is None:
        raise Malformed("there should be a name and a parenthesis", at)
    arguments: dict[str, Any] = {}
    at = head.end()
    while True:
        at = scan.skip_space(at)
        if scan.is_at(")", at):
            return head["name"], arguments, at + 1
        key = scan.match(_KEY, at)
        if key is None:
            raise Malformed("each argument needs a name, as in key=value", at)
        if key["name"] in arguments:
            raise Malformed("an argument is given twice", at)
        arguments[key["name"]], at = read_literal(scan, key.end(), PYTHON)
        at = separator(scan, at, ")")


LLAMA = TurnParser(
    formats=(LlamaCalls(),),
    stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>", "<|eom|>"),
    heads=("<|end_header_id|>", "<|header_end|>"),
    leads=True,
)
"""Parser of Llama 3.1, 3.2, 3.3 and Llama 4."""
