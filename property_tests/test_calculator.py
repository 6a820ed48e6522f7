"""The calculator against Python's own parser, with every number an exact fraction."""

import re
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from fnroll.dialogue.tool import ToolError
from fnroll.tools.builtin.calculator import calculator
from fnroll.tools.builtin.expression import CalculatorError, evaluate

NUMBERS = st.integers(0, 10**6).map(str) | st.decimals(0, 1000, places=3).map(str)
OPERATORS = st.sampled_from(["+", "-", "*", "/", "//", "%", " + ", " - "])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    powers = st.tuples(inner, st.integers(-4, 4)).map(lambda pair: f"({pair[0]})**{pair[1]}")
    signed = st.tuples(st.sampled_from("+-"), inner).map("".join)
    return st.tuples(inner, OPERATORS, inner).map("".join) | inner.map("({})".format) | powers | signed


EXPRESSIONS = st.recursive(NUMBERS, larger, max_leaves=8)


def python_value(expression: str) -> Fraction | None:
    exact = re.sub(r"(?<!\*\*)(?<!\*\*-)(?<![\d.])\d+(\.\d+)?", r"F('\g<0>')", expression)
    try:
        return Fraction(eval(exact, {"F": Fraction, "__builtins__": {}}))
    except ZeroDivisionError:
        return None


@given(EXPRESSIONS)
def test_value_is_that_of_exact_fractions(expression: str) -> None:
    expected = python_value(expression)
    try:
        value = evaluate(expression)
    except CalculatorError as error:
        assert "too large" in str(error) or (expected is None and "division by zero" in str(error))
    else:
        assert value == (expected, True)


@given(EXPRESSIONS)
def test_text_reads_back_as_the_value(expression: str) -> None:
    try:
        text = calculator(expression)
    except ToolError:
        return
    value = evaluate(expression).number
    exact, _, approximate = text.partition(" (approximately ")
    assert Fraction(exact) == value
    if approximate:
        assert abs(Fraction(Decimal(approximate.rstrip(")"))) - value) <= abs(value) * Fraction(1, 10**14)


@given(st.text(st.sampled_from("0123456789.eE_+-*/%(), sqrtfloabmin\n√"), max_size=60) | st.text(max_size=60))
def test_any_text_gives_a_value_or_an_error_text(expression: str) -> None:
    try:
        assert calculator(expression)
    except ToolError as error:
        assert str(error).endswith(".")


@given(st.fractions(min_value=0, max_value=10**9))
def test_square_roots_are_exact_or_say_so(number: Fraction) -> None:
    square = evaluate(f"sqrt(({number})**2)")
    assert square == (number, True)
    root = evaluate(f"sqrt({number})")
    assert root.number**2 == number if root.is_exact else abs(root.number**2 - number) <= number / 10**25
