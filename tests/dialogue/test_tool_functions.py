"""What may be a tool: functions, methods, partials, instances, wrappers."""

import enum
import functools

import pytest

from fnroll.dialogue.tool import to_tool
from tests.dialogue.calls import received, refused


class Unit(enum.Enum):
    KM = "km"
    MI = "mi"


def scale(factor: int, *, unit: Unit = Unit.KM, key: str = "") -> tuple[int, Unit, str]:
    """Scales.

    Args:
        factor: by how much
        unit: of what
        key: a secret
    """
    return factor, unit, key


class Scaler:
    async def scale_all(self, factors: set[int]) -> set[int]:
        """Scales all.

        Args:
            factors: by how much
        """
        return factors

    @classmethod
    def made(cls, unit: Unit) -> Unit:
        """Makes one.

        Args:
            unit: of what
        """
        return unit


class CallableScaler:
    def __call__(self, *, unit: Unit, **more: int) -> tuple[Unit, dict[str, int]]:
        """Scales.

        Args:
            unit: of what
        """
        return unit, more


def test_what_a_partial_binds_is_neither_shown_nor_accepted() -> None:
    tool = to_tool(functools.partial(scale, key="secret"))
    assert tool.name == "scale" and list(tool.schema["function"]["parameters"]["properties"]) == [
        "factor",
        "unit",
    ]
    assert received(tool, factor=2.0, unit="mi") == (2, Unit.MI, "secret")
    assert 'unexpected argument "key" (it takes: factor, unit)' in refused(tool, factor=1, key="mine")
    first = to_tool(functools.partial(functools.partial(scale, 3), key="x"))
    assert list(first.schema["function"]["parameters"]["properties"]) == ["unit"]
    assert received(first) == (3, Unit.KM, "x")
    hidden = to_tool(functools.partial(CallableScaler(), depth=3))
    assert hidden.name == "callable_scaler"
    assert 'unexpected argument "depth"' in refused(hidden, unit="km", depth=4)
    assert received(hidden, unit="km", width=4.0) == (Unit.KM, {"depth": 3, "width": 4})


def test_methods_keyword_only_parameters_and_instances_arrive_as_declared() -> None:
    assert received(scale, factor=1.0, unit="mi") == (1, Unit.MI, "")
    assert received(Scaler.made, unit="mi") is Unit.MI
    assert received(CallableScaler(), unit="km", depth=1.0) == (Unit.KM, {"depth": 1})
    assert "argument 'depth' must be a whole number" in refused(CallableScaler(), unit="km", depth="1")
    tool = to_tool(Scaler().scale_all)
    assert tool.is_async and tool.name == "scale_all"
    coroutine = received(tool, factors=[1.0])
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    assert stopped.value.value == {1}


def test_cached_functions_are_tools_too() -> None:
    assert received(functools.lru_cache(scale), factor=1) == (1, Unit.KM, "")
