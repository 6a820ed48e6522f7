"""Calls as the families write them, and how a test reads them."""

import json

from fnroll.dialogue.message import ParsedTurn
from fnroll.dialogue.parsers import get_parser

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
