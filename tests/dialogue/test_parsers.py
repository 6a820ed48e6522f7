"""The parsers, case by case; see test_parser_conformance.py for the public suite."""

import json
import time
from importlib.metadata import EntryPoint

import pytest

from fnroll.dialogue.message import ParsedTurn, ParseError, ToolCall
from fnroll.dialogue.parsers import detect_parser, get_parser, parser_names, register_parser, registry
from fnroll.dialogue.parsers.schema import convert, parameter_schemas

BUILT_IN = ("deepseek", "gemma4", "glm", "gpt_oss", "hermes", "kimi", "llama", "mistral", "qwen3_coder")


def tool(name, **properties):
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def parse(name, text, *, prefix="", tools=()) -> ParsedTurn:
    return get_parser(name).parse(text, prefix=prefix, tools=tools)


def named(message):
    return [(call.name, call.arguments) for call in message.calls]


def hermes(name, **arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def coder(name, **arguments):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


# A call of `f` with x = 1 in every family; the spans of what is written here.
ONE_CALL = {
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
    '{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "gemma4": "<|tool_call>call:f{x:1}<tool_call|>",
    "glm": "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "gpt_oss": '<|start|>assistant<|channel|>commentary to=functions.f<|message|>{"x": 1}<|call|>',
    "hermes": hermes("f", x=1),
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"x": 1}<|tool_call_end|><|tool_calls_section_end|>',
    "llama": '<|python_tag|>{"name": "f", "parameters": {"x": 1}}',
    "mistral": '[TOOL_CALLS]f[ARGS]{"x": 1}',
    "qwen3_coder": coder("f", x=1),
}
F = tool("f", x={"type": "integer"})


# ------------------------------------------------------------------ what every family does


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_call_is_read_in_every_family(name):
    assert named(parse(name, ONE_CALL[name], tools=[F])) == [("f", {"x": 1})]


@pytest.mark.parametrize("name", BUILT_IN)
def test_bare_tools_are_understood_like_wrapped_ones(name):
    assert named(parse(name, ONE_CALL[name], tools=[F["function"]])) == [("f", {"x": 1})]


