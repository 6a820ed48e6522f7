"""Calls in reasoning, and markers of reasoning elsewhere."""

import pytest

from tests.dialogue.parsers.written import ONE_CALL, F, coder, hermes, named, parse

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
