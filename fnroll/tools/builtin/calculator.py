"""The tool `calculator`: exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

from fnroll.dialogue.tool import Tool, ToolError
from fnroll.tools.builtin.expression import CalculatorError, Value, decimal_text, evaluate

MAX_PLACES = 30
"""Most digits after the point of a decimal that is written in full."""

APPROXIMATE_DIGITS = 15
"""Significant digits of the decimal that stands next to a fraction."""


def calculator(expression: str) -> str:
    """Computes an arithmetic expression exactly, with integers, decimals and fractions.

    Args:
      expression: for example "(1.1 + 2.2) * 3" or "2**64 // 7"; operators + - * / // % ** and parentheses;
        functions abs, min, max, round, floor, ceil, sqrt, gcd, lcm, factorial

    Returns:
      The value.
    """
    try:
        return value_text(evaluate(expression))
    except CalculatorError as error:
        raise ToolError(f"{error}.") from error


def calculator_tool() -> Tool:
    """Make the tool.

    Returns:
      A tool with the one argument `expression`.
    """
    return Tool.from_function(calculator)


def value_text(value: Value) -> str:
    """Write the value of an expression.

    Args:
      value: a rational and whether it is exact.

    Returns:
      An integer; a decimal if it ends within 30 places; otherwise `1/3 (approximately 0.333333333333333)`.
      A value that is not exact is `approximately 1.4142135623731`, 15 significant digits.
    """
    number = value.number
    if not value.is_exact:
        return f"approximately {decimal_text(number, APPROXIMATE_DIGITS)}"
    if number.denominator == 1:
        return str(number.numerator)
    places = _places(number.denominator)
    if places is not None and places <= MAX_PLACES:
        return _decimal(number, places)
    fraction = f"{number.numerator}/{number.denominator}"
    return f"{fraction} (approximately {decimal_text(number, APPROXIMATE_DIGITS)})"


def _places(denominator: int) -> int | None:
    """Digits after the point; None if the decimal does not end."""
    counts = []
    for prime in (2, 5):
        count = 0
        while denominator % prime == 0 and count <= MAX_PLACES:
            denominator //= prime
            count += 1
        counts.append(count)
    return max(counts) if denominator == 1 else None


def _decimal(number: Fraction, places: int) -> str:
    digits = str(abs(number.numerator) * 10**places // number.denominator).rjust(places + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-places]}.{digits[-places:]}"
