import time

import pytest

from fnroll.dialogue.tool import ToolError
from fnroll.tools.builtin import BUILTIN_TOOLS, get_tool
from fnroll.tools.builtin.calculator import calculator

NAMES = "unknown name 'x'; the functions are abs, ceil, factorial, floor, gcd, lcm, max, min, round, sqrt."


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("0.1 + 0.2", "0.3"),
        ("1.10 * 3", "3.3"),
        ("10 / 4", "2.5"),
        ("-1/8", "-0.125"),
        ("1/3", "1/3 (approximately 0.333333333333333)"),
        ("-2/3", "-2/3 (approximately -0.666666666666667)"),
        ("1/3 + 1/6", "0.5"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7 % -3", "-2"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "1.5"),
        ("-2**2", "-4"),
        ("(-2)**2", "4"),
        ("2**3**2", "512"),
        ("2**-1", "0.5"),
        ("2**-3**2", "0.001953125"),
        ("2**-31", "1/2147483648 (approximately 4.65661287307739E-10)"),
        ("--+-3", "-3"),
        ("8 - 3 - 2", "3"),
        ("64 / 4 / 2", "8"),
        ("2**64", "18446744073709551616"),
        ("(-1)**999999999999", "-1"),
        ("0**0", "1"),
        (".5 + 5.", "5.5"),
        ("1e3 + 2.5E-1", "1000.25"),
        ("1_000 * 2", "2000"),
        ("6 × 7 ÷ 2 − 1", "20"),
        ("abs(-3)", "3"),
        ("min(3, 1/2, 2)", "0.5"),
        ("max(1, 2) + min(1)", "3"),
        ("round(2.5)", "2"),
        ("round(2.675, 2)", "2.68"),
        ("round(1234, -2)", "1200"),
        ("floor(-1/2) + ceil(1/2)", "0"),
        ("sqrt(9/4)", "1.5"),
        ("16 ** (1/2)", "4"),
        ("sqrt(2)", "approximately 1.4142135623731"),
        ("sqrt(2) * 0", "approximately 0"),
        ("sqrt(10**40 + 1)", "approximately 1E+20"),
        ("gcd(12, 18, 8)", "2"),
        ("lcm(4, 6)", "12"),
        ("factorial(20)", "2432902008176640000"),
        ("  2\n+\t2  ", "4"),
    ],
)
def test_values(expression: str, text: str) -> None:
    assert calculator(expression) == text


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "the expression is empty."),
        ("   ", "the expression is empty."),
        ("1 +", "unexpected end of the expression at position 4."),
        ("(1", "unexpected end of the expression at position 3, where ')' should be."),
        ("1)", "unexpected ')' at position 2."),
        ("2 3", "unexpected '3' at position 3."),
        ("2(3)", "unexpected '(' at position 2."),
        ("2 ^ 3", "unexpected character '^' at position 3; write ** for powers."),
        ("1 = 1", "unexpected character '=' at position 3."),
        ("٣ + 1", "unexpected character '٣' at position 1."),
        ("2x", "unexpected 'x' at position 2."),
        (
            "x",
            NAMES,
        ),
        ("__import__('os')", "unexpected character '_' at position 1."),
        ("min", "unexpected end of the expression at position 4, where '(' should be."),
        ("min()", "unexpected ')' at position 5."),
        ("abs(1, 2)", "abs takes 1 arguments, not 2."),
        ("round(1, 2, 3)", "round takes 1 or 2 arguments, not 3."),
        ("1/0", "division by zero."),
        ("1 // (2 - 2)", "division by zero."),
        ("1 % 0", "division by zero."),
        ("0 ** -1", "division by zero."),
        ("sqrt(-1)", "the square root of a negative number is not real."),
        ("8 ** (1/3)", "an exponent must be an integer or 1/2."),
        ("gcd(1/2)", "gcd takes integers."),
        ("factorial(1001)", "factorial takes an integer from 0 to 1000."),
        ("factorial(-1)", "factorial takes an integer from 0 to 1000."),
        ("round(1, 10**9)", "round takes at most 1000 places."),
    ],
)
def test_errors_say_what_is_wrong(expression: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        calculator(expression)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9**9**9", "too large"),
        ("9**9**9**9**9", "too large"),
        ("2**(10**100)", "too large"),
        ("(1/2)**(10**9)", "too large"),
        ("1e999999999", "too large"),
        ("1e-9999", "too large"),
        ("*".join(["factorial(1000)"] * 60), "too large"),
        ("lcm(" + ",".join(f"{p}**9999" for p in (2, 3, 5)) + ")", "too large"),
        ("(" * 400 + "1" + ")" * 400, "deeper than 50 levels"),
        ("-" * 999 + "1", "deeper than 50 levels"),
        ("1**" * 300 + "1", "deeper than 50 levels"),
        ("1+" * 501, "must have at most 1000 characters, not 1002"),
        ("9" * 1_000_000, "must have at most 1000 characters"),
    ],
)
def test_large_work_is_refused_at_once(expression: str, message: str) -> None:
    start = time.monotonic()
    with pytest.raises(ToolError, match=message):
        calculator(expression)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    "expression", ["+".join(["1"] * 500), "9" * 1000, "1/" + "7" * 998, "2**9999 * 0 + 5**4000 % 7"]
)
def test_largest_allowed_work_is_quick(expression: str) -> None:
    start = time.monotonic()
    assert calculator(expression)
    assert time.monotonic() - start < 2


def test_built_in_tools_are_made_by_name() -> None:
    assert sorted(BUILTIN_TOOLS) == ["calculator", "python"]
    for name in BUILTIN_TOOLS:
        tool = get_tool(name)
        assert tool.name == name and tool.schema["function"]["description"]
    with pytest.raises(ValueError) as caught:
        get_tool("browser")
    assert str(caught.value) == "There is no built-in tool 'browser'; the tools are: calculator, python."
