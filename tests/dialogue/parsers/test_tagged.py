"""Families that write values between tags."""

import pytest

from fnroll.dialogue.message import ParseError, ToolCall
from tests.dialogue.parsers.written import ONE_CALL, F, coder, named, parse


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


def test_glm_value_without_its_closing_tag():
    text = "<tool_call>f<arg_key>x</arg_key><arg_value>1</tool_call>" + ONE_CALL["glm"]
    assert named(parse("glm", text, tools=[F])) == [("f", {"x": 1})] * 2


def test_glm_an_unclosed_call_does_not_swallow_the_next():
    message = parse("glm", "<tool_call>g<arg_key>y</arg_key><arg_value>1\n" + ONE_CALL["glm"], tools=[F])
    assert named(message) == [("f", {"x": 1})]
    assert [type(outcome) for outcome in message.outcomes] == [ParseError, ToolCall]


def test_deepseek_tagged_values_say_their_type():
    body = '<｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>'
    body += '<｜DSML｜parameter name="b" string="false">[1]</｜DSML｜parameter>'
    body += '<｜DSML｜parameter name="c" string="false">oops</｜DSML｜parameter>'
    message = parse(
        "deepseek", f'Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">{body}</｜DSML｜invoke>'
    )
    assert named(message) == [("f", {"a": "1", "b": [1], "c": "oops"})]
    assert message.content == "Hm."


def test_kimi_xtml():
    text = (
        "why<|close|>think<|sep|><|open|>response<|sep|>ok<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a&amp;b" type="array"<|sep|>[1]'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>"
    )
    message = parse("kimi", text, prefix='<|open|>message role="assistant"<|sep|><|open|>think<|sep|>')
    assert (message.reasoning, message.content, named(message)) == ("why", "ok", [("f", {"a&b": [1]})])