@pytest.mark.parametrize("name", BUILT_IN)
def test_two_calls_keep_their_order_and_their_spans(name):
    text = ONE_CALL[name] * 2
    message = parse(name, text, tools=[F])
    assert named(message) == [("f", {"x": 1})] * 2
    (a, b), (c, d) = (call.span for call in message.calls)
    assert 0 <= a < b <= c < d <= len(text)
    assert all(
        "f" in text[slice(*call.span)] and "1" in text[slice(*call.span)] for call in message.calls[:1]
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_plain_text_is_content(name):
    text = "2 < 3, {braces}, [brackets] and Zürich 🌸."
    assert parse(name, text) == ParsedTurn(text, None, (), ())


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_empty_turn_is_an_empty_message(name):
    assert parse(name, "") == ParsedTurn("", None, (), ())


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_cut_of_a_call_gives_no_call_with_other_arguments(name):
    text = ONE_CALL[name]
    for length in range(len(text)):
        message = parse(name, text[:length], tools=[F])
        assert named(message) in ([], [("f", {"x": 1})]), text[:length]


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(
    "text",
    [
        "\ud800",
        "\x00",
        "a\ud83d<tool_call>\udc00",
        '{"a":' * 50_000,
        "[" * 100_000,
        "[f(a=" + "[" * 50_000,
        '<tool_call>{"name": "\ud800", "arguments": "' + "\\" * 999,
    ],
    ids=range(7),
)
def test_odd_text_never_raises(name, text):
    for frame in (
        text,
        ONE_CALL[name] + text,
        ONE_CALL[name].replace('{"x": 1}', text).replace("{x:1}", text),
    ):
        message = parse(name, frame, prefix=text, tools=[F])
        assert all(error.text.encode() for error in message.errors)


@pytest.mark.parametrize("name", BUILT_IN)
def test_deep_arguments_are_an_error_not_a_crash(name):
    deep = "[" * 40_000 + "]" * 40_000
    text = ONE_CALL[name].replace('{"x": 1}', f'{{"x": {deep}}}').replace("{x:1}", f"{{x:{deep}}}")
    message = parse(name, text, tools=[F])
    if text != ONE_CALL[name]:
        assert [error.text for error in message.errors] == [
            "The tool call could not be read: its arguments are nested too deeply."
        ]
        assert not message.calls


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(
    "tools", [[None], [3, "x", []], [{"function": None}], [{"name": "f", "parameters": [1]}]]
)
def test_tools_that_are_none_never_raise(name, tools):
    assert [call.name for call in parse(name, ONE_CALL[name], tools=tools).calls] == ["f"]


@pytest.mark.parametrize(("depth", "is_call"), [(100, True), (200, False)])
@pytest.mark.parametrize("name", ["hermes", "gemma4", "llama"])
def test_the_depth_of_arguments_has_one_limit(name, depth, is_call):
    deep = "[" * depth + "]" * depth
    text = {"hermes": hermes("f").replace("{}", f'{{"x": {deep}}}'), "llama": f"[f(x={deep})]"}
    message = parse(name, text.get(name, f"<|tool_call>call:f{{x:{deep}}}<tool_call|>"))
    assert (len(message.calls), len(message.errors)) == (int(is_call), int(not is_call))


UNITS = {
    "deepseek": [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{",
        '<｜DSML｜invoke name="f">\n',
        '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>y',
    ],
    "gemma4": [
        "<|tool_call>call:f{",
        '<|tool_call>call:f{a:<|"|>',
        "<|channel>",
        "<|channel><channel|> ",
    ],
    "glm": [
        "<tool_call>f<arg_key>a</arg_key><arg_value>",
        "<tool_call>f",
        "x</arg_value>y",
        "<think>",
    ],
    "gpt_oss": [
        "<|start|>assistant<|channel|>",
        "<|start|>assistant to=functions.f<|message|>{",
        "<|end|>x",
    ],
    "hermes": [
        "<tool_call>",
        "<tool_call>{",
        '<tool_call>{"a":"</tool_call>',
        '<think><tool_call>{"</think>',
        "<think></think> ",
        "</think>",
    ],
    "kimi": [
        "<|tool_calls_section_begin|>x",
        "<|tool_call_begin|>",
        '<|open|>call tool="f"<|sep|>',
        '<|open|>call tool="f"<|sep|><|open|>argument key="a"<|sep|><|close|>argument<|sep|>x',
    ],
    "llama": [
        "<|python_tag|>{",
        "<|python_start|>[f(",
        "[f(a='",
        "<|python_tag|>f(a=[",
    ],
    "mistral": [
        "[TOOL_CALLS]f[ARGS]{",
        '[TOOL_CALLS][{"name":"f","arguments":',
        "[TOOL_CALLS]f",
        "[THINK]",
    ],
    "qwen3_coder": [
        "<tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n",
        "\n<function=f>\n<parameter=a>",
        "<think>\n<tool_call>\n<function=f>\n<parameter=a>\n</think>",
        "<function=f><parameter=a>x</parameter>y",
    ],
}


def seconds(name, text):
    def once():
        begin = time.process_time()
        parse(name, text, tools=[F])
        return time.process_time() - begin

    return min(once(), once())


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


# ------------------------------------------------------------------ what a call may look like


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


TYPED = tool(
    "t",
    flag={"type": "boolean"},
    day={"type": "integer"},
    memo={"type": "string"},
    note={"type": ["string", "null"]},
    rows={"type": "array", "items": {"type": "object"}},
    table={"type": "object"},
    x={"type": "number"},
    either={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    color={"enum": ["red", "7"]},
    level={"enum": [1, 2]},
    point={"$ref": "#/$defs/Point"},
    loop={"$ref": "#/$defs/Loop"},
    maybe={"type": "integer", "nullable": True},
    mixed={"type": ["string", "integer"]},
)
TYPED["function"]["parameters"]["$defs"] = {
    "Point": {"type": "object"},
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
}
CONVERSIONS = [
    ("flag", "yes", "yes"),
    ("flag", "True", True),
    ("flag", "false", False),
    ("flag", "1", "1"),
    ("day", "2031-02-03", "2031-02-03"),
    ("day", "3.0", 3),
    ("day", "3.5", "3.5"),
    ("day", "-12", -12),
    ("day", "1_000", "1_000"),
    ("day", "9" * 5000, "9" * 5000),
    ("memo", "null", "null"),
    ("memo", "00123", "00123"),
    ("memo", "{'a':1}", "{'a':1}"),
    ("memo", '{"a":1}', '{"a":1}'),
    ("memo", " true ", " true "),
    ("note", "null", None),
    ("note", "None", "None"),
    ("note", "{'a':1}", "{'a':1}"),
    ("rows", '[{"on": true, "n": null}]', [{"on": True, "n": None}]),
    ("rows", "[{'on': True}]", "[{'on': True}]"),
    ("rows", "[__import__('os').getpid()]", "[__import__('os').getpid()]"),
    ("rows", "[1 + 1]", "[1 + 1]"),
    ("rows", '{"a": 1}', '{"a": 1}'),
    ("table", '{"a": [1]}', {"a": [1]}),
    ("table", '{"a": NaN}', '{"a": NaN}'),
    ("free", "null", "null"),
    ("free", "17", "17"),
    ("x", "1e20", 1e20),
    ("x", "5", 5),
    ("x", "1e999", "1e999"),
    ("x", "nan", "nan"),
    ("x", ".5", ".5"),
    ("either", "null", None),
    ("either", "None", None),
    ("either", "4", 4),
    ("color", "7", "7"),
    ("level", "2", 2),
    ("point", '{"x": 1}', {"x": 1}),
    ("loop", "8", 8),
    ("maybe", "null", None),
    ("mixed", "42", 42),
    ("mixed", "042", "042"),
    ("mixed", "4.0", "4.0"),
]


@pytest.mark.parametrize(("key", "text", "expected"), CONVERSIONS)
def test_xml_values_are_typed_by_the_schema_and_nothing_else(key, text, expected):
    """Case parser-04."""
    (call,) = parse("qwen3_coder", coder("t", **{key: text}), tools=[TYPED]).calls
    assert call.arguments == {key: expected}
    assert type(call.arguments[key]) is type(expected)


def test_conversion_needs_no_schema():
    assert convert("17", {}, "x") == "17"
    assert parameter_schemas([{"name": "f", "input_schema": {"type": "object"}}]) == {"f": {"type": "object"}}


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


# ------------------------------------------------------------------ reasoning


CALLS_IN_TAGS = [("hermes", hermes("f", x=1)), ("qwen3_coder", coder("f", x=1)), ("glm", ONE_CALL["glm"])]


@pytest.mark.parametrize(("name", "call"), CALLS_IN_TAGS)
@pytest.mark.parametrize(
    ("prefix", "opener"), [("", "<think>\n"), ("<|im_start|>assistant\n<think>\n", ""), ("", "")]
)
def test_a_call_rehearsed_in_closed_reasoning_is_no_call(name, call, prefix, opener):
    text = f"{opener}I could say {call} and so on.\n</think>\n\n{call}"
    message = parse(name, text, prefix=prefix, tools=[F])
    assert named(message) == [("f", {"x": 1})]
    assert message.calls[0].span == (len(text) - len(call), len(text))
    assert message.reasoning == f"I could say {call} and so on."
    assert (message.content, message.errors) == ("", ())


@pytest.mark.parametrize(("name", "call"), CALLS_IN_TAGS)
@pytest.mark.parametrize(("prefix", "opener"), [("", "<think>"), ("<|im_start|>assistant\n<think>\n", "")])
def test_a_call_in_unclosed_reasoning_is_a_call(name, call, prefix, opener):
    message = parse(name, f"{opener}Let me look.\n{call}", prefix=prefix, tools=[F])
    assert named(message) == [("f", {"x": 1})]
    assert (message.content, message.reasoning) == ("", "Let me look.")


def test_a_closing_think_marker_inside_an_argument_is_data():
    call = hermes("f", text="a </think> b")
    for text, reasoning in [(call, None), (f"<think>so\n{call}", "so"), (f"<think>so</think>{call}", "so")]:
        message = parse("hermes", text)
        assert named(message) == [("f", {"text": "a </think> b"})]
        assert message.reasoning == reasoning


def test_without_quotes_the_first_closing_think_marker_counts():
    message = parse("qwen3_coder", "<think>Maybe\n" + coder("f", text="a </think> b"))
    assert message.calls == ()
    assert message.reasoning.startswith("Maybe\n<tool_call>")


def test_a_broken_call_in_closed_reasoning_is_no_error():
    text = '<think>Write <tool_call>{"name": and so on</think>' + hermes("f")
    message = parse("hermes", text)
    assert (named(message), message.errors) == ([("f", {})], ())


def test_reasoning_that_the_prompt_closed_is_over():
    prefix = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert parse("hermes", "The tag </think> ends it.", prefix=prefix).content == "The tag </think> ends it."


def test_think_markers_of_earlier_turns_do_not_count():
    prefix = "<|im_start|>user\nWhat does <think> do?<|im_end|>\n<|im_start|>assistant\n"
    message = parse("hermes", "It opens reasoning.", prefix=prefix)
    assert (message.content, message.reasoning) == ("It opens reasoning.", None)
    prefix = "<think>a</think>b<|im_end|>\n<|im_start|>assistant\n"
    assert parse("hermes", "thought</think>said", prefix=prefix).reasoning == "thought"


def test_a_think_marker_mentioned_in_an_answer_is_content():
    assert parse("hermes", "Use <think> tags.").content == "Use <think> tags."
    message = parse("hermes", f"One. <think>{hermes('no')}</think> Two. {hermes('yes')}")
    assert (message.content, [call.name for call in message.calls]) == ("One.  Two. ", ["yes"])


def test_harmony_reasoning_may_mention_its_own_tokens():
    text = "<|channel|>analysis<|message|>Say <|call|> or <|end|> later.<|end|>" + ONE_CALL["gpt_oss"]
    message = parse("gpt_oss", text)
    assert message.reasoning == "Say <|call|> or <|end|> later."
    assert named(message) == [("f", {"x": 1})]


# ------------------------------------------------------------------ one family at a time


def test_xml_keeps_the_valid_arguments_beside_a_damaged_one():
    text = coder("f", a="1", b="2", c="3").replace("<parameter=b>", "<parameter=b")
    message = parse("qwen3_coder", text)
    assert (named(message), message.errors) == ([("f", {"a": "1", "c": "3"})], ())


def test_xml_missing_closing_tags():
    text = "<tool_call>\n<function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>"
    assert named(parse("qwen3_coder", text)) == [("f", {"a": "1", "b": "2"})]


@pytest.mark.parametrize("second", [coder("g", b="2"), coder("g", b="2").removeprefix("<tool_call>\n")])
def test_an_unclosed_xml_call_does_not_swallow_the_next(second):
    text = "<tool_call>\n<function=f>\n<parameter=a>\n1\n" + second
    message = parse("qwen3_coder", text)
    assert named(message) == [("g", {"b": "2"})]
    assert [type(outcome) for outcome in message.outcomes] == [ParseError, ToolCall]


def test_an_unclosed_xml_call_on_one_line_does_not_swallow_the_next():
    second = "<tool_call><function=g><parameter=b>2</parameter></function></tool_call>"
    message = parse("qwen3_coder", "<tool_call><function=f><parameter=a>1" + second)
    assert named(message) == [("g", {"b": "2"})]


def test_a_cut_xml_value_is_an_error():
    message = parse("qwen3_coder", "<tool_call>\n<function=sh>\n<parameter=cmd>\nrm -rf /")
    assert (message.calls, len(message.errors), message.content) == ((), 1, "")
    assert message.errors[0].text == 'The tool call could not be read: an argument of "sh" is not closed.'


def test_a_mention_of_the_inner_xml_tag_is_content():
    text = "Open with <function=x> and close it.\n<function=x> is the tag."
    assert parse("qwen3_coder", text).content == text


def test_xml_gives_one_argument_twice():
    text = coder("f", a="1").replace("</function>", "<parameter=a>\n2\n</parameter>\n</function>")
    assert 'gives "a" twice' in parse("qwen3_coder", text).errors[0].text


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', [("f", {"x": 1})], ""),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', [("f", {}), ("g", {})], ""),
        ('{"parameters": {"x": 1}, "name": "f"}', [("f", {"x": 1})], ""),
        ('{"name": "Ann", "age": 3}', [], '{"name": "Ann", "age": 3}'),
        ('{"a": ', [], '{"a": '),
        ("[1, 2]", [], "[1, 2]"),
        ("[a link](https://x)", [], "[a link](https://x)"),
        ('<|python_tag|>brave_search.call(query="x")', [("brave_search", {"query": "x"})], ""),
        ("<|python_start|>[f(x=1)]<|python_end|> ok", [("f", {"x": 1})], " ok"),
        (
            "[f(x='a\\'b', y={'k': [True, None, -1.5]}, z=\"\\u00e9\")]",
            [("f", {"x": "a'b", "y": {"k": [True, None, -1.5]}, "z": "é"})],
            "",
        ),
        ("<think>hm</think>\n\n[f()]", [("f", {})], ""),
        ("[f(x=__import__('os'))]", [], ""),
        ("[f(x=1+1)]", [], ""),
        ("[f(1), g(x=2), h(x=, y=3), i()]", [("g", {"x": 2}), ("i", {})], ""),
        ('[f(a=1), g(b="x), h(c=2)]', [("f", {"a": 1}), ("h", {"c": 2})], ""),
        ("[f(a=1), g(b=", [], ""),
        ('<|python_tag|>{"name": "f", "parameters": {}} then', [("f", {})], " then"),
    ],
)
def test_llama(text, calls, content):
    message = parse("llama", text)
    assert (named(message), message.content) == (calls, content)


