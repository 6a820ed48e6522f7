"""Exact arithmetic on a text: tokens, a precedence parser, bounded rationals."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from typing import NamedTuple

MAX_LENGTH = 1000
"""Longest expression, in characters."""

MAX_DEPTH = 50
"""Deepest nesting of parentheses, signs and powers."""

MAX_BITS = 10_000
"""Largest numerator or denominator of any intermediate value, in bits; about 3000 digits."""

ROOT_DIGITS = 30
"""Significant digits of a square root that is not rational."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<word>[A-Za-z]\w*)|(?P<sign>\*\*|//|[-+*/%(),]))"
)
_SYNONYMS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})
_LEFT = {"+": 10, "-": 10, "*": 20, "/": 20, "//": 20, "%": 20}
_UNARY = 30


class CalculatorError(ValueError):
    """An expression that has no value; the message is a sentence for the model."""


class Value(NamedTuple):
    """The value of an expression."""

    number: Fraction
    """The value, exact unless `is_exact` says otherwise."""
    is_exact: bool
    """False if an irrational square root was rounded on the way."""


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def evaluate(expression: str) -> Value:
    """Compute the value of an expression.

    The operators are those of Python with their precedence: `+ - * / // % **`, signs and parentheses. Numbers
    are integers or decimals, and are exact. The functions are abs, min, max, round, floor, ceil, sqrt, gcd,
    lcm and factorial.

    Args:
      expression: at most 1000 characters.

    Returns:
      The value.

    Raises:
      CalculatorError: the text is no expression, or its value is too large or does not exist.
    """
    if len(expression) > MAX_LENGTH:
        raise CalculatorError(
            f"the expression must have at most {MAX_LENGTH} characters, not {len(expression)}"
        )
    parser = _Parser(_tokens(expression.translate(_SYNONYMS)))
    number = parser.whole()
    return Value(number, parser.is_exact)


def _tokens(text: str) -> list[_Token]:
    tokens, position = [], 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            rest = text[position:].lstrip()
            hint = "; write ** for powers" if rest[0] == "^" else ""
            at = len(text) - len(rest) + 1
            raise CalculatorError(f"unexpected character {rest[0]!r} at position {at}{hint}")
        kind = match.lastgroup
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        position = match.end()
    return [*tokens, _Token("end", "", len(text) + 1)]


class _Parser:
    """Precedence climbing over the tokens; values are computed on the way."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0
        self.is_exact = True

    def whole(self) -> Fraction:
        if self._peek().kind == "end":
            raise CalculatorError("the expression is empty")
        value = self._binary(0)
        if self._peek().kind != "end":
            raise self._unexpected()
        return value

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _is_next(self, text: str) -> bool:
        return self._peek().kind == "sign" and self._peek().text == text

    def _expect(self, text: str) -> None:
        if not self._is_next(text):
            raise self._unexpected(f", where {text!r} should be")
        self._take()

    def _unexpected(self, where: str = "") -> CalculatorError:
        token = self._peek()
        what = "end of the expression" if token.kind == "end" else f"{token.text[:40]!r}"
        return CalculatorError(f"unexpected {what} at position {token.position}{where}")

    def _binary(self, least: int) -> Fraction:
        """An operand, and all operators after it that bind at least as tight as `least`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculatorError(f"the expression must not be nested deeper than {MAX_DEPTH} levels")
        value = self._prefix()
        while self._peek().kind == "sign" and (binding := _LEFT.get(self._peek().text, -1)) >= least:
            operator = self._take().text
            value = _apply(operator, value, self._binary(binding + 1))
        self._depth -= 1
        return value

    def _prefix(self) -> Fraction:
        if self._is_next("+"):
            self._take()
            return self._binary(_UNARY)
        if self._is_next("-"):
            self._take()
            return -self._binary(_UNARY)
        base = self._atom()
        if not self._is_next("**"):
            return base
        self._take()
        # Right associative, and the exponent may carry a sign: 2**-3**2 is 2**(-(3**2)).
        return self._power(base, self._binary(_UNARY))

    def _atom(self) -> Fraction:
        token = self._peek()
        if token.kind == "number":
            return _number(self._take().text)
        if token.kind == "word":
            return self._call()
        if not self._is_next("("):
            raise self._unexpected()
        self._take()
        value = self._binary(0)
        self._expect(")")
        return value

    def _call(self) -> Fraction:
        name = self._take().text
        if name != "sqrt" and name not in _FUNCTIONS:
            known = ", ".join(sorted([*_FUNCTIONS, "sqrt"]))
            raise CalculatorError(f"unknown name {name[:40]!r}; the functions are {known}")
        self._expect("(")
        arguments = [self._binary(0)]
        while self._is_next(","):
            self._take()
            arguments.append(self._binary(0))
        self._expect(")")
        least, most, function = _FUNCTIONS.get(name, (1, 1, lambda values: self._root(values[0])))
        if not least <= len(arguments) <= most:
            wanted = str(least) if least == most else f"{least} or more" if most > 2 else f"{least} or {most}"
            raise CalculatorError(f"{name} takes {wanted} arguments, not {len(arguments)}")
        return _bounded(function(arguments))

    def _power(self, base: Fraction, exponent: Fraction) -> Fraction:
        if exponent == Fraction(1, 2):
            return _bounded(self._root(base))
        if exponent.denominator != 1:
            raise CalculatorError("an exponent must be an integer or 1/2")
        if base == 0 and exponent < 0:
            raise CalculatorError("division by zero")
        if base in (0, 1, -1):
            return base ** (exponent.numerator % 2 if base == -1 else exponent.numerator)
        size = max(abs(base.numerator).bit_length(), base.denominator.bit_length())
        # Checked before the work: 9**9**9 must not be computed to find out that it is too large.
        if (size - 1) * abs(exponent.numerator) > MAX_BITS:
            raise _too_large()
        return _bounded(base**exponent.numerator)

    def _root(self, value: Fraction) -> Fraction:
        if value < 0:
            raise CalculatorError("the square root of a negative number is not real")
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
        self.is_exact = False
        with localcontext() as context:
            # The quotient carries more digits than the root, so that the root's last digit is right.
            context.prec, context.Emax, context.Emin = 2 * ROOT_DIGITS, 999_999, -999_999
            quotient = Decimal(value.numerator) / Decimal(value.denominator)
            context.prec = ROOT_DIGITS
            return Fraction(quotient.sqrt())


