"""Lines of text and of JSON, with damage named in one sentence."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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