def test_llama_a_broken_object_does_not_lose_the_next():
    text = '<|python_tag|>{"name": "f", "parameters": {"x": }}; {"name": "g", "parameters": {"y": 1}}'
    message = parse("llama", text)
    assert named(message) == [("g", {"y": 1})]
    assert [type(outcome) for outcome in message.outcomes] == [ParseError, ToolCall]


def test_mistral_a_broken_item_of_an_array_does_not_lose_the_others():
    good = '{"name": "f", "arguments": {"x": 1}}'
    broken = '{"name": "g", "arguments": {"x": , "people": [{"name": "Bob"}]}}'
    message = parse("mistral", f"[TOOL_CALLS] [{good}, {broken}, {good}] done")
    assert named(message) == [("f", {"x": 1})] * 2
    assert (len(message.errors), message.content) == (1, " done")


def test_mistral_a_cut_array_keeps_its_complete_calls():
    message = parse("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "argu')
    assert (named(message), len(message.errors)) == ([("f", {})], 1)


def test_harmony_recipients():
    def call(recipient):
        return f'<|channel|>commentary to={recipient}<|message|>{{"x": 1}}'

    assert named(parse("gpt_oss", call("f"), tools=[F])) == [("f", {"x": 1})]
    assert 'no recipient "f"' in parse("gpt_oss", call("f")).errors[0].text
    assert parse("gpt_oss", call("user")).content == '{"x": 1}'


def test_harmony_goes_on_where_the_prompt_stops():
    prefix = "<|start|>assistant<|channel|>analysis<|message|>So"
    message = parse(
        "gpt_oss", " it is.<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>", prefix=prefix
    )
    assert (message.reasoning, message.content) == (" it is.", "Yes")
    message = parse(
        "gpt_oss", '<|message|>{"x": 1}', prefix="<|start|>assistant to=functions.f<|channel|>commentary"
    )
    assert named(message) == [("f", {"x": 1})]


def test_harmony_broken_call_does_not_lose_the_next():
    broken = '<|channel|>commentary to=functions.f<|message|>{"x": <|call|>'
    message = parse("gpt_oss", broken + ONE_CALL["gpt_oss"])
    assert [type(outcome) for outcome in message.outcomes] == [ParseError, ToolCall]


def test_gemma_strings_hold_anything_and_bare_text_is_text():
    body = 'a:<|"|> x},<tool_call|>{\n<|"|>,<|"|>b c<|"|>:[1,{d:null}],e:two words'
    text = f"Go. <|tool_call>call:f{{{body}}}<tool_call|>"
    message = parse("gemma4", text)
    assert named(message) == [("f", {"a": " x},<tool_call|>{\n", "b c": [1, {"d": None}], "e": "two words"})]
    assert message.content == "Go. "


def test_glm_value_without_its_closing_tag():
    text = "<tool_call>f<arg_key>x</arg_key><arg_value>1</tool_call>" + ONE_CALL["glm"]
    assert named(parse("glm", text, tools=[F])) == [("f", {"x": 1})] * 2


def test_glm_an_unclosed_call_does_not_swallow_the_next():
    message = parse("glm", "<tool_call>g<arg_key>y</arg_key><arg_value>1\n" + ONE_CALL["glm"], tools=[F])
    assert named(message) == [("f", {"x": 1})]
    assert [type(outcome) for outcome in message.outcomes] == [ParseError, ToolCall]


def test_deepseek_fenced_and_plain_forms():
    fenced = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```<｜tool▁call▁end｜>'
    plain = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>'
    message = parse("deepseek", f"<｜tool▁calls▁begin｜>{fenced}\n{plain}<｜tool▁calls▁end｜>")
    assert named(message) == [("f", {"x": 1}), ("function", {"x": 1})]


def test_deepseek_tagged_values_say_their_type():
    body = '<｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>'
    body += '<｜DSML｜parameter name="b" string="false">[1]</｜DSML｜parameter>'
    body += '<｜DSML｜parameter name="c" string="false">oops</｜DSML｜parameter>'
    message = parse(
        "deepseek", f'Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">{body}</｜DSML｜invoke>'
    )
    assert named(message) == [("f", {"a": "1", "b": [1], "c": "oops"})]
    assert message.content == "Hm."


def test_kimi_section_that_is_not_closed_does_not_swallow_the_answer():
    call = ONE_CALL["kimi"].removesuffix("<|tool_calls_section_end|>")
    message = parse("kimi", call + " done")
    assert (named(message), message.content) == ([("f", {"x": 1})], " done")


def test_kimi_xtml():
    text = (
        "why<|close|>think<|sep|><|open|>response<|sep|>ok<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a&amp;b" type="array"<|sep|>[1]'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
    )
    message = parse("kimi", text, prefix='<|open|>message role="assistant"<|sep|><|open|>think<|sep|>')
    assert (message.reasoning, message.content, named(message)) == ("why", "ok", [("f", {"a&b": [1]})])


# ------------------------------------------------------------------ names of parsers


def test_built_in_parsers_are_known():
    assert set(BUILT_IN) <= set(parser_names())


def test_an_unknown_parser_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"'hermess'; known: .*hermes.*qwen3_coder"):
        get_parser("hermess")


class Shout:
    def parse(self, text, *, prefix, tools):
        return ParsedTurn(text.upper(), None, (), ())


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_parsers", dict(registry._parsers))


def test_a_registered_parser_is_found(clean_registry):
    register_parser("shout", Shout())
    assert parse("shout", "hi").content == "HI"
    assert "shout" in parser_names()


def test_what_cannot_parse_is_not_registered():
    with pytest.raises(TypeError, match="needs a method parse"):
        register_parser("nothing", object())


def test_entry_points_are_loaded_when_asked_for(clean_registry, monkeypatch):
    points = [
        EntryPoint("shout", f"{__name__}:never_loaded", registry.ENTRY_POINTS),
        EntryPoint("json", "json:loads", registry.ENTRY_POINTS),
        EntryPoint("same", "fnroll.dialogue.parsers.hermes:HERMES", registry.ENTRY_POINTS),
    ]

    def offered(*, group, name=None):
        return [point for point in points if group == point.group and name in (None, point.name)]

    assert registry.ENTRY_POINTS == "fnroll.parsers"
    monkeypatch.setattr(registry, "entry_points", offered)
    assert {"shout", "json", "same"} < set(parser_names())
    assert get_parser("same") is get_parser("hermes")
    with pytest.raises(TypeError, match="needs a method parse"):
        get_parser("json")


TEMPLATES = {
    "hermes": '{{- \'<tool_call>\\n{"name": "\' }}',
    "qwen3_coder": "'<tool_call>\\n<function=' + tool_call.name + '>\\n' '<parameter='",
    "llama": "<|start_header_id|>ipython<|end_header_id|>",
    "gpt_oss": "'<|start|>assistant to=functions.' + name + '<|channel|>commentary json<|message|>'",
    "mistral": "{{- '[TOOL_CALLS]' }}",
    "gemma4": "'<|tool_call>call:' + function['name'] + '{'",
    "glm": "<tool_call>{{ tc.name }}<arg_key>{{ k }}</arg_key>",
    "deepseek": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>",
    None: "{% for message in messages %}{{ message.content }}{% endfor %}",
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_detection_by_template(name, template):
    assert detect_parser(template) == name
