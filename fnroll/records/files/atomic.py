"""Files that are whole, or the ones that were there before."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_file(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file so that whoever reads it, at any moment, after any crash, sees the old or the new one."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
