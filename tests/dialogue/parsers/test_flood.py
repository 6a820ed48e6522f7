"""What one turn may cost: the most calls that are read of it."""

import pytest

from fnroll.dialogue.message import ParseError
from fnroll.dialogue.parsers.frame import MAX_CALLS
from tests.dialogue.parsers.written import BUILT_IN, ONE_CALL, F, hermes, named, parse

TOO_MANY = (
    "The tool call could not be read: a turn may make at most 4096 calls, and the rest of it was not read."
)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_calls_that_are_too_many_are_one_error(name):
    """Case reliability-02."""
    text = ONE_CALL[name] * (MAX_CALLS + 3)
    message = parse(name, text, tools=[F])
    assert named(message) == [("f", {"x": 1})] * MAX_CALLS
    [error] = message.errors
    assert (error.text, message.outcomes[-1]) == (TOO_MANY, error)
    # From the first call that is too many to the stop token.
    assert message.calls[-1].span[1] <= error.span[0] <= len(text) - 2 * len(ONE_CALL[name])
    assert len(text) - error.span[1] in (0, len("<|call|>"))


@pytest.mark.parametrize("name", BUILT_IN)
def test_as_many_calls_as_allowed_are_all_read(name):
    message = parse(name, ONE_CALL[name] * MAX_CALLS, tools=[F])
    assert (len(message.calls), message.errors) == (MAX_CALLS, ())


def test_broken_calls_count_too():
    message = parse("hermes", "<tool_call>" * (MAX_CALLS + 2) + hermes("f"))
    assert (message.calls, len(message.errors)) == ((), MAX_CALLS + 1)
    assert message.errors[-1].text == TOO_MANY


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "[TOOL_CALLS][" + '{"name": "f"},' * (MAX_CALLS + 1) + "]"),
        ("llama", "[" + "f()," * (MAX_CALLS + 1) + "f()]"),
        ("llama", '<|python_tag|>{"name": "f"}' + ';{"name": "f"}' * MAX_CALLS),
        (
            "kimi",
            "<|tool_calls_section_begin|>"
            + "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>" * (MAX_CALLS + 1),
        ),
    ],
)
def test_calls_in_one_row_are_counted_one_by_one(name, text):
    message = parse(name, text)
    assert [len(message.calls), *(error.text for error in message.errors)] == [MAX_CALLS, TOO_MANY]
    assert isinstance(message.outcomes[-1], ParseError)


def test_nothing_runs_of_a_flood_that_may_have_been_thought():
    """The closing marker was not reached, so nobody knows which of the calls were thoughts."""
    message = parse("hermes", hermes("f") * (MAX_CALLS + 1) + "</think>" + hermes("g"))
    assert (message.calls, [error.text for error in message.errors]) == ((), [TOO_MANY])
    thought = "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
    message = parse("gpt_oss", ONE_CALL["gpt_oss"] * (MAX_CALLS + 1) + thought + ONE_CALL["gpt_oss"])
    assert (message.calls, [error.text for error in message.errors]) == ((), [TOO_MANY])


def test_calls_that_were_thought_count_too():
    text = "<think>" + hermes("f") * (MAX_CALLS - 1) + "</think>" + hermes("g") * 2
    message = parse("hermes", text)
    assert [call.name for call in message.calls] == ["g"]
    assert [error.text for error in message.errors] == [TOO_MANY]
