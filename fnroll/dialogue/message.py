"""What an assistant turn says, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    """One tool call that a turn asks for.

    Attributes:
        name: the tool's name as the model wrote it.
        arguments: argument name to JSON value.
        span: start and end of the call in the turn's text, in characters.
    """

    name: str
    arguments: dict[str, Any]
    span: tuple[int, int]


@dataclass(frozen=True)
class ParseError:
    """A part of a turn that looks like a tool call and is none.

    Attributes:
        text: one sentence for the model: what is wrong.
        span: start and end of the part in the turn's text, in characters.
    """

    text: str
    span: tuple[int, int]


@dataclass(frozen=True)
class Message:
    """An assistant turn, parsed.

    Attributes:
        content: the text outside reasoning and tool calls.
        reasoning: the text inside reasoning blocks.
        calls: the well-formed tool calls, in order.
        errors: the malformed ones, in order.
    """

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    errors: tuple[ParseError, ...]
