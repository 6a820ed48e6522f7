"""Families that write calls in JSON, or in literals of Python and Gemma."""

import pytest

from fnroll.dialogue.message import ParseError, ToolCall
from tests.dialogue.parsers.written import ONE_CALL, F, named, parse


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


def test_deepseek_fenced_and_plain_forms():
    fenced = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```<｜tool▁call▁end｜>'
    plain = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>'
    message = parse("deepseek", f"<｜tool▁calls▁begin｜>{fenced}\n{plain}<｜tool▁calls▁end｜>")
    assert named(message) == [("f", {"x": 1}), ("function", {"x": 1})]


def test_kimi_section_that_is_not_closed_does_not_swallow_the_answer():
    call = ONE_CALL["kimi"].removesuffix("<|tool_calls_section_end|>")
    message = parse("kimi", call + " done")
    assert (named(message), message.content) == ([("f", {"x": 1})], " done")
