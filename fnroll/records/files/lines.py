"""Lines of text and of JSON, with damage named in one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fnroll.checks import plain_number


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file with their numbers, from 1, without line ends and byte order mark.

    Raises:
      ValueError: naming the file and the line that is not UTF-8.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error
            yield number, text.rstrip("\r\n")


def parse_json(text: str) -> Any:
    """Return the value of one line of JSON.

    Raises:
      ValueError: if it is none.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def plain_json(value: Any, where: str) -> Any:
    """Return a value as JSON writes it: NumPy numbers as numbers, arrays and tensors as lists.

    Args:
      value: anything.
      where: how an error names it.

    Raises:
      TypeError: naming the place of what JSON cannot write.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {_plain_key(key, where): plain_json(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{where}[{place}]") for place, item in enumerate(value)]
    is_array = hasattr(value, "tolist") and hasattr(value, "dtype")
    if is_array and type(plain := value.tolist()) is not type(value):
        return plain_json(plain, where)
    raise TypeError(f"{where} is a {type(value).__name__}, {value!r:.80}")


def _plain_key(key: Any, where: str) -> Any:
    plain = plain_number(key)
    if plain is None or isinstance(plain, str | int | float):
        return plain
    raise TypeError(f"{where} has a key that is a {type(key).__name__}, {key!r:.80}")
