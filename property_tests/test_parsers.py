"""Laws of the parsers, over text that Hypothesis invents."""

import json
import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fnroll.dialogue.message import ParsedTurn
from fnroll.dialogue.parsers import get_parser
from tests.dialogue.parsers.counted import cost
from tests.dialogue.parsers.hostile import MARKERS, hostile
from tests.dialogue.parsers.written import BUILT_IN as NAMES

PROMPTS = ("", "<think>\n", "<think></think>", "<|start|>assistant", "<|open|>think<|sep|>", "[THINK]")
COMMON = ("{", "}", "[", "]", "(", ")", '"', "'", "\\", ":", ",", "=", "\n", " ", "f", "1", "é", "\ud800")
JSON = ('{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "parameters": {}}', '{"x": "</think>"}', "{}")
TOOLS = [{"name": "f", "parameters": {"properties": {"x": {"type": "integer"}, "y": {"type": "array"}}}}]


@st.composite
def turns(draw):
    """A parser's name, and text made of the pieces its family writes."""
    name = draw(st.sampled_from(NAMES))
    pieces = st.sampled_from((*MARKERS[name], *COMMON, *JSON, "<think>", "</think>"))
    return name, "".join(draw(st.lists(pieces, max_size=30)))


def parse(name, text, *, prefix="", tools=TOOLS) -> ParsedTurn:
    return get_parser(name).parse(text, prefix=prefix, tools=tools)


def check(message, text):
    """What every message is."""
    spans = [outcome.span for outcome in message.outcomes]
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert all(0 <= begin < end <= len(text) for begin, end in spans)
    assert [call.span for call in message.calls] == sorted(call.span for call in message.calls)
    assert [error.span for error in message.errors] == sorted(error.span for error in message.errors)
    assert len(message.content) + len(message.reasoning or "") <= len(text)
    for call in message.calls:
        assert call.name.strip()
        assert json.loads(json.dumps(call.arguments, allow_nan=False)) == call.arguments
    for error in message.errors:
        assert error.text.startswith("The tool call could not be read: ")
        assert error.text.encode("utf-8")


@given(turns(), st.sampled_from(PROMPTS))
@settings(max_examples=1500, deadline=None)
@example(("llama", "[f(x='\\"), "")
def test_marker_soup_gives_a_message(turn, prefix):
    name, text = turn
    check(parse(name, text, prefix=prefix), text)


@st.composite
def repeated(draw):
    """A parser's name, and a beginning and a piece that is repeated behind it, as its family writes them."""
    name = draw(st.sampled_from(NAMES))
    pieces = st.sampled_from((*MARKERS[name], *COMMON, *JSON, "<think>", "</think>"))
    head, unit = (draw(st.lists(pieces, min_size=least, max_size=6)) for least in (0, 1))
    return name, "".join(head), "".join(unit)


@given(repeated(), st.sampled_from(PROMPTS))
@settings(max_examples=200, deadline=None)
def test_what_is_looked_at_grows_in_proportion_to_the_text(case, prefix):
    """Case reliability-02."""
    name, head, unit = case
    small, large = (
        cost(name, hostile(head, unit, size), prefix=prefix, tools=TOOLS) for size in (5_000, 50_000)
    )
    assert large <= 12 * small


@given(st.sampled_from(NAMES), st.text(st.characters(exclude_categories=())), st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_message(name, text, prefix):
    check(parse(name, text, prefix=prefix), text)


@given(st.sampled_from(NAMES), st.text(st.characters(categories=("L", "N", "Zs"))))
@settings(deadline=None)
def test_text_without_markers_is_content(name, text):
    assert parse(name, text) == ParsedTurn(text if text.strip() else "", None, (), ())


# ------------------------------------------------------------------ rendering, then parsing

identifiers = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
words = st.text(st.characters(categories=("L", "N"), include_characters="-_."), min_size=1, max_size=8)


def objects(inner, keys=words):
    return st.dictionaries(keys, inner, max_size=3)


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from([piece for pieces in MARKERS.values() for piece in (*pieces, *JSON)])
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | objects(inner), max_leaves=6)


