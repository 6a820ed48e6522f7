"""Messages as people write them, made messages that chat templates can write.

People write OpenAI's form: a content of several parts, a turn of tool calls without any content, keys that
hold nothing. A template that is shown such a message leaves it out, fails, or writes Python's spelling of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fnroll.dialogue.message import Message

_ALLOWED = "it must be a string or a list of text parts"


def plain_messages(name: str, messages: Any) -> tuple[Message, ...]:
    """Return messages whose contents are strings, without the keys that hold nothing.

    Text parts are joined as they are. The content of an assistant message that says something else, tool
    calls for example, may be missing and is then empty.

    Args:
      name: how errors name the list.
      messages: dicts, each with a role.

    Raises:
      ValueError: naming the place in the list that no template can write.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise ValueError(f"{name} is {messages!r}; it must be a non-empty list of messages")
    return tuple(_plain_message(f"{name}[{place}]", message) for place, message in enumerate(messages))


def _plain_message(where: str, message: Any) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"{where} is {message!r}; a message has a role and content")
    plain = {key: value for key, value in message.items() if value is not None}
    if plain.get("function_call"):
        raise ValueError(f"{where} has a function_call, which no template reads; write tool_calls")
    if "tool_calls" in plain:
        plain["tool_calls"] = _plain_calls(f"{where}.tool_calls", plain["tool_calls"])
        if not plain["tool_calls"]:
            del plain["tool_calls"]
    says_else = any(value for key, value in plain.items() if key not in ("role", "name", "content"))
    if "content" not in plain and not (plain["role"] == "assistant" and says_else):
        raise ValueError(f"{where} is {message!r}; a message has a role and content")
    return {**plain, "content": _plain_content(f"{where}.content", plain.get("content", ""))}


def _plain_content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError(f"{where} is {content!r}; {_ALLOWED}")
    return "".join(_text_of(f"{where}[{place}]", part) for place, part in enumerate(content))


def _text_of(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(text, str):
        return text
    if isinstance(kind, str) and kind != "text":
        raise ValueError(f"{where} is a part of type {kind!r}; only text parts are supported")
    raise ValueError(f"{where} is {part!r}; it must be a text part: {{'type': 'text', 'text': ...}}")


def _plain_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise ValueError(f"{where} is {calls!r}; it must be a list of tool calls")
    return [_plain_call(f"{where}[{place}]", call) for place, call in enumerate(calls)]


def _plain_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where} is {call!r}; a tool call has a function with a name and arguments")
    arguments = function.get("arguments")
    if not isinstance(arguments, str | Mapping | None):
        raise ValueError(
            f"{where}.arguments is {arguments!r}; it must be an object, or a string of JSON that is one"
        )
    # A call without arguments is written in all these ways.
    empty = arguments is None or (isinstance(arguments, str) and not arguments.strip())
    plain = {**function, "arguments": {} if empty else arguments}
    kept = {key: value for key, value in call.items() if value is not None}
    return {**kept, "function": plain} if "function" in call else plain
