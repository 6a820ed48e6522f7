"""Whether a callable and a JSON schema fit together."""

from __future__ import annotations

import inspect
import unicodedata
from collections.abc import Callable
from typing import Any


def check_name(name: str) -> None:
    """Refuse names that a tool-call format could not carry.

    Args:
      name: a tool's name.

    Raises:
      ValueError: it is empty, or holds a space, a quote, a bracket or the like.
    """

    def is_allowed(char: str) -> bool:
        return char.isalnum() or char in "_-.:/" or unicodedata.category(char).startswith("M")

    if not name or not all(map(is_allowed, name)):
        raise ValueError(f"Tool name {name!r} must consist of letters, digits and _ - . : / only.")


def check_signature(
    function: Callable[..., Any], parameters: dict[str, Any], where: str
) -> tuple[tuple[str, ...], bool]:
    """Make sure that a call which fits the schema also fits the callable.

    With this, a `TypeError` during a call can only come from the tool's own code.

    Args:
      function: what will be called.
      parameters: the JSON schema of its arguments.
      where: how errors name the tool.

    Returns:
      The names that the schema offers, and whether the callable takes any other name too.

    Raises:
      ValueError: the schema offers what the callable does not take, or leaves out what it requires.
    """
    try:
        signature = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: the callable has no signature; wrap it in a Python function.") from error
    kinds = inspect.Parameter
    is_open = any(parameter.kind is kinds.VAR_KEYWORD for parameter in signature)
    by_name = {p.name: p for p in signature if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
    offered, required = parameters["properties"], parameters.get("required", [])
    for parameter in signature:
        if parameter.kind is kinds.POSITIONAL_ONLY:
            raise ValueError(f"{where}: parameter {parameter.name!r} must not be positional-only.")
        if parameter.kind is kinds.VAR_POSITIONAL:
            raise ValueError(f"{where}: '*{parameter.name}' cannot be filled by name; use a list parameter.")
    for name in (*offered, *required):
        if name not in by_name and not is_open:
            taken = ", ".join(by_name) or "nothing"
            raise ValueError(f"{where}: the schema offers {name!r}, but the callable takes {taken}.")
    for name, parameter in by_name.items():
        if parameter.default is kinds.empty and name not in required:
            raise ValueError(f"{where}: the callable requires {name!r}, but the schema does not.")
    return tuple(offered), is_open


def is_async(function: Callable[..., Any]) -> bool:
    """Tell by its definition whether calling it gives a coroutine.

    Args:
      function: a function, a partial, a decorated function or an instance with `__call__`.

    Returns:
      False also for a plain function that happens to return an awaitable.
    """
    inner = inspect.unwrap(function)
    while hasattr(inner, "func"):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004
