"""One clear sentence for each bad value: which field, what it holds, what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Set
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
    owner: str, name: str, value: Any, *, least: float = -math.inf, above: float = -math.inf,
    most: float = math.inf, infinite: bool = False, optional: bool = False,
) -> None:  # fmt: skip
    """Require a finite number of at least `least`, above `above` and at most `most`; never NaN.

    `infinite` lets infinity pass as a number, where a bound may be none.
    """
    if optional and value is None:
        return
    is_number = is_finite(value) or (infinite and value == math.inf)
    if not is_number or not (least <= value <= most and above < value):
        bound = f" at least {least:g}" if least > -math.inf else ""
        bound += f" above {above:g}" if above > -math.inf else ""
        bound += f" and at most {most:g}" if most < math.inf else ""
        kind = "a number" if infinite else "a finite number"
        fail(owner, name, value, kind + bound + (", or None" if optional else ""))


def check_choice(owner: str, name: str, value: Any, choices: Collection[Any]) -> None:
    """Require one of the given words or numbers."""
    if not isinstance(value, str | int) or value not in choices:
        fail(owner, name, value, f"one of {', '.join(map(repr, choices))}")


def check_bool(owner: str, name: str, value: Any, *, optional: bool = False) -> None:
    """Require True or False."""
    if not (isinstance(value, bool) or (optional and value is None)):
        fail(owner, name, value, "True or False" + (", or None" if optional else ""))


def plain_number(value: Any) -> Any:
    """Return the Python number that a NumPy scalar, or an array or a tensor without dimensions, is.

    Anything else is returned as it is.
    """
    is_scalar = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value


def plain_ids(owner: str, name: str, value: Any) -> list[Any] | tuple[Any, ...]:
    """Return ids as Python ints: of a tensor or an array of any integer type, a range or a list.

    Whether what a list holds are ids is for those to say who know the vocabulary.
    """
    if isinstance(value, list | tuple) and set(map(type, value)) == {int}:
        return value
    if isinstance(value, str | bytes | Mapping | Set) or not hasattr(value, "__len__"):
        fail(owner, name, value, "a list of ids")
    shape = getattr(value, "shape", None)
    if shape is None:
        return [plain_number(item) for item in value]
    if len(shape) != 1:
        raise ValueError(f"{owner}.{name} has shape {tuple(shape)}; it must be one list of ids")
    ids = value.tolist()
    if not set(map(type, ids)) <= {int}:
        fail(owner, name, value, "a list of ids, which are ints")
    return list(ids)


def parse_bytes(text: str) -> int | None:
    """Return the bytes that a text such as "2GB", "1.5 GiB" or "512MB" says, or None if it says none."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS:
        return None
    return int(float(match[1]) * _UNITS[match[2].upper()])
