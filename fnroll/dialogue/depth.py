"""How deep the arguments of a call may be nested: a fixed bound, not where the interpreter's stack ends."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 128
"""Levels of lists and objects."""

TOO_DEEP = f"nested too deeply, beyond {MAX_DEPTH} levels"
"""How an error says so, after what is nested."""


def is_deep(value: Any) -> bool:
    """Return whether containers are nested deeper than `MAX_DEPTH`; walks without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _children(parent)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
