"""Literals that are no JSON: Python's, and those with bare keys that Gemma writes. Nothing is evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fnroll.dialogue.depth import MAX_DEPTH, TOO_DEEP
from fnroll.dialogue.parsers.scan import MAX_NAME, Malformed, Scan

# More digits than Python converts by default, so that a longer number is refused and not cut.
_DIGITS = r"[0-9]{1,5000}+"
_NUMBER = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_SIGNS = "+-.0123456789"
_WORD = re.compile(rf"[^\W\d]\w{{0,{MAX_NAME}}}+")
_BARE_KEY = re.compile(rf'[^:{{}}\[\],"]{{1,{MAX_NAME}}}+')
_BARE_END = re.compile(r"[,{}\[\]<]")
_QUOTE_OR_ESCAPE = {"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Dialect:
    """How literals are written."""

    quotes: tuple[str, ...]
    """Marks that open and close a string."""
    read_string: Callable[[Scan, int, str], tuple[str, int]]
    """Reads a string, given the position after its opening mark and the mark."""
    words: Mapping[str, Any]
    """Words that are values."""
    is_bare: bool
    """Whether keys, and values that are nothing else, may stand without quotes."""


def read_literal(scan: Scan, at: int, dialect: Dialect, depth: int = 0) -> tuple[Any, int]:
    """Read one value.

    Returns:
      The value and the position after it.

    Raises:
      Malformed: there is no such value at `at`.
    """
    if depth > MAX_DEPTH:
        raise Malformed(f"its arguments are {TOO_DEEP}", at)
    at = scan.skip_space(at)
    quote = next((mark for mark in dialect.quotes if scan.is_at(mark, at)), None)
    if quote is not None:
        return dialect.read_string(scan, at + len(quote), quote)
    if scan.is_at("{", at):
        return _read_object(scan, at + 1, dialect, depth)
    if scan.is_at("[", at):
        return _read_list(scan, at + 1, dialect, depth)
    return _read_scalar(scan, at, dialect)


def read_mapping(scan: Scan, at: int, dialect: Dialect) -> tuple[dict[str, Any], int]:
    """Read an object that begins at `at`."""
    value, end = read_literal(scan, at, dialect)
    if not isinstance(value, dict):
        raise Malformed("its arguments are no object", at)
    return value, end


def _read_object(scan: Scan, at: int, dialect: Dialect, depth: int) -> tuple[dict[str, Any], int]:
    result: dict[str, Any] = {}
    while True:
        at = scan.skip_space(at)
        if scan.is_at("}", at):
            return result, at + 1
        key, after = _read_key(scan, at, dialect)
        if key in result:
            raise Malformed("an object has the same key twice", at)
        result[key], at = read_literal(scan, expect(scan, after, ":"), dialect, depth + 1)
        at = separator(scan, at, "}")


def _read_list(scan: Scan, at: int, dialect: Dialect, depth: int) -> tuple[list[Any], int]:
    result: list[Any] = []
    while True:
        at = scan.skip_space(at)
        if scan.is_at("]", at):
            return result, at + 1
        value, at = read_literal(scan, at, dialect, depth + 1)
        result.append(value)
        at = separator(scan, at, "]")


def _read_key(scan: Scan, at: int, dialect: Dialect) -> tuple[str, int]:
    for quote in dialect.quotes:
        if scan.is_at(quote, at):
            return dialect.read_string(scan, at + len(quote), quote)
    bare = scan.match(_BARE_KEY, at) if dialect.is_bare else None
    if bare is None:
        raise Malformed("a key of an object is missing", at)
    return bare[0].strip(), bare.end()


def _read_scalar(scan: Scan, at: int, dialect: Dialect) -> tuple[Any, int]:
    if dialect.is_bare:
        delimiter = scan.search(_BARE_END, at)
        end = delimiter.start() if delimiter else scan.limit
        text = scan.text[at:end].strip()
        if not text:
            raise Malformed("a value is missing", at)
        return _scalar(text, dialect.words, at), end
    token = scan.match(_NUMBER if scan.text[at : at + 1] in _SIGNS else _WORD, at)
    value = _scalar(token[0], dialect.words, at) if token else None
    if token is None or isinstance(value, str):
        raise Malformed("a value is missing or is no literal", at)
    return value, token.end()


def _scalar(text: str, words: Mapping[str, Any], at: int) -> Any:
    """A word or a number; any other text as it is."""
    if text in words:
        return words[text]
    if not _NUMBER.fullmatch(text):
        return text
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise Malformed("a number has too many digits", at) from None


def expect(scan: Scan, at: int, mark: str) -> int:
    """The position after `mark`, which must stand at `at`, perhaps after white space."""
    at = scan.skip_space(at)
    if not scan.is_at(mark, at):
        raise Malformed(f"there should be {json.dumps(mark)}", at)
    return at + len(mark)


def separator(scan: Scan, at: int, closer: str) -> int:
    """The position after a comma, or of the closing mark."""
    at = scan.skip_space(at)
    return at if scan.is_at(closer, at) else expect(scan, at, ",")


def read_plain_string(scan: Scan, at: int, quote: str) -> tuple[str, int]:
    """Read a string without escapes, up to the next `quote`."""
    end = scan.find(quote, at)
    if end == -1:
        raise Malformed("a string is not closed", scan.limit)
    return scan.text[at:end], end + len(quote)


def read_python_string(scan: Scan, at: int, quote: str) -> tuple[str, int]:
    """Read a string with Python's escapes; an unknown escape stands for itself, as in Python."""
    parts = []
    while hit := scan.search(_QUOTE_OR_ESCAPE[quote], at):
        parts.append(scan.text[at : hit.start()])
        if hit[0] == quote:
            return "".join(parts), hit.end()
        text, at = _unescape(scan, hit.end())
        parts.append(text)
    raise Malformed("a string is not closed", scan.limit)


def _unescape(scan: Scan, at: int) -> tuple[str, int]:
    """The text of an escape, given the position after its backslash."""
    kind = scan.text[at : min(at + 1, scan.limit)]
    digits = scan.text[at + 1 : min(at + 1 + _CODES.get(kind, 0), scan.limit)]
    if kind in _CODES and len(digits) == _CODES[kind] and all(c in "0123456789abcdefABCDEF" for c in digits):
        code = int(digits, 16)
        return (chr(code) if code < 0x110000 else "\ufffd"), at + 1 + len(digits)
    if kind in ("'", '"', "\\"):
        return kind, at + 1
    return _ESCAPES.get(kind, "\\" + kind), at + len(kind)


PYTHON = Dialect(
    quotes=("'", '"'),
    read_string=read_python_string,
    words={"True": True, "False": False, "None": None, "true": True, "false": False, "null": None},
    is_bare=False,
)
"""Literals of Python, with JSON's words."""

GEMMA = Dialect(
    quotes=('<|"|>',),
    read_string=read_plain_string,
    words={"true": True, "false": False, "null": None},
    is_bare=True,
)
"""Literals of Gemma 4: bare keys, and strings between its quote token."""
