"""The result of a tool as text for the model."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

MAX_ITEMS = 10_000
"""Most items that are read from an iterator, and most elements of a tensor that is written in full."""

MAX_DEPTH = 100
"""Deepest nesting of containers that is written."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+")


class Output(NamedTuple):
    """A tool's result as text."""

    text: str
    """What the model reads."""
    is_error: bool
    """Whether the result could not be written, and `text` says why."""


class _Unwritable(Exception):
    """A result that has no text; its message is a sentence for the model."""


def to_output(value: object) -> Output:
    """Write a tool's result as text, and never fails on any value.

    | result | text |
    | --- | --- |
    | `str` | as it is |
    | `None` | the empty string |
    | `bool`, `int`, `float`, `list`, `tuple`, `dict` | JSON, not escaped to ASCII; `NaN`, `Infinity` |
    | dataclass | JSON object of its fields |
    | `Enum` member | its value, by this table |
    | `bytes`, `bytearray`, `memoryview` | UTF-8, what is invalid replaced by U+FFFD |
    | tensor, array | nested JSON lists; above 10 000 elements its short `str()` |
    | set | JSON list, ordered by the JSON text of its items |
    | iterator, generator | JSON list of its items, at most 10 000 |
    | coroutine, async generator | an error text: somebody forgot to await it |
    | anything else | `str()`, memory addresses left out |

    The same holds inside containers. Keys of a dict that are not strings are written as JSON writes them, or
    by `str()`. Lone surrogates, which no tokenizer can encode, become U+FFFD. A result which cannot be
    written (its `__str__` raises, it contains itself, it is nested too deeply) gives an error text.

    Args:
      value: anything a tool returned.

    Returns:
      The text, and whether it is an error text.

    Raises:
      KeyboardInterrupt: a Ctrl-C while the value was written.
    """
    try:
        return Output(clean_text(_write(value)), False)
    except KeyboardInterrupt:
        raise
    except _Unwritable as error:
        return Output(f"Error: the tool's result cannot be written as text: {error}.", True)
    except BaseException as error:
        reason = describe_error(error)
        return Output(f"Error: the tool's result cannot be written as text: {reason}", True)


def clean_text(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot hold, by U+FFFD.

    Args:
      text: any string.

    Returns:
      A string that can be encoded.
    """
    return _SURROGATE.sub("\ufffd", text)


def describe_error(error: BaseException) -> str:
    """Write an exception as `Class: message`, also one whose message cannot be written.

    Args:
      error: any exception.

    Returns:
      One text without a traceback.
    """
    name = type(error).__name__
    try:
        message = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        message = "(its message cannot be written)"
    return clean_text(f"{name}: {message}" if message else name)


def _write(value: object) -> str:
    if value is None:
        return ""
    plain = _plain(value, 0)
    if isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def _plain(value: Any, depth: int) -> Any:
    """Turns a value into what `json.dumps` writes without help: str, numbers, None, list, dict."""
    if depth > MAX_DEPTH:
        raise _Unwritable(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth + 1)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", errors="replace")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name), depth + 1) for field in fields}
    if _is_array(value):
        return _array(value, depth)
    if isinstance(value, Mapping):
        return _mapping(value, depth)
    if isinstance(value, Sequence | Set | Iterator):
        return _items(value, depth)
    return _other(value)


def _is_array(value: Any) -> bool:
    """Knows a tensor by what it can do, since this module imports neither torch nor numpy."""
    kind = type(value)
    return all(hasattr(kind, name) for name in ("tolist", "shape", "dtype"))


def _array(value: Any, depth: int) -> Any:
    count = 1
    for size in value.shape:
        count *= int(size)
    return _plain(value.tolist(), depth + 1) if count <= MAX_ITEMS else str(value)


def _mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for key, item in value.items():
        name = _key(key)
        if name in written:
            raise _Unwritable(f"two keys of a dict have the same text {json.dumps(name)}")
        written[name] = _plain(item, depth + 1)
    return written


def _key(key: Any) -> str:
    plain = _plain(key, 0)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _items(value: Sequence[Any] | Set[Any] | Iterator[Any], depth: int) -> list[Any]:
    if not isinstance(value, Iterator):
        items = [_plain(item, depth + 1) for item in value]
        # The order of a set depends on the process; the model must read the same text in every run.
        return sorted(items, key=json.dumps) if isinstance(value, Set) else items
    items = [_plain(item, depth + 1) for item in itertools.islice(value, MAX_ITEMS + 1)]
    if len(items) > MAX_ITEMS:
        raise _Unwritable(f"an iterator gives more than {MAX_ITEMS} items")
    return items


def _other(value: Any) -> str:
    if inspect.iscoroutine(value):
        value.close()
    if inspect.isawaitable(value) or inspect.isasyncgen(value):
        raise _Unwritable(f"it holds an un-awaited {type(value).__name__}")
    # An address differs in every run and tells the model nothing.
    return _ADDRESS.sub("", str(value))
