"""Parsing takes time in proportion to the text."""

import re
import time

import pytest

from fnroll.dialogue.parsers import mistral
from fnroll.dialogue.parsers.scan import Scan
from tests.dialogue.parsers.counted import cost
from tests.dialogue.parsers.hostile import UNITS, hostile, hostile_texts
from tests.dialogue.parsers.written import BUILT_IN, ONE_CALL, F, parse


def seconds(name, text):
    def once():
        begin = time.process_time()
        parse(name, text, tools=[F])
        return time.process_time() - begin

    return min(once() for _ in range(2))


@pytest.mark.parametrize("name", BUILT_IN)
def test_time_grows_in_proportion_to_the_text(name):
    # Eight times the text takes 8 times as long if linear, 64 times if quadratic.
    for unit in UNITS[name]:
        small, large = (unit * (size // len(unit)) + ONE_CALL[name] for size in (25_000, 200_000))
        assert seconds(name, large) < max(0.1, 24 * seconds(name, small)), unit


@pytest.mark.parametrize(
    ("name", "opening", "argument"),
    [
        ("qwen3_coder", "<function=f>", "<parameter=k{}>v</parameter>"),
        ("glm", "<tool_call>f", "<arg_key>k{}</arg_key><arg_value>v</arg_value>"),
    ],
)
def test_time_grows_in_proportion_to_the_number_of_arguments(name, opening, argument):
    small, large = (opening + "".join(map(argument.format, range(count))) for count in (1_000, 8_000))
    assert seconds(name, large) < max(0.1, 24 * seconds(name, small))


PREFIXES = ("", "<think>\n")


def costs_grow_as_the_text(name, head, unit, prefix=""):
    """The law: ten times the text costs at most twelve times as much, counted and not timed."""
    small, large = (
        cost(name, hostile(head, unit, size), prefix=prefix, tools=[F]) for size in (4_000, 40_000)
    )
    assert large <= 12 * small, (head, unit)


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_the_characters_looked_at_grow_in_proportion_to_the_text(name, prefix):
    """Case reliability-02."""
    for head, unit in hostile_texts(name):
        costs_grow_as_the_text(name, head, unit, prefix)


def find_without_memory(scan, marker, start):
    at = scan.text.find(marker, start)
    return at if at != -1 and at + len(marker) <= scan.limit else -1


def search_without_memory(scan, pattern, start):
    scan._matched.clear()
    return SEARCH(scan, pattern, start)


SEARCH = Scan.search
BACKTRACKING = re.compile(r"(?P<name>[^\[{]+)(?:\[CALL_ID\](?P<id>[^\[{]*))?(?P<mark>\[ARGS\])?\s*+(?=\{)")


@pytest.mark.parametrize(
    ("name", "target", "attribute", "mutant"),
    [
        ("hermes", Scan, "find", find_without_memory),
        ("qwen3_coder", Scan, "search", search_without_memory),
        ("mistral", mistral, "_HEADER", BACKTRACKING),
    ],
    ids=["find", "search", "backtracking"],
)
def test_a_planted_mistake_is_caught(name, target, attribute, mutant, monkeypatch):
    monkeypatch.setattr(target, attribute, mutant)
    with pytest.raises(AssertionError):
        for head, unit in hostile_texts(name):
            costs_grow_as_the_text(name, head, unit)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_a_million_characters_take_less_than_two_seconds(name):
    """Case reliability-02."""
    call = ONE_CALL[name]
    begun = [(call[:end], filler) for end in range(0, len(call), len(call) // 4) for filler in " [x"]
    for head, unit in [("", unit) for unit in (*UNITS[name], "</think>", call)] + begun:
        text = hostile(head, unit, 1_000_000)
        begin = time.process_time()
        parse(name, text, tools=[F])
        assert time.process_time() - begin < 2, (head, unit)
