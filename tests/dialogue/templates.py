"""Small chat templates, each with one habit of the public ones that makes joining turns hard."""

CHATML = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Adjacent tool messages share one user turn.
_GROUP = """{%- elif m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"""

GROUPED = (
    """{%- for m in messages %}{%- if m.role != 'tool' %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"""
    + _GROUP
    + """{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
)

NO_NEWLINE = CHATML.replace("<|im_end|>\\n", "<|im_end|>")

NEEDS_USER = (
    """{%- if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}
{{- raise_exception('No user query found in messages.') }}{% endif %}
"""
    + GROUPED
)

# The header of a tool turn is only written after another message.
HEADER_IF_PREVIOUS = """{%- for m in messages %}
{%- if m.role == 'tool' %}{%- if loop.previtem %}{{ '<|im_start|>user\\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' }}{% endif %}
{{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

DEFAULT_SYSTEM = (
    """{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}
"""
    + GROUPED
)

FINAL_EOS = CHATML + "{%- if not add_generation_prompt %}{{ '<|endoftext|>' }}{% endif %}"

NUMBERED = """{%- set ns = namespace(n=0) %}{%- for m in messages %}
{%- if m.role == 'tool' %}{%- set ns.n = ns.n + 1 %}
{{- '<|im_start|>tool\\n[' ~ ns.n ~ '] ' + m.content + '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# A line end between the answer and the end of the turn.
GAP = """{%- for m in messages %}
{{- '<|' ~ 'im_start|>' + m.role + '\\n' + m.content + '\\n<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Strips contents, writes tool outputs as JSON strings, no line end anywhere.
TRIMMED_JSON = """{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|im_start|>tool' + (m.content | tojson) + '<|im_end|>' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + (m.content | trim) + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# No header for the assistant; BOS in the template; users and assistants must alternate.
INST = """{{- '<s>' }}{%- for m in messages %}
{%- if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}{{ '[INST]result: ' + m.content + '[/INST]' }}
{%- else %}{{ m.content + '</s>' }}{% endif %}
{%- endfor %}"""

# Tool messages must answer a call of the assistant, whose name stands in their header.
NEEDS_CALLS = """{%- set ns = namespace(name='') %}{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if not ns.name %}{{ raise_exception('a tool message without a call') }}{% endif %}
{{- '<|im_start|>' + ns.name + '\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] %}{%- set ns.name = call.function.name %}
{{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Drops reasoning before the last user message, as reasoning models' templates do.
THINKING = (
    """{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{% endif %}{%- endfor %}
{%- for m in messages %}{%- if m.role == 'assistant' %}
{%- set answer = m.content.split('</think>')[-1].lstrip('\\n') %}
{%- set thought = m.content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{{- '<|im_start|>assistant\\n' }}
{%- if '</think>' in m.content and loop.index0 > ns.last %}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}
{{- answer + '<|im_end|>\\n' }}
{%- elif m.role != 'tool' %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"""
    + _GROUP
    + """{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
)

# The end of a turn stands only at the end of the whole conversation, or nowhere.
EOS_AT_END_ONLY = """{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}
{%- if loop.last and m.role == 'assistant' %}{{ '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""

DROPS_TOOLS = """{%- for m in messages %}{%- if m.role != 'tool' %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

REFUSES_TOOLS = """{%- for m in messages %}
{%- if m.role == 'tool' %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Every one of these lets joined ids equal a full render, on the stop token named with it.
APPEND_ONLY = {
    "chatml": (CHATML, "<|im_end|>"),
    "grouped": (GROUPED, "<|im_end|>"),
    "no_newline": (NO_NEWLINE, "<|im_end|>"),
    "needs_user": (NEEDS_USER, "<|im_end|>"),
    "header_if_previous": (HEADER_IF_PREVIOUS, "<|im_end|>"),
    "default_system": (DEFAULT_SYSTEM, "<|im_end|>"),
    "final_eos": (FINAL_EOS, "<|im_end|>"),
    "numbered": (NUMBERED, "<|im_end|>"),
    "gap": (GAP, "<|end|>"),
    "trimmed_json": (TRIMMED_JSON, "<|im_end|>"),
    "inst": (INST, "</s>"),
    "needs_calls": (NEEDS_CALLS, "<|im_end|>"),
    "thinking": (THINKING, "<|im_end|>"),
}

_HEADER = "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

# Ways to write the calls of a turn that stands in the prompt: as JSON that the template encodes, ...
CALLS_AS_JSON = (
    """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}{%- set f = call.function or call %}
{{- '<tool_call>{"name": "' + f.name + '", "arguments": ' + (f.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}"""
    + _HEADER
)

# ... item by item, ...
CALLS_AS_ITEMS = (
    """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{- '<function=' + call.function.name + '>' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>' + value | string + '</parameter>' }}
{%- endfor %}{{- '</function>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}"""
    + _HEADER
)

# ... as the string that it is given, ...
CALLS_AS_TEXT = (
    """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>' + call.function.name + '\\n' }}{{ call.function.arguments }}{{ '</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}"""
    + _HEADER
)

# ... and only where the message has no content.
CALLS_WITHOUT_CONTENT = (
    """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.content is defined and m.content is not none %}{{ m.content }}{% else %}
{%- for call in m.tool_calls %}
{{- '<tool_call>' + call.function.name + '\\n' + call.function.arguments + '</tool_call>' }}
{%- endfor %}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}"""
    + _HEADER
)
