"""The save of a rollout: all its records, ended or not, in a file that is whole or the one before it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fnroll.records.files.atomic import write_file

SAVE_FORMAT = "fnroll-rollout"
SAVE_VERSION = 1


def write_save(
    path: str | os.PathLike[str], lines: Iterable[str], unfinished: int, run: Mapping[str, Any]
) -> None:
    """Write records as lines behind a header that says how many there are, of which run, and their digest.

    Args:
      path: where to.
      lines: one a record, in the order of the request, from `dump_record`.
      unfinished: how many of the records have not ended.
      run: what decides the tokens of the records, by name.
    """
    encoded = [line.encode() for line in lines]
    header = {
        "format": SAVE_FORMAT,
        "version": SAVE_VERSION,
        "records": len(encoded),
        "unfinished": unfinished,
        "run": run,
    }
    signed = {**header, "sha256": _digest(header, encoded)}
    write_file(path, [json.dumps(signed).encode() + b"\n", *encoded])


def _digest(header: Mapping[str, Any], lines: Iterable[bytes]) -> str:
    digest = hashlib.sha256(json.dumps(header).encode())
    for line in lines:
        digest.update(line)
    return digest.hexdigest()


def read_header(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the header of a save; None if the file is none, as far as its first line shows.

    Raises:
      ValueError: if it is one of another version, or damaged.
    """
    with Path(path).open("rb") as file:
        first = file.readline()
        try:
            header = json.loads(first)
        except (ValueError, RecursionError):
            return None
        if not isinstance(header, dict) or header.get("format") != SAVE_FORMAT:
            return None
        if header.get("version") != SAVE_VERSION:
            raise ValueError(
                f"{path} is a save of version {header.get('version')!r}; this fnroll reads {SAVE_VERSION}"
            )
        lines = file.readlines()
    unsigned = {name: value for name, value in header.items() if name != "sha256"}
    is_whole = first == json.dumps(header).encode() + b"\n"
    if not is_whole or header.get("sha256") != _digest(unsigned, lines):
        raise ValueError(
            f"{path} is damaged or half written: its header says {header.get('records')} records, "
            f"{len(lines)} lines follow, and the digest of both differs"
        )
    return header
