import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import itertools
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from fnroll.dialogue.output import Output, clean_text, describe_error, to_output


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Shout(str):
    def __str__(self) -> str:
        return self.upper()


class Bad:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


class Plain:
    pass


Pair = collections.namedtuple("Pair", "left right")


# Case tools-05: the conversion table.
@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        ("", ""),
        (None, ""),
        (0, "0"),
        (True, "true"),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        ({"a": [1, None], "ü": 1.5}, '{"a": [1, null], "ü": 1.5}'),
        ((1, "x"), '[1, "x"]'),
        ([], "[]"),
        ({1: "a", False: 2, 0.5: 3}, '{"1": "a", "false": 2, "0.5": 3}'),
        ({(1, 2): 3}, '{"[1, 2]": 3}'),
        ({2: "a", None: 2}, '{"2": "a", "null": 2}'),
        (Point(1, [Point(2)]), '{"x": 1, "y": [{"x": 2, "y": null}]}'),
        (Pair(1, 2), "[1, 2]"),
        (Color.RED, "red"),
        ([Color.PAIR, Level.HIGH], "[[1, 2], 3]"),
        (Level.HIGH, "3"),
        (b"gr\xc3\xbc\xff", "grü\ufffd"),
        (bytearray(b"a"), "a"),
        ({"b": memoryview(b"x")}, '{"b": "x"}'),
        (torch.tensor([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
        (torch.tensor(1.5, dtype=torch.bfloat16, requires_grad=True), "1.5"),
        ({"t": torch.tensor([True])}, '{"t": [true]}'),
        ({"b", "a"}, '["a", "b"]'),
        (frozenset({10, 9}), "[10, 9]"),
        ((i * i for i in range(3)), "[0, 1, 4]"),
        (map(str, [1]), '["1"]'),
        (range(3), "[0, 1, 2]"),
        ({"a": 1}.keys(), '["a"]'),
        (decimal.Decimal("1.10"), "1.10"),
        (fractions.Fraction(1, 3), "1/3"),
        (datetime.date(2026, 1, 15), "2026-01-15"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (Shout("low"), "low"),
        ("a\ud800b", "a\ufffdb"),
        (["\udfff"], '["\ufffd"]'),
        (Plain(), f"<{__name__}.Plain object>"),
        ([Plain], f"[\"<class '{__name__}.Plain'>\"]"),
    ],
)
def test_table(value: Any, text: str) -> None:
    assert to_output(value) == Output(text, False)


@pytest.mark.parametrize(
    "error", [ValueError("no"), StopIteration(), SystemExit(3), GeneratorExit(), asyncio.CancelledError()]
)
def test_failing_str_gives_an_error_text(error: BaseException) -> None:
    for value in (Bad(error), [Bad(error)], {"a": Bad(error)}):
        output = to_output(value)
        assert output.is_error
        assert output.text.startswith(
            f"Error: the tool's result cannot be written as text: {type(error).__name__}"
        )


def test_ctrl_c_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        to_output(Bad(KeyboardInterrupt()))


def test_unwritable_values_give_error_texts() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]

    async def coroutine() -> None: ...

    async def generator() -> AsyncIterator[int]:
        yield 1

    def failing() -> Any:
        yield 1
        raise KeyError("k")

    cases: list[tuple[Any, str]] = [
        (circle, "contains itself"),
        (deep, "nested deeper than 100 levels"),
        (coroutine(), "un-awaited coroutine"),
        ([coroutine()], "un-awaited coroutine"),
        (generator(), "un-awaited async_generator"),
        (failing(), "KeyError: 'k'"),
        (itertools.count(), "more than 10000 items"),
        ({1: 0, "1": 0}, 'two keys of a dict have the same text "1"'),
        (10**5000, "ValueError: Exceeds the limit"),
        (torch.empty(2, device="meta"), "Error"),
    ]
    for value, text in cases:
        output = to_output(value)
        assert output.is_error and text in output.text, output


def test_large_tensor_is_short() -> None:
    output = to_output(torch.zeros(200, 200))
    assert not output.is_error and len(output.text) < 500 and "..." in output.text


def test_text_can_always_be_encoded_and_json_stays_json() -> None:
    value = {"\ud83d": ["\ude00", "ok"]}
    text = to_output(value).text
    text.encode()
    assert json.loads(text) == {"\ufffd": ["\ufffd", "ok"]}
    assert clean_text("😀") == "😀"


def test_describe_error() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe_error(KeyError("k")) == "KeyError: 'k'"
    assert describe_error(SystemExit()) == "SystemExit"
    assert describe_error(Silent()) == "Silent: (its message cannot be written)"
    assert describe_error(ValueError("\ud800")) == "ValueError: \ufffd"
