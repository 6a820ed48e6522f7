"""What a tool gives becomes a text, whatever it is."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fnroll.dialogue.message import ParseError, ToolCall
from fnroll.dialogue.tool import ToolError, ToolSet
from tests.tools.runs import SLEEPERS, answer, call, tool


class Odd(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


ERRORS = [
    ValueError("no"),
    TypeError("add() missing 1 required positional argument: 'b'"),
    StopIteration(),
    StopAsyncIteration(),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    TimeoutError(),
    MemoryError(),
    RecursionError(),
    Odd("odd"),
    Unspeakable(),
]


def raising(error: BaseException, kind: str) -> Callable[..., Any]:
    def plain() -> None:
        raise error

    async def coro() -> None:
        raise error

    async def late() -> None:
        await asyncio.sleep(0)
        raise error

    async def in_thread() -> None:
        await asyncio.to_thread(plain)

    async def child() -> None:
        # A task of the tool's own, whose SystemExit stops an event loop.
        await asyncio.create_task(late())

    def hidden() -> Any:
        return late()

    return {k.__name__: k for k in (plain, coro, late, in_thread, child, hidden)}[kind]


# Case tools-02.
@pytest.mark.parametrize("kind", ["plain", "coro", "late", "in_thread", "child", "hidden"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_becomes_text(error: BaseException, kind: str) -> None:
    tools = ToolSet([tool("bad", raising(error, kind)), *SLEEPERS])
    bad, good = answer(tools, call("bad"), call("coro", seconds=0, tag="x"), timeout=3.0)
    assert bad.status == "error"
    assert bad.text.startswith("Error: tool 'bad' raised ")
    stops = isinstance(error, StopIteration)
    if not isinstance(error, Unspeakable):
        assert ("StopIteration" if stops else type(error).__name__) in bad.text
    assert (good.text, good.status) == ("x", "ok")


def test_tool_error_is_told_as_it_is() -> None:
    def refuse() -> None:
        raise ToolError("no such city.")

    assert answer(ToolSet([tool("t", refuse)]), call("t"))[0].text == "Error: no such city."


# Cases tools-08 and C5.
def test_bad_calls_are_told_apart_from_failing_tools() -> None:
    def add(a: int, b: int) -> int:
        """Adds.

        Args:
            a: first
            b: second
        """
        if a == 0:
            raise TypeError("add() got an unexpected keyword argument 'c'")
        return a + b

    results = answer(
        ToolSet([add]),
        call("add", a=1, b=2),
        call("add", a=1),
        call("add", a=1, b=2, c=3),
        call("add", a="1", b=2),
        call("ad", a=1, b=2),
        call("add", a=0, b=2),
        ParseError("Error: the arguments are no JSON: \ud800", (0, 9)),
        ToolCall("add", "{}", (0, 0)),  # type: ignore[arg-type]
    )
    assert [result.status for result in results] == [
        "ok",
        "bad_arguments",
        "bad_arguments",
        "bad_arguments",
        "unknown_tool",
        "error",
        "parse_error",
        "bad_arguments",
    ]
    assert results[0].text == "3"
    assert (
        results[5].text == "Error: tool 'add' raised TypeError: add() got an unexpected keyword argument 'c'"
    )
    assert results[6].text == "Error: the arguments are no JSON: \ufffd"
    assert [result.seconds for result in results if result.status not in ("ok", "error")] == [0.0] * 6


def test_arguments_are_not_shared() -> None:
    def push(items: list[int]) -> list[int]:
        items.append(1)
        return items

    shared = [0]
    calls = [call("push", items=shared) for _ in range(3)]
    results = answer(ToolSet([tool("push", push, "items")]), *calls)
    assert [result.text for result in results] == ["[0, 1]"] * 3
    assert shared == [0]


# Case tools-05.
def test_results_that_are_not_strings() -> None:
    class Bad:
        def __str__(self) -> str:
            raise SystemExit(1)

    async def coroutine() -> dict[str, int]:
        return {"ü": 1}

    async def twice() -> Any:
        return coroutine()

    class Awaitable:
        def __await__(self) -> Iterator[Any]:
            yield from asyncio.sleep(0, "awaited").__await__()

    values: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "dict": lambda: {"a": [1, None]},
        "bad": Bad,
        "coroutine": coroutine,
        "plain_coroutine": lambda: coroutine(),
        "twice": twice,
        "generator": lambda: (i for i in range(3)),
        "bytes": lambda: b"\xff",
        "surrogate": lambda: "\ud800",
    }
    results = answer(ToolSet([tool(name, function) for name, function in values.items()]), *map(call, values))
    texts = dict(zip(values, results, strict=True))
    assert texts.pop("bad").status == "error"
    assert [result.text for result in texts.values()] == [
        "",
        '{"a": [1, null]}',
        '{"ü": 1}',
        '{"ü": 1}',
        '{"ü": 1}',
        "[0, 1, 2]",
        "\ufffd",
        "\ufffd",
    ]
