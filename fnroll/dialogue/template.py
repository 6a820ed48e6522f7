"""Show conversations to a chat template and find a sampled turn's end in what it writes.

The text between two turns cannot be computed from the new messages alone: templates put a separator after the
end of a turn, group tool messages, number them, or refuse a conversation without a user. So the whole
conversation is rendered with a *mark* where the sampled turn's text ends, and what the template writes after
the mark is the join.
"""

import bisect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fnroll.dialogue.control import Tokenizer
from fnroll.dialogue.form import USUAL, Form
from fnroll.dialogue.message import Message


@dataclass(frozen=True, slots=True)
class Template:
    """A tokenizer's chat template with its tools and options."""

    tokenizer: Tokenizer
    """The tokenizer that holds the template."""
    tools: tuple[Mapping[str, Any], ...]
    """JSON schemas of the tools."""
    options: Mapping[str, Any]
    """More variables for the template, such as `enable_thinking`."""
    form: Form = USUAL
    """How it wants to see tool calls."""

    def render(self, messages: Sequence[Message], *, header: bool = True) -> str:
        """Return the text of a conversation.

        Args:
          messages: the conversation.
          header: end with the header that asks the assistant to speak.

        Raises:
          ValueError: if the template refuses the messages.
        """
        try:
            text: str = self.tokenizer.apply_chat_template(
                [self.form.show(message) for message in messages],
                tools=[dict(tool) for tool in self.tools] or None,
                add_generation_prompt=header,
                tokenize=False,
                **self.options,
            )
        except Exception as error:  # templates raise whatever their expressions raise
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise ValueError(f"the chat template refuses messages with the roles {roles}: {error}") from error
        return text

    def render_begun(self, messages: Sequence[Message]) -> str:
        """Return the text of a conversation up to where its last message's content ends.

        Args:
          messages: the conversation; its last message is the assistant's, to be gone on with.

        Raises:
          ValueError: if the template refuses the messages, or does not write that content as it is.
        """
        *history, last = messages
        content = last["content"]
        mark = init_mark(content)
        text = self.render([*history, {**last, "content": content + mark}], header=False)
        begun, found, _ = text.rpartition(mark)
        # White space before a message is the template's to strip.
        if not found or not begun.endswith(content.lstrip()):
            raise ValueError("the chat template rewrites the assistant message that is to be gone on with")
        return begun

    def header(self, messages: Sequence[Message], text: str, controls: re.Pattern[str]) -> str:
        """Return the assistant header at the end of a rendered text: what the template adds when asked for
        one.

        Args:
          messages: the conversation.
          text: `render(messages)`.
          controls: finds control tokens; the header starts with a whole one.
        """
        try:
            bare = self.render(messages, header=False)
        except ValueError:
            return ""
        start = _shared_start(text, bare)
        # Two control tokens may begin alike: `<|im_start|>` here and `<|endoftext|>` at the end without a
        # header.
        cut = (m.start() for m in controls.finditer(text, max(0, start - 64)) if m.start() < start < m.end())
        return text[next(cut, start) :]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a template goes on after the text of an assistant turn."""

    gap: str
    """What it writes between that text and the stop token."""
    stop_id: int
    """The stop token it writes."""
    stop: str
    """That token's spelling."""
    after: str
    """What it writes after the stop token: separator, new messages, next header."""
    turn: Message
    """The assistant message as the next turns should see it."""


def find_ending(
    template: Template,
    stops: Mapping[int, str],
    history: Sequence[Message],
    text: str,
    following: Sequence[Message],
    calls: Sequence[Mapping[str, Any]],
    mark: str,
) -> Ending:
    """Return how the template ends a turn that new messages follow.

    Args:
      template: the chat template.
      stops: spellings of the stop ids.
      history: the conversation before the turn.
      text: the sampled text, without a stop token.
      following: the messages after the turn.
      calls: the turn's tool calls, `{"name": ..., "arguments": {...}}`, for templates that need them.
      mark: a text that occurs in none of the messages.

    Raises:
      ValueError: if the template refuses the messages, or ends the turn on none of the stop tokens.
    """
    refusals, forms = [], list(_forms(text, calls, following, mark))
    for shown, turn in forms:
        try:
            rendered = template.render([*history, shown, *following])
        except ValueError as error:
            refusals.append(error)
            continue
        _, found, rest = rendered.rpartition(mark)
        at, stop_id = _first_stop(rest, stops)
        if found and stop_id is not None:
            stop = stops[stop_id]
            gap = "" if "tool_calls" in shown else rest[:at]
            return Ending(gap, stop_id, stop, rest[at + len(stop) :], turn)
    # A template that takes no form at all says itself why.
    raise refusals[0] if len(refusals) == len(forms) else ending_error(stops, following[0]["role"])


def _forms(
    text: str, calls: Sequence[Mapping[str, Any]], following: Sequence[Message], mark: str
) -> Iterator[tuple[Message, Message]]:
    """Yield ways to show a sampled turn: with the mark at its end, and as later turns should see it.

    The sampled text itself comes first. A template may refuse it (some refuse their own markup) or want to
    see the calls that tool messages answer.
    """
    verbatim = {"role": "assistant", "content": text}
    bare = {"role": "assistant", "content": mark}, {"role": "assistant", "content": ""}
    yield {"role": "assistant", "content": text + mark}, verbatim
    if not calls:
        yield bare
        calls = [{"name": following[0].get("name", "tool"), "arguments": {}, **_call_id(following[0])}]
    # Text beside calls, or none.
    for content in (mark, None):
        shown = [_call(call, {"value": mark}) for call in calls]
        kept = [_call(call, dict(call["arguments"])) for call in calls]
        yield (
            {"role": "assistant", "content": content, "tool_calls": shown},
            {"role": "assistant", "content": "", "tool_calls": kept},
        )
    yield bare


def _call(call: Mapping[str, Any], arguments: Any) -> Message:
    identity = {"id": call["id"]} if "id" in call else {}
    return {"type": "function", **identity, "function": {"name": call["name"], "arguments": arguments}}


def _call_id(message: Message) -> Message:
    return {"id": message["tool_call_id"]} if "tool_call_id" in message else {}


def _first_stop(text: str, stops: Mapping[int, str]) -> tuple[int, int | None]:
    """Return the place and the id of the first stop token in a text, the longest if two start there."""
    spelled = {index: stop for index, stop in stops.items() if stop and stop in text}
    places = [(text.find(stop), -len(stop), index) for index, stop in spelled.items()]
    if not places:
        return -1, None
    at, _, stop_id = min(places)
    return at, stop_id


def ending_error(stops: Mapping[int, str], role: str) -> ValueError:
    """Return the error for a template that shows no end of an assistant turn before a message of `role`."""
    spelled = ", ".join(repr(stop) for stop in stops.values())
    return ValueError(
        f"the chat template ends an assistant turn before a {role} message on none of the stop tokens "
        f"{spelled}; pass the stop_ids it writes, or use a template that ends every turn"
    )


def _shared_start(left: str, right: str) -> int:
    """Return how many characters two texts share at their start."""
    if left.startswith(right):
        return len(right)
    lengths = range(1, min(len(left), len(right)) + 1)
    return bisect.bisect_left(lengths, True, key=lambda length: left[:length] != right[:length])


def init_mark(*texts: str) -> str:
    """Return a mark that occurs in none of the texts; no template changes its letters and digits."""
    marks = (f"fnroll{number}mark" for number in itertools.count())
    return next(mark for mark in marks if not any(mark in text for text in texts))
