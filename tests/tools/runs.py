"""Tools to run, and turns to run them in."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from fnroll.dialogue.message import ParseError, ToolCall
from fnroll.dialogue.tool import Tool, ToolSet
from fnroll.tools.runner import ToolResult, ToolRunner

LONG_S = 60.0
"""More than any of this takes, also on a machine that does much else."""


def tool(name: str, function: Callable[..., Any], *names: str) -> Tool:
    properties: dict[str, Any] = {name: {} for name in names}
    parameters = {"type": "object", "properties": properties, "required": list(names)}
    return Tool.from_schema({"name": name, "parameters": parameters}, function)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, (0, 0))


def finish(runner: ToolRunner, *keys: Any) -> dict[Any, tuple[ToolResult, ...]]:
    """Polls until all the turns are answered."""
    found: dict[Any, tuple[ToolResult, ...]] = {}
    while set(found) < set(keys):
        assert runner.wait(LONG_S)
        found.update(runner.ready())
    return found


def answer(
    tools: ToolSet, *calls: ToolCall | ParseError, timeout: float | None = 3.0
) -> tuple[ToolResult, ...]:
    with ToolRunner(tools, tool_timeout_s=timeout) as runner:
        runner.submit("turn", calls)
        return finish(runner, "turn")["turn"]


def sleep_plain(seconds: float, tag: str = "") -> str:
    time.sleep(seconds)
    return tag


async def sleep_async(seconds: float, tag: str = "") -> str:
    await asyncio.sleep(seconds)
    return tag


SLEEPERS = ToolSet(
    [tool("plain", sleep_plain, "seconds", "tag"), tool("coro", sleep_async, "seconds", "tag")]
)
