"""Exact ids of a conversation: the first prompt, and what comes between a sampled turn and the next.

A record only ever grows. Sampled ids are kept as they were drawn and never encoded again; a `Chat` computes
the ids to append after them, so that the whole equals what the chat template and the tokenizer make of the
full conversation wherever the template lets it. See `docs/conversations.md`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fnroll.dialogue.content import plain_messages
from fnroll.dialogue.control import Encoder, map_text, repair
from fnroll.dialogue.message import Message
from fnroll.dialogue.template import Ending, Template, find_ending, init_mark


@dataclass(frozen=True, slots=True)
class Segment:
    """Ids to append to a record before the next turn is sampled; none of them was sampled."""

    ids: tuple[int, ...]
    """The ids."""
    text: str
    """Their text."""
    prefix: str
    """The assistant header the text ends with, which a parser needs to read the turn after it."""
    messages: tuple[Message, ...]
    """The conversation so far: pass it to the next `continue_turn`."""
    is_exact: bool = True
    """The record's text so far is what the template writes for `messages`. False where the template
    rewrites the turn it follows (drops its reasoning, strips it), and where the turn ended on a stop
    token that is not the template's own."""
    rendered: str | None = None
    """What the template writes for `messages`; spares the next `continue_turn` a render."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat template and its tokenizer, ready to join turns. Made by `init_chat`."""

    template: Template
    """The template with its tools and options."""
    encoder: Encoder
    """The tokenizer with its control tokens."""
    stops: Mapping[int, str]
    """Spellings of the ids that end a turn."""
    allow_control_tokens: bool = False
    """Control tokens spelled in new messages become control tokens."""
    continue_final_message: bool = False
    """A prompt may end with an assistant message, which the first turn then goes on with."""
    rewrites_after: frozenset[str] = frozenset()
    """Roles whose messages make the template rewrite the turn before them, out of "tool", "user"."""
    header: str = ""
    """The assistant header that the template usually writes; found anew where a text ends otherwise."""

    def render_prompt(self, messages: Sequence[Message]) -> Segment:
        """Return the ids of a first prompt, assistant header included.

        The messages come from whoever writes the prompts, so control tokens spelled in them count as such.

        Args:
          messages: the conversation, in OpenAI's form.

        Raises:
          ValueError: if the messages are malformed, the template refuses them, or they end with an assistant
            message that nobody asked to go on with.
        """
        messages = plain_messages("messages", messages)
        text = self._prompt_text(messages)
        ids = tuple(self.encoder.encode_first(text))
        return Segment(ids, text, self._prefix(messages, text), messages, rendered=text)

    def _prompt_text(self, messages: Sequence[Message]) -> str:
        if messages[-1]["role"] != "assistant":
            return self.template.render(messages)
        if messages[-1].get("tool_calls"):
            raise ValueError("the messages end with tool calls that no tool message answers")
        if not self.continue_final_message:
            raise ValueError(
                "the messages end with an assistant message; set continue_final_message=True to go on with "
                "it, or end with another role"
            )
        return self.template.render_begun(messages)

    def continue_turn(
        self,
        history: Sequence[Message],
        sampled: Sequence[int],
        following: Sequence[Message],
        calls: Sequence[Mapping[str, Any]] = (),
        *,
        rendered: str | None = None,
    ) -> Segment:
        """Return the ids between a sampled turn and the next one.

        After the template's own stop token these are its separator, the new messages and the next header.
        After another stop token, or none, the template's whole end of turn comes first.

        Args:
          history: the conversation before the turn: `messages` of the segment the turn was sampled after.
            May be empty where only the ids of a prompt are known.
          sampled: the turn's ids, with its stop id if it ended on one.
          following: the messages after the turn, adjacent tool messages in call order.
          calls: the turn's calls, `{"name": ..., "arguments": {...}, "id": ...}` with the id left out where
            the template needs none. Only read where the template refuses the turn's plain text.
          rendered: `rendered` of the segment that `history` comes from, if it is at hand.

        Raises:
          ValueError: if a message is malformed or the template shows no end of the turn.
        """
        asked = plain_messages("history", tuple(history) or _QUESTION)
        following = map_text(plain_messages("following", following), repair)
        prompt = self._prompt_text(asked) if rendered is None else rendered
        history, begun = _split_begun(asked)
        sampled_text, ended = self.turn_text(sampled), _stop_at_end(sampled, self.stops)
        text = begun + sampled_text
        end, cut = _init_marks(prompt, text, repr(following))
        shown = following if self.allow_control_tokens else self.encoder.shield(following, cut)
        ending = find_ending(self.template, self.stops, history, text, shown, calls, end)
        joined = _text_after(ending, ended)
        pieces = joined.split(cut)
        joined = "".join(pieces)
        messages = (*history, _strip_gap(ending, ended), *following)
        whole = self.template.render(messages)
        if not whole.startswith(prompt):
            # The prompt may be from before midnight, and the template may write the date.
            prompt = self._prompt_text(asked)
        stop = "" if ended is None else self.stops[ended]
        return Segment(
            ids=tuple(self.encoder.encode_pieces(pieces, ending.stop, inside=ended is None)),
            text=joined,
            prefix=self._prefix(messages, whole),
            messages=messages,
            is_exact=ended in (None, ending.stop_id) and whole == prompt + sampled_text + stop + joined,
            rendered=whole,
        )

    def surely_exceeds(self, outputs: Iterable[str], count: int) -> bool:
        """Return whether outputs take more than `count` tokens, told from the start of a huge text.

        No answer is given for a text of ordinary size: False says nothing.

        Args:
          outputs: contents of messages; white space around them may be nothing to a template.
          count: of tokens.
        """
        text = "".join(output.strip() for output in outputs)
        start = text[: _HUGE * (count + 1)]
        if len(start) == len(text):
            return False
        cut = init_mark(start)
        shown = start if self.allow_control_tokens else self.encoder.shield(start, cut)
        pieces = Counter(shown.split(cut))
        return sum(len(self.encoder.encode(piece)) * times for piece, times in pieces.items()) > count + 1

    def turn_text(self, sampled: Sequence[int]) -> str:
        """Return the text of one sampled turn for a parser, without its final stop id.

        The turn is decoded as a whole, control tokens spelled out. A character that the turn's end cuts in
        half shows as U+FFFD, or not at all, as the tokenizer decides; its ids stay in the record.
        """
        ended = _stop_at_end(sampled, self.stops) is not None
        return self.encoder.decode(sampled[: len(sampled) - ended])

    def _prefix(self, messages: Sequence[Message], text: str) -> str:
        """Return what a turn after `text` answers to, with what is there already of its message."""
        if self.header and text.endswith(self.header):
            return self.header
        history, begun = _split_begun(messages)
        return self.template.header(history, text, self.encoder.controls) or begun


