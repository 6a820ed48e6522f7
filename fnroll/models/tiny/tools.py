"""The tools of the embedded model: plain functions that always give the same answer to the same call."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from zlib import crc32

ITEMS = ("apple", "bean", "bun", "egg", "fig", "leek", "lemon", "melon", "nut", "pear", "plum", "roll")
UNITS = {"ft": 30, "yd": 91, "m": 100}
"""Centimetres in each; a foot and a yard are rounded, so that all answers are whole numbers."""

_EXPRESSION = re.compile(r"\s*(\d{1,6})\s*([-+*<>])\s*(\d{1,6})\s*")
_OPERATORS: dict[str, Callable[[int, int], int | bool]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}


def price(item: str, shop: int) -> int | str:
    """Looks up what one piece costs.

    Args:
        item: what is sold, in the singular
        shop: the number of the shop
    """
    if item not in ITEMS:
        return "no such item"
    # A rule stands in for a table: with one of ordinary size, a model would learn it by heart and never ask.
    return 5 + crc32(f"{item} {shop}".encode()) % 45


def convert(value: int, unit: str) -> int | str:
    """Converts a length to centimetres.

    Args:
        value: the length
        unit: ft, yd or m
    """
    return value * UNITS[unit] if unit in UNITS else "no such unit"


def calc(expression: str) -> int | str:
    """Does one operation on two whole numbers.

    Args:
        expression: such as 3 * 14; the operators are + - * < >
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        return "not an expression"
    first, operator, second = match.groups()
    value = _OPERATORS[operator](int(first), int(second))
    return ("yes" if value else "no") if isinstance(value, bool) else value


TINY_TOOLS: tuple[Callable[..., int | str], ...] = (price, convert, calc)
_BY_NAME: dict[str, Callable[..., int | str]] = {"price": price, "convert": convert, "calc": calc}


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    """Return what a rollout would give the model back for a call."""
    return str(_BY_NAME[name](**arguments))
