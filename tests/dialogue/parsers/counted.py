"""What parsing costs, counted and not timed: the characters that are looked at.

A counted text counts what is searched, compared and copied of it. A pattern costs what it matched, or where
it fails what it may have looked at: its greatest width, or all that is left of the text if it has none; one
character if that is not what the pattern begins with.
"""

import functools
import math
import re
from contextlib import contextmanager
from re import _constants as op
from re import _parser as grammar

from fnroll.dialogue.parsers import get_parser
from fnroll.dialogue.parsers.scan import Scan


class Counted(str):
    """A text that counts, together with all pieces cut from it."""

    seen = 0

    def find(self, sub, start=0, end=None):
        at = str.find(self, sub, start, end)
        last = len(self) if end is None else min(end, len(self))
        Counted.seen += max((at if at != -1 else last) - start, 0) + len(sub)
        return at

    def rfind(self, sub, start=0, end=None):
        at = str.rfind(self, sub, start, end)
        last = len(self) if end is None else min(end, len(self))
        Counted.seen += last - max(at, start)
        return at

    def startswith(self, sub, *where):
        Counted.seen += len(sub)
        return str.startswith(self, sub, *where)

    def __getitem__(self, where):
        piece = str.__getitem__(self, where)
        Counted.seen += len(piece)
        return Counted(piece)


def width(parsed) -> float:
    """Most characters that a parsed pattern looks at, what is ahead and behind included."""
    total = 0
    for code, value in parsed:
        if code is op.BRANCH:
            total += max(map(width, value[1]))
        elif code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            _, most, item = value
            total += math.inf if most is op.MAXREPEAT else most * width(item)
        elif code in (op.ASSERT, op.ASSERT_NOT):
            total += width(value[1])
        elif code is op.SUBPATTERN:
            total += width(value[-1])
        elif code is op.ATOMIC_GROUP:
            total += width(value)
        elif code is not op.AT:
            total += 1
    return total


@functools.cache
def looks(pattern: re.Pattern[str]) -> tuple[str, float]:
    """The character that a pattern begins with, if it is always the same, and its greatest width."""
    parsed = grammar.parse(pattern.pattern, pattern.flags)
    code, value = parsed[0]
    return chr(value) if code is op.LITERAL else "", width(parsed)


def charge(scan, pattern, start, match):
    first, widest = looks(pattern)
    if not str.startswith(scan.text, first, start, scan.limit):
        widest = 1
    if widest == math.inf:
        widest = max(scan.limit - start, 0)
    Counted.seen += match.end() - start if match else int(widest)


@contextmanager
def counting():
    """Count what a scan looks at by patterns, too."""
    match, search, skip = Scan.match, Scan.search, Scan.skip_space

    def counted_match(scan, pattern, start):
        found = match(scan, pattern, start)
        charge(scan, pattern, start, found)
        return found

    def counted_search(scan, pattern, start):
        key = (pattern, scan.limit)
        known = scan._matched.get(key)
        found = search(scan, pattern, start)
        if scan._matched.get(key) is not known:
            begin = found.start() if found else scan.limit
            Counted.seen += begin - start
            charge(scan, pattern, begin if found else start, found)
        return found

    def counted_skip(scan, at):
        end = skip(scan, at)
        Counted.seen += end - at
        return end

    Scan.match, Scan.search, Scan.skip_space = counted_match, counted_search, counted_skip
    try:
        yield
    finally:
        Scan.match, Scan.search, Scan.skip_space = match, search, skip


def cost(name, text, *, prefix="", tools=()):
    """Characters that a parser looks at in a text."""
    with counting():
        Counted.seen = 0
        get_parser(name).parse(Counted(text), prefix=prefix, tools=tools)
        return Counted.seen