# Characters for each token that fits, from which on a text is first looked at by its start alone.
_HUGE = 8

# Stands in for the conversation of a record that came as ids only: some templates refuse one without a user.
_QUESTION: tuple[Message, ...] = ({"role": "user", "content": "?"},)


def _init_marks(*texts: str) -> tuple[str, str]:
    end = init_mark(*texts)
    return end, init_mark(*texts, end)


def _stop_at_end(sampled: Sequence[int], stops: Mapping[int, str]) -> int | None:
    return sampled[-1] if len(sampled) and sampled[-1] in stops else None


def _text_after(ending: Ending, ended: int | None) -> str:
    """Return the text to append after a turn that ended on the stop id `ended`, or on none."""
    if ended == ending.stop_id:
        return ending.after
    gap = ending.gap if ended is None else ""
    return gap + ending.stop + ending.after


def _strip_gap(ending: Ending, ended: int | None) -> Message:
    """Return the turn's message without what the template writes itself before the stop token."""
    content = ending.turn["content"]
    if ended != ending.stop_id or not ending.gap or not content:
        return ending.turn
    return {**ending.turn, "content": content.removesuffix(ending.gap)}


def _split_begun(messages: Sequence[Message]) -> tuple[tuple[Message, ...], str]:
    """Return a conversation without the assistant message that it ends with, and what that says."""
    *history, last = messages
    return (tuple(history), last["content"]) if last["role"] == "assistant" else (tuple(messages), "")
