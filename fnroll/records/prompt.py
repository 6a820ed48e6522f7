"""From files, and from what a caller has, to prompts."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fnroll.checks import plain_number
from fnroll.dialogue.content import plain_messages
from fnroll.dialogue.control import map_text
from fnroll.dialogue.message import Message
from fnroll.records.files.lines import parse_json, read_lines
from fnroll.records.record import RolloutRecord

Prompt = str | Sequence[Message] | Sequence[int] | Mapping[str, Any]

# Columns that say where a prompt belongs; all others but the prompt itself are metadata.
_IDENTITY = ("prompt_id", "group", "sample")
_PROMPTS = frozenset(("prompt", "messages", "prompt_ids"))


def as_record(prompt: Prompt | RolloutRecord) -> RolloutRecord:
    """Return the record of a prompt: a string (one user message), messages, ids, or a row of a data set.

    A row has a column `prompt`, `messages` or `prompt_ids`; columns beside it go into the metadata.

    Raises:
      ValueError: if it is none of these.
    """
    if isinstance(prompt, RolloutRecord):
        return prompt
    if isinstance(prompt, str):
        if not prompt:
            raise ValueError("a prompt is an empty string; it must hold at least one character")
        return RolloutRecord(messages=[_user_message(prompt)])
    if isinstance(prompt, Mapping):
        return _from_row(prompt)
    if isinstance(prompt, Sequence):
        items: list[Any] = list(prompt)
        if items and all(isinstance(item, Mapping) for item in items):
            return RolloutRecord(messages=items)
    if hasattr(prompt, "__len__") and not isinstance(prompt, bytes | set | frozenset):
        record = RolloutRecord(prompt_ids=cast(Sequence[int], prompt))
        if all(type(token) is int for token in record.prompt_ids or ()):
            return record
    raise ValueError(
        f"a prompt is {prompt!r}; it must be a string, a list of messages (dicts with role and content) or a "
        f"list of ids"
    )


def _from_row(row: Mapping[str, Any]) -> RolloutRecord:
    """Return the record of a row of a data set, or of a record that was written as one."""
    given = [name for name in _PROMPTS if row.get(name) is not None]
    if len(given) != 1:
        count = {0: "neither", 2: "both"}.get(len(given), "all")
        raise ValueError(f"a prompt needs one of prompt, messages and prompt_ids, {count} given")
    if row.get("tokens") is not None:
        return RolloutRecord.from_dict(row)
    own = {name: plain_number(row[name]) for name in _IDENTITY if row.get(name) is not None}
    others = {name: row[name] for name in row if name not in (*_PROMPTS, *_IDENTITY, "metadata")}
    metadata = _merge(row.get("metadata"), others)
    if "prompt" not in given:
        return RolloutRecord(**{name: row[name] for name in given}, **own, metadata=metadata)
    prompt = row["prompt"]
    if isinstance(prompt, Mapping | RolloutRecord) or not hasattr(prompt, "__len__"):
        raise ValueError(f"prompt is {prompt!r}; it must be a string or a list of messages")
    if isinstance(prompt, str):
        return RolloutRecord(messages=[_user_message(prompt)], **own, metadata=metadata)
    return as_record(prompt).replace(**own, metadata=metadata)


def _merge(metadata: Any, others: dict[str, Any]) -> Any:
    if metadata is None or not others:
        return others or metadata
    if not isinstance(metadata, Mapping) or (twice := metadata.keys() & others.keys()):
        names = ", ".join(map(repr, sorted(others if not isinstance(metadata, Mapping) else twice)))
        raise ValueError(f"metadata is {metadata!r}; it has no place for the column {names}")
    return {**metadata, **others}


def check_prompt(record: RolloutRecord) -> None:
    """Require a prompt that says something, in messages that a template can read.

    Raises:
      ValueError: saying what is wrong; the caller knows which record or line it is.
    """
    if record.prompt_ids is not None:
        if not len(record.prompt_ids):
            raise ValueError("the prompt is empty; it must hold at least one token")
        return
    messages = plain_messages("messages", list(record.messages)) if record.messages else ()
    for place, message in enumerate(messages):
        map_text(message, functools.partial(_check_encodable, f"messages[{place}]"))
    if not any(message["content"] or message.get("tool_calls") for message in messages):
        raise ValueError("the prompt is empty; it must hold at least one message with content")


def _check_encodable(where: str, text: str) -> str:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError(f"{where} holds a lone surrogate, which has no UTF-8")
    return text


def read_prompts(path: str | os.PathLike[str]) -> list[RolloutRecord]:
    """Read prompts from a file: one a line, as plain text, or (`.jsonl`, `.json`) as JSON Lines.

    A line of JSON is a string, a list of messages, a list of ids, or an object with `prompt` (a string or
    messages), `messages` or `prompt_ids`. Beside it may stand `prompt_id`, `group`, `sample` and `metadata`;
    what else the object holds goes into the metadata. Empty lines are left out. A `.json` file may also be
    one array of all prompts.

    Raises:
      ValueError: naming the file, and the line or item that is damaged.
    """
    file = Path(path)
    if file.suffix == ".json" and (items := _read_items(file)) is not None:
        return [_named(f"{file}, item {number}", _parse, item) for number, item in enumerate(items, 1)]
    parse = _parse_line if file.suffix in (".jsonl", ".json") else _parse_text
    lines = ((number, text) for number, text in read_lines(file) if text.strip())
    return [_named(f"{file}, line {number}", parse, text) for number, text in lines]


def _named(where: str, parse: Callable[[Any], RolloutRecord], value: Any) -> RolloutRecord:
    try:
        return parse(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _read_items(file: Path) -> list[Any] | None:
    """Return the prompts of a file that is one JSON value; None if it is lines, or damaged in one."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        value = parse_json(text)
    except json.JSONDecodeError as error:
        if text.lstrip().partition("\n")[0].strip() in ("[", "{", "[{"):
            raise ValueError(f"{file}, line {error.lineno}: {error}") from error
        return None
    except ValueError:  # not UTF-8, or nested too deeply: lines say where
        return None
    return value if isinstance(value, list) and not _is_prompt(value) else [value]


def _is_prompt(items: list[Any]) -> bool:
    """Whether the items of an array are one prompt: ids, or messages that are no rows."""
    is_chat = all(isinstance(item, dict) and "role" in item and not item.keys() & _PROMPTS for item in items)
    return bool(items) and (is_chat or all(type(item) is int for item in items))


def _parse_text(line: str) -> RolloutRecord:
    return RolloutRecord(messages=[_user_message(line.strip())])


def _parse_line(line: str) -> RolloutRecord:
    return _parse(parse_json(line))


def _parse(value: Any) -> RolloutRecord:
    """Return the record of a prompt as JSON holds it."""
    is_ids = isinstance(value, list) and all(type(item) is int for item in value)
    is_chat = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if not (is_ids or is_chat or isinstance(value, str | dict)):
        raise ValueError(
            "a prompt must be a string, a list of messages, a list of ids, or an object with prompt, "
            "messages or prompt_ids"
        )
    record = as_record(value) if value != "" else RolloutRecord(messages=[_user_message("")])
    check_prompt(record)
    return record


def _user_message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
