"""From a record's prompt to its ids."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fnroll.dialogue.chat import Chat, Segment, identify
from fnroll.dialogue.content import plain_messages
from fnroll.dialogue.identity import describe_messages
from fnroll.records.prompt import check_prompt
from fnroll.records.record import RolloutRecord


class Prompts:
    """Encodes prompts with one tokenizer, and checks the ids against one vocabulary.

    Args:
      tokenizer: None if all prompts are ids.
      chat: of the tokenizer, None if it has no chat template.
      vocab_size: ids are below it.
    """

    def __init__(self, tokenizer: Any, chat: Chat | None, vocab_size: int) -> None:
        self.tokenizer, self.chat, self.vocab_size = tokenizer, chat, vocab_size

    def encode(self, record: RolloutRecord) -> tuple[list[int], Segment | None]:
        """Return the ids of a record's prompt, and the conversation it is where that is known.

        Raises:
          ValueError: naming the record, if there is nothing to feed or an id is outside the vocabulary.
        """
        try:
            check_prompt(record)
        except ValueError as error:
            raise ValueError(f"{record.label}: {error}") from error
        segment = None
        if record.prompt_ids is not None:
            ids = list(record.prompt_ids)
        elif (segment := self._render(record)) is not None:
            ids = list(segment.ids)
        else:
            ids = list(self.tokenizer.encode(self._only_text(record)))
        if not ids:
            raise ValueError(f"{record.label}: the prompt is empty; it must hold at least one token")
        if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= self.vocab_size:
            self._refuse_foreign(record, ids)
        return ids, segment

    def describe(self, record: RolloutRecord) -> Mapping[str, str] | None:
        """Return digests of what the template makes the prompt of; None if it makes none of it."""
        if self.chat is None or record.messages is None:
            return None
        return {**self._own, **describe_messages(record.messages)}

    @functools.cached_property
    def _own(self) -> Mapping[str, str]:
        return {} if self.chat is None else identify(self.chat)

    def _refuse_foreign(self, record: RolloutRecord, ids: list[Any]) -> None:
        for place, token in enumerate(ids):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"{record.label}: prompt_ids[{place}] is {token!r}; ids must be ints from 0 to "
                    f"{self.vocab_size - 1}"
                )

    def _render(self, record: RolloutRecord) -> Segment | None:
        if self.tokenizer is None:
            raise ValueError(
                f"{record.label}: a prompt of messages needs a tokenizer; give prompt_ids instead"
            )
        if self.chat is None:
            return None
        try:
            return self.chat.render_prompt(list(record.messages or ()))
        except ValueError as error:
            raise ValueError(f"{record.label}: {error}") from error

    def _only_text(self, record: RolloutRecord) -> str:
        messages = plain_messages("messages", list(record.messages or ()))
        if len(messages) > 1 or messages[0]["role"] != "user":
            raise ValueError(
                f"{record.label}: the tokenizer has no chat template, so a prompt must be ids or one user "
                f"message"
            )
        return str(messages[0]["content"])
