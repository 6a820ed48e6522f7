"""Texts that are made to take long: what a parser looks for, again and again, and never what it needs."""

from tests.dialogue.parsers.written import ONE_CALL

MARKERS = {
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
        "function",
        "\n```json\n",
        "```",
        "<｜DSML｜tool_calls>",
        '<｜DSML｜invoke name="f">',
        '<｜DSML｜invoke name="f"/>',
        '<｜DSML｜parameter name="x" string="true">',
        '<｜DSML｜parameter name="y" string="false">',
        "<｜DSML｜parameter",
        "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",
    ),
    "gemma4": (
        "<|tool_call>",
        "call:",
        "f{",
        "x:",
        '<|"|>',
        "<tool_call|>",
        "<|channel>thought\n",
        "<channel|>",
    ),
    "glm": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "gpt_oss": (
        "<|start|>",
        "assistant",
        " to=functions.f",
        "<|channel|>",
        "analysis",
        "final",
        "<|message|>",
        "<|end|>",
        "<|call|>",
    ),
    "hermes": ("<tool_call>", "</tool_call>"),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "functions.f:0",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
        "<|open|>response<|sep|>",
        "<|close|>think<|sep|>",
        '<|open|>call tool="f" index="1"<|sep|>',
        '<|open|>argument key="x" type="number"<|sep|>',
        "<|open|>argument",
        "<|close|>argument<|sep|>",
        "<|close|>call<|sep|>",
    ),
    "llama": ("<|python_tag|>", "<|python_start|>", "<|python_end|>", "[f(", "f(", "x=", ")]", ";", "True"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "f[ARGS]{}"),
    "qwen3_coder": (
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=x>",
        "<parameter=x",
        "</parameter>",
        "\n<parameter=y>\n",
        "\n</parameter>\n",
    ),
}

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

FILLERS = (
    " ",
    "\n",
    "[",
    "[[]],",
    '{"a":',
    "x",
    "1",
    '"',
    "'",
    ",",
    "<think>",
    "</think>",
    "</think><think>",
)


def hostile_texts(name):
    """Pairs of a beginning and what is repeated behind it."""
    markers, call = MARKERS[name], ONE_CALL[name]
    yield from (("", unit) for unit in (*markers, *UNITS[name], *FILLERS, call, call[:-1], call[1:]))
    ends = {call.find(marker) + len(marker) for marker in markers if marker in call} | {len(call) // 2}
    ends |= {call.find(marker) for marker in markers if marker in call}
    # A call that is broken at one place.
    yield from (("", call[:end] + "x" + call[end:]) for end in sorted(ends))
    # A call that was begun and goes on for ever: white space after its name, nested lists, unclosed strings.
    yield from ((call[:end], filler) for end in sorted(ends) for filler in FILLERS)


def hostile(head, unit, size):
    """A text of `size` characters."""
    return head + unit * max((size - len(head)) // len(unit), 1)
