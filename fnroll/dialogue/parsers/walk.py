"""What a walk over a sampled turn has read so far: text, reasoning and calls, told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fnroll.dialogue.message import Outcome, ParsedTurn, ParseError, ToolCall


@dataclass
class Walk:
    """What was read so far.

    What stands before the last closing marker of reasoning is thought: its calls are not made.
    """

    content: list[str] = field(default_factory=list)
    """Text of the answer."""
    reasoning: list[str] = field(default_factory=list)
    """Blocks that are closed."""
    stretch: list[str] = field(default_factory=list)
    """Text since the last opening or closing marker: of the open block, or of the answer if none is open."""
    outcomes: list[Outcome] = field(default_factory=list)
    """Calls and errors since the last closing marker."""
    closer: str = ""
    """Closing marker of the block that is open, or empty."""
    since: int = 0
    """Where the stretch begins in the text."""
    is_visible: bool = False
    """Whether anything but white space and reasoning was read."""
    may_be_open: bool = True
    """Whether a closing marker without an opening one still ends a block that began before the text."""
    count: int = 0
    """Attempts at calls in the whole turn."""
    is_calling: bool = False
    """Whether a call was attempted since the last closing marker."""

    def add(self, text: str, outcomes: Sequence[Outcome] = ()) -> None:
        """Note what was read next."""
        if text:
            self.stretch.append(text)
        self.outcomes += outcomes
        self.is_calling |= bool(outcomes)
        if not self.is_visible and not self.closer:
            self.is_visible = bool(outcomes) or bool(text.strip())

    def open(self, closer: str, since: int) -> None:
        """Begin a block whose text begins at `since`."""
        if not self.closer:
            self.content += self.stretch
        self.stretch = []
        self.closer, self.since, self.may_be_open = closer, since, False

    def close(self, text: str, begin: int, marker: str) -> None:
        """End a block at the closing marker that begins at `begin`, or take the marker for a mention.

        Nothing opened a block if reasoning was over before. Then the answer so far was thought too if it
        called; an answer that calls nothing may speak of the marker.
        """
        if not (self.closer or self.may_be_open or self.is_calling):
            self.add(marker)
            return
        self.reasoning.append(text[self.since : begin])
        self.outcomes, self.stretch = [], []
        self.is_visible = bool(self.content)
        self.closer, self.since = "", begin + len(marker)
        self.may_be_open = self.is_calling = False

    def message(self) -> ParsedTurn:
        """Return the turn."""
        answer, thought = (self.content, self.stretch) if self.closer else (self.content + self.stretch, [])
        thoughts = [*self.reasoning, "".join(thought)]
        return ParsedTurn(
            content=trim("".join(answer)),
            reasoning="\n".join(kept for text in thoughts if (kept := trim(text))) or None,
            calls=tuple(outcome for outcome in self.outcomes if isinstance(outcome, ToolCall)),
            errors=tuple(outcome for outcome in self.outcomes if isinstance(outcome, ParseError)),
        )


def trim(text: str) -> str:
    """Without framing newlines; white space alone is nothing."""
    return text.strip("\n") if text.strip() else ""
