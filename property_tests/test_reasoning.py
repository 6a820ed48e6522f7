"""What stands before the last closing marker of reasoning is thought: its calls are not made."""

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from fnroll.dialogue.parsers import get_parser
from fnroll.dialogue.parsers.turn import TurnParser
from fnroll.dialogue.parsers.walk import Walk
from property_tests.test_parsers import NAMES, TOOLS, write

MARKS = {
    "gemma4": ("<|channel>thought\n", "<channel|>"),
    "mistral": ("[THINK]", "[/THINK]"),
}
# Families whose text values have quotes: a marker inside one is surely data.
QUOTED = ("deepseek", "gemma4", "gpt_oss", "hermes", "kimi", "llama", "mistral")
BROKEN = {
    "deepseek": "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{oops<｜tool▁call▁end｜>",
    "gemma4": "<|tool_call>call:f{x:<tool_call|>",
    "glm": "<tool_call>f<arg_key>x</arg_key>oops</tool_call>",
    "gpt_oss": "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{oops<|call|>",
    "hermes": "<tool_call>{oops</tool_call>",
    "kimi": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{oops<|tool_call_end|>",
    "llama": "<|python_start|>[f(x=)]<|python_end|>",
    "mistral": "[TOOL_CALLS]f[ARGS]{oops ",
    "qwen3_coder": "<tool_call>\n<function=f>\noops\n</function>\n</tool_call>",
}
PIECES = ("text", "call", "broken", "opener", "closer", "quote")


def harmony(channel, text):
    return f"<|start|>assistant<|channel|>{channel}<|message|>{text}<|end|>"


def piece(name, kind, number):
    """What a model writes: text, a call, an attempt at one, a marker, or a call that quotes a marker."""
    opener, closer = MARKS.get(name, ("<think>", "</think>"))
    if kind in ("call", "quote"):
        extra = {"y": [f"a{closer}b{opener}"]} if kind == "quote" and name in QUOTED else {}
        return write(name, "f", {"x": number, **extra})
    if kind == "broken":
        return BROKEN[name]
    if name == "gpt_oss":
        # A thought is a message of its own, and closed where the next one begins.
        return {"text": harmony("final", "well"), "closer": harmony("analysis", "hm"), "opener": ""}[kind]
    return {"text": "\nWell, then.\n", "opener": opener, "closer": closer}[kind]


def calls_are_those_behind_the_last_closing_marker(case):
    """The law; the oracle looks at the pieces alone."""
    name, kinds, prefix = case
    text = "".join(piece(name, kind, number) for number, kind in enumerate(kinds))
    tail = harmony("final", "ok") if name == "gpt_oss" else ""
    message = get_parser(name).parse(text + tail, prefix=prefix, tools=TOOLS)
    last = max((number for number, kind in enumerate(kinds) if kind == "closer"), default=-1)
    behind = [number for number, kind in enumerate(kinds) if kind in ("call", "quote") and number > last]
    assert [call.arguments["x"] for call in message.calls] == behind, (text, prefix)
    broken = [number for number, kind in enumerate(kinds) if kind == "broken" and number > last]
    # A broken call may swallow the next broken one, and its closing marker.
    assert bool(message.errors) == bool(broken) and len(message.errors) <= len(broken), (text, prefix)


@st.composite
def thoughts(draw):
    """A family, pieces of a turn, and a prompt that opened or closed reasoning, or did neither."""
    name = draw(st.sampled_from(NAMES))
    opener, closer = MARKS.get(name, ("<think>", "</think>"))
    prefixes = [""] if name == "gpt_oss" else ["", opener, f"{opener}\n\n{closer}\n\n"]
    kinds = draw(st.lists(st.sampled_from(PIECES), max_size=7))
    return name, kinds, draw(st.sampled_from(prefixes))


CLOSED = "<think>\n\n</think>\n\n"


@given(thoughts())
@settings(max_examples=1500, deadline=None)
@example(("hermes", ["closer", "call", "closer", "call"], ""))
@example(("hermes", ["opener", "closer", "call", "closer", "call"], ""))
@example(("glm", ["call", "closer", "call"], CLOSED))
@example(("qwen3_coder", ["call", "closer", "call", "closer"], CLOSED))
@example(("hermes", ["closer", "broken", "closer", "call"], ""))
@example(("hermes", ["closer", "quote", "call"], ""))
@example(("hermes", ["closer", "text", "opener", "quote", "closer", "call", "opener", "call"], ""))
@example(("gpt_oss", ["closer", "call", "closer", "call"], ""))
def test_calls_are_those_behind_the_last_closing_marker(case):
    calls_are_those_behind_the_last_closing_marker(case)


def first_marker_alone(walk, text, begin, marker, close=Walk.close):
    if walk.closer or walk.may_be_open:
        close(walk, text, begin, marker)
    else:
        walk.add(marker)


def only_the_open_block(walk, text, begin, marker, close=Walk.close):
    kept = [] if walk.closer else walk.outcomes
    close(walk, text, begin, marker)
    walk.outcomes = [*kept, *walk.outcomes]


def quoted_markers_count(parser, scan, begin, frame, walk):
    at, _ = scan.first(parser.closers, frame.outcomes[0].span[0] if frame.outcomes else frame.end)
    return at if at < frame.end else -1


def broken_calls_swallow_markers(parser, scan, begin, frame, walk):
    return -1


@pytest.mark.parametrize(
    ("target", "attribute", "mutant"),
    [
        (Walk, "close", first_marker_alone),
        (Walk, "close", only_the_open_block),
        (TurnParser, "_shut", quoted_markers_count),
        (TurnParser, "_shut", broken_calls_swallow_markers),
    ],
)
def test_a_planted_mistake_is_caught(target, attribute, mutant, monkeypatch):
    monkeypatch.setattr(target, attribute, mutant)

    @settings(max_examples=1500, phases=[Phase.generate], report_multiple_bugs=False, deadline=None)
    @given(thoughts())
    def check(case):
        calls_are_those_behind_the_last_closing_marker(case)

    with pytest.raises(AssertionError):
        check()
