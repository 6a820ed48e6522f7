"""What every family of parsers does."""

import pytest

from fnroll.dialogue.message import ParsedTurn
from tests.dialogue.parsers.written import BUILT_IN, ONE_CALL, F, hermes, named, parse


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
            "The tool call could not be read: its arguments are nested too deeply, beyond 128 levels."
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
