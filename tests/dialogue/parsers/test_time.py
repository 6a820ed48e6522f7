"""Parsing takes time in proportion to the text."""

import time

import pytest

from tests.dialogue.parsers.written import BUILT_IN, ONE_CALL, F, parse

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