def in_python(value):
    """Python's own writing of a JSON value."""
    return repr(value)


def in_gemma(value):
    """Gemma's writing of a JSON value."""
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{in_gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(in_gemma, value)) + "]"
    return json.dumps(value)


def in_tags(value):
    return value if isinstance(value, str) else json.dumps(value)


def write(name, tool, arguments):
    """One call as the family's models write it."""
    body = json.dumps(arguments, ensure_ascii=False)
    items = [(key, in_tags(value)) for key, value in arguments.items()]
    if name == "hermes":
        return f'<tool_call>\n{{"name": "{tool}", "arguments": {body}}}\n</tool_call>'
    if name == "mistral":
        return f"[TOOL_CALLS]{tool}[ARGS]{body}"
    if name == "deepseek":
        return f"<｜tool▁call▁begin｜>{tool}<｜tool▁sep｜>{body}<｜tool▁call▁end｜>"
    if name == "kimi":
        return f"<|tool_call_begin|>functions.{tool}:0<|tool_call_argument_begin|>{body}<|tool_call_end|>"
    if name == "gpt_oss":
        return f"<|start|>assistant to=functions.{tool}<|channel|>commentary json<|message|>{body}<|call|>"
    if name == "gemma4":
        return f"<|tool_call>call:{tool}{in_gemma(arguments)}<tool_call|>"
    if name == "llama":
        pairs = ", ".join(f"{key}={in_python(value)}" for key, value in arguments.items())
        return f"<|python_start|>[{tool}({pairs})]<|python_end|>"
    if name == "glm":
        pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in items)
        return f"<tool_call>{tool}\n{pairs}</tool_call>"
    pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in items)
    return f"<tool_call>\n<function={tool}>\n{pairs}</function>\n</tool_call>"


def schema_of(value):
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {"type": kinds.get(type(value), "null")}


def readable(name, value):
    """Whether a family without quotes can write this text; see docs/parsers.md."""
    if name == "qwen3_coder":
        return not re.search(r"(^|\n)</?(parameter|function|tool_call)|</parameter>\s*(<|$)", in_tags(value))
    if name == "glm":
        return not re.search(r"</?(arg_value|tool_call)", in_tags(value))
    if name == "gemma4":
        return '<|"|>' not in json.dumps(value, ensure_ascii=False).replace('\\"', '"')
    return True


@pytest.mark.parametrize("name", NAMES)
@given(
    calls=st.lists(st.tuples(identifiers, objects(values, identifiers)), min_size=1, max_size=3),
    text=st.sampled_from(["", "Let me see.", "ünï 🌸"]),
)
@settings(max_examples=60, deadline=None)
def test_calls_come_back_as_they_were_written(name, calls, text):
    assume(all(readable(name, value) for _, arguments in calls for value in arguments.values()))
    tools = [
        {
            "name": tool,
            "parameters": {"properties": {key: schema_of(item) for key, item in arguments.items()}},
        }
        for tool, arguments in calls
    ]
    assume(len({tool for tool, _ in calls}) == len(calls))
    opening = "" if name == "gpt_oss" else text
    message = parse(name, opening + "".join(write(name, *call) for call in calls), tools=tools)
    assert [(call.name, call.arguments) for call in message.calls] == calls
    assert (message.errors, message.content) == ((), opening)


@given(
    st.lists(
        st.sampled_from((*MARKERS["qwen3_coder"], "</function>\n", "\n", " ", "a", "é", "<", "1")),
        max_size=12,
    )
)
@settings(max_examples=500, deadline=None)
def test_a_string_between_tags_keeps_every_byte(pieces):
    value = "".join(pieces)
    assume(readable("qwen3_coder", value))
    tools = [{"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}}]
    message = parse("qwen3_coder", write("qwen3_coder", "f", {"s": value, "n": 1}), tools=tools)
    assert [(call.name, call.arguments) for call in message.calls] == [("f", {"s": value, "n": 1})]
