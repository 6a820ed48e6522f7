"""From a record's prompt to its ids, and from files to prompts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fnroll.dialogue.chat import Chat, Segment
from fnroll.records.files.lines import parse_json, read_lines
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

    def _refuse_foreign(self, record: RolloutRecord, ids: list[Any]) -> None:
        for place, token in enumerate(ids):
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"{record.label}: prompt_ids[{place}] is {token!r}; ids must be ints from 0 to "
                    f"{self.vocab_size - 1}"
                )

    def _render(self, record: RolloutRecord) -> Segment | None:
        messages = [dict(message) for message in record.messages or ()]
        if self.tokenizer is None:
            raise ValueError(
                f"{record.label}: a prompt of messages needs a tokenizer; give prompt_ids instead"
            )
        if self.chat is None:
            return None
        try:
            return self.chat.render_prompt(messages)
        except ValueError as error:
            raise ValueError(f"{record.label}: {error}") from error

    def _only_text(self, record: RolloutRecord) -> str:
        messages = list(record.messages or ())
        if len(messages) > 1 or messages[0].get("role") != "user":
            raise ValueError(
                f"{record.label}: the tokenizer has no chat template, so a prompt must be ids or one user "
                f"message"
            )
        return str(messages[0]["content"])


def check_prompt(record: RolloutRecord) -> None:
    """Require a prompt that says something, in messages that a template can read.

    Raises:
      ValueError: saying what is wrong; the caller knows which record or line it is.
    """
    if record.prompt_ids is not None:
        if not record.prompt_ids:
            raise ValueError("the prompt is empty; it must hold at least one token")
        return
    for place, message in enumerate(record.messages or ()):
        content = message.get("content")
        if not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f"messages[{place}] is {message!r}; a message has a role and content")
        if isinstance(content, str) and any("\ud800" <= char <= "\udfff" for char in content):
            raise ValueError(f"messages[{place}] holds a lone surrogate, which has no UTF-8")
    if not any(message.get("content") for message in record.messages or ()):
        raise ValueError("the prompt is empty; it must hold at least one message with content")


def _parse_line(line: str) -> RolloutRecord:
    record = _to_record(line)
    check_prompt(record)
    return record


def _to_record(line: str) -> RolloutRecord:
    value = parse_json(line)
    if isinstance(value, str):
        return RolloutRecord(messages=[{"role": "user", "content": value}])
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return RolloutRecord(messages=value)
    if isinstance(value, list) and all(type(item) is int for item in value):
        return RolloutRecord(prompt_ids=value)
    if isinstance(value, dict):
        if "prompt" in value:
            content = value.pop("prompt")
            if not isinstance(content, str):
                raise ValueError(f"prompt is {content!r}; it must be a string")
            if "messages" in value or "prompt_ids" in value:
                raise ValueError("a prompt needs one of prompt, messages and prompt_ids, both given")
            value["messages"] = [{"role": "user", "content": content}]
        return RolloutRecord.from_dict(value)
    raise ValueError(
        "a prompt must be a string, a list of messages, a list of ids, or an object with prompt, messages or "
        "prompt_ids"
    )


def read_prompts(path: str | os.PathLike[str]) -> list[RolloutRecord]:
    """Read prompts from a file: one a line, as plain text, or (`.jsonl`, `.json`) as JSON Lines.

    A line of JSON is a string, a list of messages, a list of ids, or an object with `prompt`, `messages`
    or `prompt_ids` and any other field of a record, `metadata` for example. Empty lines are left out.

    Raises:
      ValueError: naming the file and the line that is damaged.
    """
    file = Path(path)
    is_json = file.suffix in (".jsonl", ".json")
    records = []
    for number, text in read_lines(file):
        if not text.strip():
            continue
        try:
            records.append(_parse_line(text) if is_json else RolloutRecord(messages=[_user_message(text)]))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: {error}") from error
    return records


def _user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text.strip()}
