"""What a call may look like."""

import json

import pytest

from fnroll.dialogue.message import ParseError, ToolCall
from tests.dialogue.parsers.written import coder, hermes, named, parse


def test_end_marker_inside_a_json_string_is_data():
    """Case parser-01."""
    text = hermes("note", text="close with </tool_call> please") + "\n" + hermes("second", n=2)
    message = parse("hermes", text)
    assert named(message) == [("note", {"text": "close with </tool_call> please"}), ("second", {"n": 2})]
    assert message.errors == ()
    assert [text[slice(*call.span)][:11] for call in message.calls] == ["<tool_call>"] * 2


@pytest.mark.parametrize(
    "value",
    [
        "inline </parameter> and </function> and <function=x> and <parameter=path> are text",
        "</parameter>",
        "close with </parameter></function></tool_call> at once",
        "ends with </parameter>",
        "a\n</parameter>\nb",
        "Qwen wraps calls in <tool_call> ... </tool_call> blocks.",
        "first line\n\n  </parameter> here",
        "</think>",
        "",
        "\n",
        " padded \n",
    ],
)
def test_markers_inside_an_xml_value_are_data(value):
    """Case parser-01."""
    message = parse("qwen3_coder", coder("note", text=value) + "\n" + coder("second", n="2"))
    assert named(message) == [("note", {"text": value}), ("second", {"n": "2"})]
    assert message.errors == ()


def test_one_broken_call_among_good_ones():
    """Case parser-05."""
    text = (
        hermes("good", x=1)
        + '<tool_call>{"name":"bad","arguments":{"x":}</tool_call>'
        + '<tool_call>{"name":"ok2"}</tool_call>'
        + '<tool_call>["z"]</tool_call>'
        + '<tool_call>{"name":7,"arguments":{}}</tool_call>'
        + hermes("last")
    )
    message = parse("hermes", text)
    assert named(message) == [("good", {"x": 1}), ("ok2", {}), ("last", {})]
    assert [type(outcome) for outcome in message.outcomes] == [
        ToolCall,
        ParseError,
        ToolCall,
        ParseError,
        ParseError,
        ToolCall,
    ]
    assert [text[slice(*error.span)] for error in message.errors] == [
        '<tool_call>{"name":"bad","arguments":{"x":}</tool_call>',
        '<tool_call>["z"]</tool_call>',
        '<tool_call>{"name":7,"arguments":{}}</tool_call>',
    ]
    assert [error.text for error in message.errors] == [
        "The tool call could not be read: it is not valid JSON (Expecting value at character 32).",
        'The tool call could not be read: it must be one JSON object with "name" and "arguments".',
        "The tool call could not be read: its name is missing or is not a string.",
    ]
    assert message.content == ""


@pytest.mark.parametrize(
    ("body", "calls", "error"),
    [
        ('{"name": "f", "arguments": {"x":1', [], "Expecting"),
        ('{"name": "f"}', [("f", {})], ""),
        ('{"name": "f", "arguments": "{}"}', [("f", {})], ""),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', [("f", {"x": 1})], ""),
        ('{"name": "f", "parameters": {"x": 1}}', [("f", {"x": 1})], ""),
        ("[]", [], "one JSON object"),
        ('{"name": "f", "arguments": {"x": 1,}}', [], "not valid JSON"),
        ('{"name": "f", "arguments": {"x": "abc', [], "Invalid control character"),
        ('{"name": "f", "arguments": "x"}', [], "Expecting value"),
        ('{"name": "f", "arguments": "[1]"}', [], "must be an object, not an array"),
        ('{"name": "f", "arguments": null}', [], "must be an object, not null"),
        ('{"name": "f", "arguments": [1]}', [], "must be an object, not an array"),
        ('{"name": "f", "arguments": 3}', [], "must be an object, not a number"),
        ('{"name": "f", "args": {"x": 1}}', [], 'has "args" instead'),
        ('{"name": "", "arguments": {}}', [], "name"),
        ('{"arguments": {}}', [], "name"),
        ('{"name": "f", "arguments": {"x": NaN}}', [], "NaN"),
        ('{"name": "f", "arguments": {"x": 1, "x": 2}}', [], "same key twice"),
        ('{"name": "f", "arguments": {}} {"name": "g"}', [], "text after its JSON"),
        ("", [], "Expecting value"),
    ],
)
def test_shapes_of_json_calls(body, calls, error):
    message = parse("hermes", f"<tool_call>\n{body}\n</tool_call>{hermes('after')}")
    assert named(message) == [*calls, ("after", {})]
    assert len(message.errors) == (not calls)
    assert all(error in found.text for found in message.errors)


def test_an_unclosed_broken_call_does_not_swallow_the_next():
    message = parse("hermes", '<tool_call>{"name": oops\n' + hermes("f"))
    assert [type(outcome) for outcome in message.outcomes] == [ParseError, ToolCall]


def test_a_duplicate_key_before_a_marker_in_a_string_is_one_error():
    body = '{"name": "f", "arguments": {"x": 1, "x": "</tool_call>"}}'
    message = parse("hermes", f"<tool_call>{body}</tool_call> then")
    assert len(message.errors) == 1
    assert message.content == " then"


def test_a_missing_closing_tag_is_accepted_when_the_json_is_complete():
    call = '<tool_call>{"name": "f", "arguments": {}}'
    message = parse("hermes", f"{call}\n{call}\nand text")
    assert named(message) == [("f", {}), ("f", {})]
    assert message.content == "and text"


def test_the_stop_token_may_still_be_there():
    assert parse("hermes", "hi<|im_end|>").content == "hi"
    assert parse("gemma4", "hi<turn|>").content == "hi"
    assert named(parse("llama", '{"name": "f", "parameters": {}}<|eot_id|>')) == [("f", {})]


def test_text_around_calls_is_joined_as_it_is():
    assert parse("hermes", f"before {hermes('f')} after").content == "before  after"
    assert parse("hermes", f"before\n{hermes('f')}\n{hermes('g')}\n").content == "before"


NAMES = ["get-weather", "files.read", "server:list", "获取天气", "naïve_sum"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken_up_to_the_delimiter_of_the_format(name):
    """Case parser-07."""
    forms = {
        "hermes": hermes(name, 城市="x"),
        "qwen3_coder": coder(name, 城市="x"),
        "gemma4": f'<|tool_call>call:{name}{{城市:<|"|>x<|"|>}}<tool_call|>',
        "kimi": f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        '{"城市": "x"}<|tool_call_end|>',
        "glm": f"<tool_call>{name}<arg_key>城市</arg_key><arg_value>x</arg_value></tool_call>",
        "mistral": f'[TOOL_CALLS]{name}[ARGS]{{"城市": "x"}}',
        "deepseek": f'<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{{"城市": "x"}}<｜tool▁call▁end｜>',
        "gpt_oss": f'<|channel|>commentary to=functions.{name}<|message|>{{"城市": "x"}}',
        "llama": json.dumps({"name": name, "parameters": {"城市": "x"}}),
    }
    for parser, text in forms.items():
        message = parse(parser, text)
        assert named(message) == [(name, {"城市": "x"})], parser
        assert message.errors == ()
