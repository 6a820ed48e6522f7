"""Tools that come with fnroll."""

from __future__ import annotations

from collections.abc import Callable

from fnroll.dialogue.tool import Tool
from fnroll.tools.builtin.calculator import calculator_tool
from fnroll.tools.builtin.python import python_tool

BUILTIN_TOOLS: dict[str, Callable[[], Tool]] = {"calculator": calculator_tool, "python": python_tool}
"""What makes each tool, by its name."""


def get_tool(name: str) -> Tool:
    """Make a built-in tool.

    Args:
      name: one of `BUILTIN_TOOLS`.

    Returns:
      A new tool with its default limits.

    Raises:
      ValueError: there is no such tool.
    """
    if name not in BUILTIN_TOOLS:
        raise ValueError(
            f"There is no built-in tool {name!r}; the tools are: {', '.join(sorted(BUILTIN_TOOLS))}."
        )
    return BUILTIN_TOOLS[name]()
