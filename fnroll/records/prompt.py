"""From files, and from what a caller has, to prompts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fnroll.dialogue.message import Message
from fnroll.records.files.lines import parse_json, read_lines
from fnroll.records.record import RolloutRecord

Prompt = str | Sequence[Message] | Sequence[int]


def as_record(prompt: Prompt | RolloutRecord) -> RolloutRecord:
    """Return the record of a prompt: a string (one user message), messages, or ids.

    Raises:
      ValueError: if it is none of these.
    """
    if isinstance(prompt, RolloutRecord):
        return prompt
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError("a prompt is an empty string; it must hold at least one character")
        return RolloutRecord(messages=[{"role": "user", "content": prompt}])
    if hasattr(prompt, "tolist"):  # a tensor or an array
        prompt = prompt.tolist()
    if isinstance(prompt, Sequence):
        items: list[Any] = list(prompt)
        if all(isinstance(item, int) for item in items):
            return RolloutRecord(prompt_ids=items)
        if all(isinstance(item, dict) for item in items):
            return RolloutRecord(messages=items)
    raise ValueError(
        f"a prompt is {prompt!r}; it must be a string, a list of messages (dicts with role and content) or a "
        f"list of ids"
    )


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
