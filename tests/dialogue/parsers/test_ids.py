"""The ids that models write in their calls."""

import pytest

from fnroll.dialogue.parsers import get_parser


def item(identity):
    return '{"name": "f", "arguments": {}, "id": ' + str(identity) + "}"


def found(name, text):
    """Ids of what was read, errors too, in order."""
    return [outcome.id for outcome in get_parser(name).parse(text, prefix="", tools=[]).outcomes]


def kimi(identity, body="{}"):
    return f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>{body}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("kimi", kimi("functions.f:0") + kimi("functions.f:1"), ["functions.f:0", "functions.f:1"]),
        ("kimi", kimi(" functions.f:12 "), ["functions.f:12"]),
        ("kimi", kimi("f"), ["f"]),
        ("kimi", kimi("functions.f:0", "{"), ["functions.f:0"]),
        ("kimi", kimi("functions.f:0", "[]"), ["functions.f:0"]),
        ("kimi", kimi(""), [None]),
        ("kimi", '<|open|>call tool="f" index="1"<|sep|><|close|>call<|sep|>', [None]),
        ("mistral", "[TOOL_CALLS][" + item('"VvvODy9mT"') + "]", ["VvvODy9mT"]),
        ("mistral", "[TOOL_CALLS][" + item('"a"') + ", " + item('"b"') + "]", ["a", "b"]),
        ("mistral", "[TOOL_CALLS][" + item(7) + "]", [None]),
        ("mistral", "[TOOL_CALLS][" + item('" "') + "]", [None]),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": 3, "id": "a"}]', ["a"]),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]VvvODy9mT[ARGS]{}", ["VvvODy9mT"]),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]VvvODy9mT{}", ["VvvODy9mT"]),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}[TOOL_CALLS]g[CALL_ID]b[ARGS]{}", ["a", "b"]),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]a[ARGS]{oops}", ["a"]),
        ("mistral", "[TOOL_CALLS]f[CALL_ID][ARGS]{}", [None]),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}", [None]),
        ("hermes", "<tool_call>" + item('"x"') + "</tool_call>", ["x"]),
        ("hermes", '<tool_call>{"name": "f", "id": "x"}</tool_call>', ["x"]),
        ("llama", "<|python_tag|>" + item('"x"'), ["x"]),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>', [None]),
    ],
)
def test_an_id_is_kept_as_it_was_written(name, text, ids):
    """Case fresh-05."""
    assert found(name, text) == ids
