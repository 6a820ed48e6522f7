"""Calls of one tool, bound."""

from typing import Any

from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import BadCall, BoundCall, ToolSet


def bind(tool: Any, **arguments: Any) -> BoundCall | BadCall:
    tools = ToolSet([tool])
    return tools.bind(ToolCall(tools.names[0], arguments, (0, 0)))


def received(tool: Any, **arguments: Any) -> Any:
    bound = bind(tool, **arguments)
    assert isinstance(bound, BoundCall), bound
    return bound.tool.function(**bound.arguments)


def refused(tool: Any, **arguments: Any) -> str:
    answer = bind(tool, **arguments)
    assert isinstance(answer, BadCall) and answer.status == "bad_arguments", answer
    return answer.text.partition(": ")[2].partition(": ")[2]
