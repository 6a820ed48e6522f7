"""Messages, and what a sampled turn says: text, reasoning, tool calls, and those that could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
"""A message in OpenAI's form: `role`, `content`, and what else the chat template reads."""

Span = tuple[int, int]
"""Half-open range of characters of the sampled text."""


@dataclass(frozen=True)
class ToolCall:
    """One well-formed call, as the model wrote it."""

    name: str
    """Name of the tool, not looked up: it may be unknown."""
    arguments: dict[str, Any]
    """Decoded arguments; not validated against the tool's schema."""
    span: Span
    """Where the call stands in the sampled text, markers included."""
    id: str | None = None
    """What the model itself called the call, in the formats that say so; its tool message carries it."""


@dataclass(frozen=True)
class ParseError:
    """One attempt at a call that could not be read."""

    text: str
    """One sentence that can be shown to the model in place of a tool output."""
    span: Span
    """Where the attempt stands in the sampled text."""
    id: str | None = None
    """As in a `ToolCall`, where it could be read."""


Outcome = ToolCall | ParseError
"""What became of one attempt at a call."""


@dataclass(frozen=True)
class ParsedTurn:
    """A parsed turn."""

    content: str
    """Text outside calls and reasoning, joined in order; framing newlines at both ends are removed."""
    reasoning: str | None
    """Text of the reasoning blocks, or `None` when there is none."""
    calls: tuple[ToolCall, ...]
    """Well-formed calls, in order."""
    errors: tuple[ParseError, ...]
    """Malformed calls, in order."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Calls and errors together, in the order in which the model wrote them."""
        return tuple(sorted((*self.calls, *self.errors), key=lambda outcome: outcome.span))