def _number(text: str) -> Fraction:
    mantissa, _, exponent = text.replace("_", "").lower().partition("e")
    if exponent and (len(exponent) > 6 or abs(int(exponent)) * 10 > MAX_BITS * 3):
        raise _too_large()
    return _bounded(Fraction(mantissa) * Fraction(10) ** int(exponent or 0))


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator in ("/", "//", "%") and right == 0:
        raise CalculatorError("division by zero")
    if operator == "+":
        value = left + right
    elif operator == "-":
        value = left - right
    elif operator == "*":
        value = left * right
    elif operator == "/":
        value = left / right
    elif operator == "//":
        value = Fraction(left // right)
    else:
        value = left % right
    return _bounded(value)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise _too_large()
    return value


def _too_large() -> CalculatorError:
    return CalculatorError(f"a number is too large; at most about {MAX_BITS * 3 // 10} digits are allowed")


def _integer(value: Fraction, name: str) -> int:
    if value.denominator != 1:
        raise CalculatorError(f"{name} takes integers")
    return value.numerator


def _factorial(values: list[Fraction]) -> Fraction:
    count = _integer(values[0], "factorial")
    if not 0 <= count <= 1000:
        raise CalculatorError("factorial takes an integer from 0 to 1000")
    return Fraction(math.factorial(count))


def _lcm(values: list[Fraction]) -> Fraction:
    result = Fraction(1)
    for value in values:
        result = _bounded(Fraction(math.lcm(result.numerator, _integer(value, "lcm"))))
    return result


def _round(values: list[Fraction]) -> Fraction:
    places = _integer(values[1], "round") if len(values) == 2 else 0
    if abs(places) > 1000:
        raise CalculatorError("round takes at most 1000 places")
    return Fraction(round(values[0], places))


_Function = Callable[[list[Fraction]], Fraction]
_FUNCTIONS: dict[str, tuple[int, int, _Function]] = {
    "abs": (1, 1, lambda values: abs(values[0])),
    "ceil": (1, 1, lambda values: Fraction(math.ceil(values[0]))),
    "factorial": (1, 1, _factorial),
    "floor": (1, 1, lambda values: Fraction(math.floor(values[0]))),
    "gcd": (1, MAX_LENGTH, lambda values: Fraction(math.gcd(*(_integer(value, "gcd") for value in values)))),
    "lcm": (1, MAX_LENGTH, _lcm),
    "max": (1, MAX_LENGTH, max),
    "min": (1, MAX_LENGTH, min),
    "round": (1, 2, _round),
}


def decimal_text(number: Fraction, digits: int) -> str:
    """Round a rational to a decimal text, half to even.

    Args:
      number: any rational.
      digits: significant digits.

    Returns:
      Without trailing zeros; very large and very small ones with an exponent.
    """
    with localcontext() as context:
        context.prec, context.rounding = digits, ROUND_HALF_EVEN
        context.Emax, context.Emin = 999_999, -999_999
        value = (Decimal(number.numerator) / Decimal(number.denominator)).normalize()
        return f"{value:f}" if -7 < value.adjusted() < digits else f"{value:E}"
