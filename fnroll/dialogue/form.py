"""How a chat template wants to see messages: contents as text or in parts, calls as objects or as text."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from fnroll.dialogue.message import Message


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a message."""

    content: Literal["text", "parts"] = "text"
    """Whether the template wants a content as a string, or as a list of parts, as those of images do."""
    arguments: Literal["object", "text"] = "object"
    """Whether the template encodes the arguments of a call itself, or wants them as a string of JSON."""
    empty: str | None = ""
    """The content of a message that has tool calls and no content."""

    def show(self, message: Message) -> dict[str, Any]:
        """Return a message in this form."""
        shown = dict(message)
        if calls := shown.get("tool_calls"):
            shown["tool_calls"] = [self._show_call(call) for call in calls]
            shown["content"] = shown.get("content") or self.empty
        if self.content == "parts" and isinstance(shown.get("content"), str):
            shown["content"] = [{"type": "text", "text": shown["content"]}]
        return shown

    def _show_call(self, call: Message) -> dict[str, Any]:
        if "function" in call:
            return {**call, "function": self._show_call(call["function"])}
        arguments = call["arguments"]
        encode = _decode if self.arguments == "object" else _encode
        return {**call, "arguments": encode(arguments)}


USUAL = Form()
"""What most templates want."""


def find_form(render: Callable[[Form, Sequence[Message]], str]) -> Form:
    """Return the form in which a chat template writes everything, by showing it messages in each.

    Args:
      render: writes a conversation in a form.
    """
    usual = next((form for form in _CONTENTS if _is_said(_try(render, form, _CALLED[:1]))), USUAL)
    before = _try(render, usual, _CALLED[:1])
    for empty, kind in itertools.product(("", None), _KINDS):
        form = replace(usual, arguments=kind, empty=empty)
        if any(_is_called(_try(render, form, seen), before) for seen in (_CALLED, _CALLED[:-1])):
            return form
    return usual


def _try(
    render: Callable[[Form, Sequence[Message]], str], form: Form, conversation: Sequence[Message]
) -> str:
    """Return what the template writes; nothing where it refuses the form or the conversation."""
    try:
        return render(form, conversation)
    except ValueError:
        return ""


_CONTENTS = (Form(), Form(content="parts"))
_KINDS: tuple[Literal["object", "text"], ...] = ("object", "text")
_KEY, _VALUE = "fnrollkey", "fnrollvalue"
# Its id has nine letters or digits: what the strictest templates ask for.
_PROBE = {"name": "fnrollcall", "arguments": {_KEY: _VALUE}}
_CALLED: tuple[Message, ...] = (
    {"role": "user", "content": "probe question"},
    {"role": "assistant", "tool_calls": [{"type": "function", "id": "probecall", "function": _PROBE}]},
    {"role": "tool", "name": "fnrollcall", "tool_call_id": "probecall", "content": "probe output"},
)


def _is_said(text: str) -> bool:
    return _CALLED[0]["content"] in text and "'text'" not in text


def _is_called(text: str, before: str) -> bool:
    """Whether a template has written the call: neither left out, nor as Python would, nor encoded twice."""
    is_whole = all(word in text for word in ("fnrollcall", _KEY, _VALUE))
    is_python = f"'{_KEY}'" in text or text.count("None") > before.count("None")
    return is_whole and not is_python and f'\\"{_KEY}' not in text


def _decode(arguments: Any) -> Any:
    """Return the object that a string of JSON is, and anything else as it is."""
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _encode(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
