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


# ------------------------------------------------------------------ more than one closing marker

CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.mark.parametrize(("name", "call"), CALLS_IN_TAGS)
@pytest.mark.parametrize(
    ("prefix", "start", "first"),
    [
        ("", "</think>\n", None),
        ("", "<think></think>", None),
        ("", "<think>so</think>", "so"),
        (CLOSED, "", None),
    ],
)
def test_reasoning_that_is_closed_again_was_reasoning_all_along(name, call, prefix, start, first):
    text = f"{start}Perhaps {call} then.\n</think>\n\n{call}"
    message = parse(name, text, prefix=prefix, tools=[F])
    assert named(message) == [("f", {"x": 1})]
    assert message.calls[0].span == (len(text) - len(call), len(text))
    again = f"Perhaps {call} then."
    assert message.reasoning == (f"{first}\n{again}" if first else again)
    assert (message.content, message.errors) == ("", ())


@pytest.mark.parametrize(("name", "call"), CALLS_IN_TAGS)
def test_a_turn_that_ends_in_a_closing_marker_calls_nothing(name, call):
    message = parse(name, f"</think>{call}</think>", prefix="", tools=[F])
    assert (message.calls, message.errors, message.content) == ((), (), "")
    assert message.reasoning == call


def test_a_call_before_a_later_block_is_no_call_and_the_answer_before_it_stays():
    message = parse("hermes", f"One. {hermes('a')}<think>no</think> Two. {hermes('b')}<think>{hermes('c')}")
    assert [call.name for call in message.calls] == ["b", "c"]
    assert message.content.startswith("One. ")


def test_a_broken_call_before_a_later_closing_marker_is_no_error():
    for broken in (
        "<tool_call>{oops",
        "<tool_call>{oops</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": "',
    ):
        message = parse("hermes", f"{broken} hm</think>{hermes('f')}", prefix=CLOSED)
        assert (named(message), message.errors, message.content) == ([("f", {})], (), "")
        assert message.reasoning == f"{broken} hm"


def test_a_closing_marker_in_a_string_of_a_broken_call_is_data():
    broken = '<tool_call>{"name": "f", "arguments": {"x": "a </think> b",}}</tool_call>'
    message = parse("hermes", hermes("g") + broken, prefix=CLOSED)
    assert (named(message), len(message.errors), message.reasoning) == ([("g", {})], 1, None)


def test_a_closing_marker_between_the_calls_of_a_section_counts():
    one, two = (
        f'<|tool_call_begin|>functions.f:{n}<|tool_call_argument_begin|>{{"x": {n}}}<|tool_call_end|>'
        for n in (1, 2)
    )
    text = f"<|tool_calls_section_begin|>{one} no</think>{two}<|tool_calls_section_end|>"
    assert named(parse("kimi", text, prefix="<think></think>")) == [("f", {"x": 2})]
    quoting = one.replace("1}", '"</think>"}')
    text = f"<|tool_calls_section_begin|>{quoting}{two}<|tool_calls_section_end|>"
    assert named(parse("kimi", text, prefix="<think></think>")) == [("f", {"x": "</think>"}), ("f", {"x": 2})]


def test_an_answer_after_a_second_closing_marker_may_begin_with_calls():
    text = "Let me see [f(x=0)].</think>\n\n[f(x=1)]"
    assert named(parse("llama", text, prefix=CLOSED)) == [("f", {"x": 1})]


def test_harmony_calls_before_the_last_thought_were_thoughts():
    thought = "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
    text = thought + ONE_CALL["gpt_oss"] + thought + ONE_CALL["gpt_oss"].replace("1", "2")
    message = parse("gpt_oss", text)
    assert (named(message), message.reasoning) == ([("f", {"x": 2})], "hm\nhm")
    # Nothing follows the last thought: it is not closed.
    assert named(parse("gpt_oss", ONE_CALL["gpt_oss"] + thought)) == [("f", {"x": 1})]
