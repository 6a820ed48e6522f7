"""One clear sentence for each bad value: which field, what it holds, what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any, NoReturn

_UNITS = {"B": 1}
_UNITS |= {f"{prefix}B": 1000 ** (power + 1) for power, prefix in enumerate("KMGT")}
_UNITS |= {f"{prefix}IB": 1024 ** (power + 1) for power, prefix in enumerate("KMGT")}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", re.IGNORECASE)


def fail(owner: str, name: str, value: Any, allowed: str) -> NoReturn:
    """Raise a `ValueError` that names the field, its value and what is allowed."""
    raise ValueError(f"{owner}.{name} is {value!r}; it must be {allowed}")


def is_finite(value: Any) -> bool:
    """Say whether a value is a number that a float can hold, and not a bool."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def check_int(
    owner: str, name: str, value: Any, *, least: int, below: float = math.inf, optional: bool = False
) -> None:
    """Require an int of at least `least` and below `below`; a bool is not an int here."""
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < below:
        bound = f"an int of at least {least}" + (f" and below {below}" if below < math.inf else "")
        fail(owner, name, value, bound + (", or None" if optional else ""))


def check_number(
    owner: str, name: str, value: Any, *, above: float, most: float = math.inf, open_: bool = False,
    optional: bool = False,
) -> None:  # fmt: skip
    """Require a finite number in `[above, most]`, or in `(above, most]` when `open_`."""
    if optional and value is None:
        return
    if not is_finite(value) or value > most or value < above or (open_ and value == above):
        bound = f"{'above' if open_ else 'at least'} {above:g}"
        bound += f" and at most {most:g}" if most < math.inf else ""
        fail(owner, name, value, f"a finite number {bound}" + (", or None" if optional else ""))


def check_choice(owner: str, name: str, value: Any, choices: Collection[str]) -> None:
    """Require one of the given words."""
    if not isinstance(value, str) or value not in choices:
        fail(owner, name, value, f"one of {', '.join(map(repr, choices))}")


def check_bool(owner: str, name: str, value: Any, *, optional: bool = False) -> None:
    """Require True or False."""
    if not (isinstance(value, bool) or (optional and value is None)):
        fail(owner, name, value, "True or False" + (", or None" if optional else ""))


def parse_bytes(text: str) -> int | None:
    """Return the bytes that a text such as "2GB", "1.5 GiB" or "512MB" says, or None if it says none."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS:
        return None
    return int(float(match[1]) * _UNITS[match[2].upper()])
