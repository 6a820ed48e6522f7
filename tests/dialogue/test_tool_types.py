"""What the types of a tool's parameters do; the laws are in property_tests/test_tool_types.py."""

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import annotated_types
import pydantic
import pytest
import torch

from fnroll.dialogue.parsers import get_parser
from fnroll.dialogue.tool import BoundCall, Tool, ToolSet
from tests.dialogue.calls import received, refused


class Unit(enum.Enum):
    KM = "km"
    MI = "mi"


@dataclasses.dataclass
class Box:
    width: int
    height: int = 1

    def __post_init__(self) -> None:
        if self.width < 0:
            raise ValueError("a width is not negative")


class Pair(NamedTuple):
    first: int
    second: str = ""


class Query(TypedDict):
    text: str
    limit: NotRequired[int]


class Item(pydantic.BaseModel):
    day: date
    box: Box
    count: Annotated[int, pydantic.Field(ge=1)] = 1


def with_type(hint: Any, **default: Any) -> Tool:
    """A tool `f` with one parameter `p` of this type, which returns it."""

    def f(p):  # type: ignore[no-untyped-def]
        return p

    f.__doc__ = "Does.\n\nArgs:\n    p: what"
    f.__annotations__ = {"p": hint}
    if default:
        f.__defaults__ = (default["default"],)
    return Tool.from_function(f)


# Case fresh-10: what JSON writes as a float, in the families whose calls are JSON or Python.
@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", '<tool_call>\n{{"name": "rep", "arguments": {{"n": {}}}}}\n</tool_call>'),
        ("llama", '<|python_tag|>{{"name": "rep", "parameters": {{"n": {}}}}}'),
        ("llama", "<|python_tag|>[rep(n={})]"),
        (
            "kimi",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.rep:0<|tool_call_argument_begin|>"
            '{{"n": {}}}<|tool_call_end|><|tool_calls_section_end|>',
        ),
        ("mistral", '[TOOL_CALLS]rep[ARGS]{{"n": {}}}'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=rep>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>",
        ),
    ],
)
@pytest.mark.parametrize("number", ["3.0", "3e0", "3"])
def test_a_whole_number_written_as_a_float_is_an_int_in_every_family(
    family: str, text: str, number: str
) -> None:
    def rep(n: int) -> str:
        """Repeats.

        Args:
            n: how often
        """
        return "x" * n

    tools = ToolSet([rep])
    message = get_parser(family).parse(text.format(number), prefix="", tools=tools.schemas)
    (answer,) = map(tools.bind, message.calls)
    assert isinstance(answer, BoundCall)
    assert (answer.arguments, type(answer.arguments["n"])) == ({"n": 3}, int)


# Case fresh-10.
@pytest.mark.parametrize(
    ("hint", "value", "meant"),
    [
        (int, 3.0, 3),
        (int, -1e20, -(10**20)),
        (list[int], [2.0, 1, 0.0], [2, 1, 0]),
        (dict[str, list[int]], {"a": [1.0]}, {"a": [1]}),
        (int | None, 3.0, 3),
        (int | str, 3.0, 3),
        (int | float, 3.0, 3.0),
        (int | float, 3, 3),
        (float | int, 3, 3),
        (float, 3, 3.0),
        (Literal[1, 2], 2.0, 2),
        (dict[int, int], {"1": 2.0}, {1: 2}),
    ],
)
def test_numbers_arrive_as_declared(hint: Any, value: Any, meant: Any) -> None:
    found = received(with_type(hint), p=value)
    assert found == meant and repr(found) == repr(meant)


# Case fresh-10.
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 3.5),
        (int, True),
        (int, "3"),
        (int, float("inf")),
        (float, "1.0"),
        (float, True),
        (float, 10**400),
        (bool, 1),
        (bool, "true"),
        (str, 3),
        (list[int], [True]),
        (list[int], "[1]"),
        (int | bool, 1.5),
        (dict[str, int], {"a": "1"}),
        (dict[int, int], {"1.5": 1}),
        (dict[int, int], {"01": 1}),
        (Literal[1], True),
        (Literal["1"], 1),
    ],
)
def test_nothing_else_becomes_a_number_or_stops_being_one(hint: Any, value: Any) -> None:
    assert "argument 'p" in refused(with_type(hint), p=value)


# Case fresh-10, for a tool that is described by a schema alone.
def test_a_schema_says_where_numbers_are_whole() -> None:
    integer, number = {"type": "integer"}, {"type": "number"}
    parameters = {
        "type": "object",
        "properties": {
            "n": {"$ref": "#/$defs/count"},
            "many": {"type": "array", "items": integer, "minItems": 1},
            "first": {"type": "array", "prefixItems": [number, integer], "items": integer},
            "box": {"allOf": [{"properties": {"w": integer}}], "properties": {"h": number}},
            "either": {"anyOf": [integer, number]},
            "or_text": {"oneOf": [integer, {"type": "string"}]},
            "boxes": {
                "anyOf": [
                    {"type": "object", "properties": {"w": integer}},
                    {"type": "array", "items": number},
                ]
            },
            "any": {},
            "one_of": {"enum": [1, 2]},
        },
        "$defs": {"count": {"type": ["integer", "null"]}},
    }
    tool = Tool.from_schema({"name": "t", "parameters": parameters}, lambda **given: given)
    found = received(
        tool, n=1.0, many=[1.0, 2], first=[1.0, 2.0, 3.0], box={"w": 1.0, "h": 2.0}, either=1.0, or_text=1.0,
        boxes={"w": 1.0}, any=1.0, one_of=2.0, more=1.0,
    )  # fmt: skip
    assert repr(found) == repr(
        {"n": 1, "many": [1, 2], "first": [1.0, 2, 3], "box": {"w": 1, "h": 2.0}, "either": 1.0, "or_text": 1,
         "boxes": {"w": 1}, "any": 1.0, "one_of": 2, "more": 1.0}
    )  # fmt: skip


# Cases fresh-11 and fresh-12.
@pytest.mark.parametrize(
    ("hint", "value", "meant"),
    [
        (Unit, "mi", Unit.MI),
        (list[Unit], ["km"], [Unit.KM]),
        (Unit | None, None, None),
        (tuple[int, int], [1, 2.0], (1, 2)),
        (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
        (tuple[()], [], ()),
        (tuple, [1], (1,)),
        (set[int], [1, 2.0], {1, 2}),
        (frozenset[str], ["a"], frozenset("a")),
        (Sequence[Unit], ["km"], [Unit.KM]),
        (Iterable[int], [1.0], [1]),
        (Mapping[Unit, date], {"km": "2026-12-31"}, {Unit.KM: date(2026, 12, 31)}),
        (date, "2026-12-31", date(2026, 12, 31)),
        (Path, "a/b", Path("a/b")),
        (str | Path, "a", "a"),
        (date | str, "2026-12-31", date(2026, 12, 31)),
        (date | str, "soon", "soon"),
        (Box, {"width": 2.0}, Box(2)),
        (list[Box], [{"width": 1, "height": 2}], [Box(1, 2)]),
        (Box | dict[str, int], {"depth": 1}, {"depth": 1}),
        (Pair, [1, "a"], Pair(1, "a")),
        (Query, {"text": "a", "limit": 1.0}, {"text": "a", "limit": 1}),
        (Item, {"day": "2026-12-31", "box": {"width": 1.0}}, Item(day=date(2026, 12, 31), box=Box(1))),
        (Annotated[Unit, "a note"], "km", Unit.KM),
        (NewType("Meters", int), 3.0, 3),
        (Literal[Unit.KM], "km", Unit.KM),
        (typing.List[int], [1.0], [1]),  # noqa: UP006
        (typing.Tuple, [1], (1,)),  # noqa: UP006
    ],
)  # fmt: skip
def test_every_type_arrives_as_declared(hint: Any, value: Any, meant: Any) -> None:
    found = received(with_type(hint), p=value)
    assert found == meant and type(found) is type(meant)


# Case fresh-12.
def test_a_schema_says_what_a_class_holds() -> None:
    properties = {"width": {"type": "integer"}, "height": {"type": "integer"}}
    assert with_type(Box).schema["function"]["parameters"]["properties"]["p"] == {
        "type": "object",
        "properties": properties,
        "required": ["width"],
        "additionalProperties": False,
        "description": "what",
    }
    item = with_type(Item).schema["function"]["parameters"]["properties"]["p"]
    assert item["properties"]["box"]["properties"]["width"] == {"type": "integer"}
    assert item["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 1}
    counted = Annotated[list[Annotated[int, annotated_types.Interval(ge=0, lt=5)]], annotated_types.Len(1, 3)]
    assert with_type(counted).schema["function"]["parameters"]["properties"]["p"] == {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "exclusiveMaximum": 5},
        "minItems": 1,
        "maxItems": 3,
        "description": "what",
    }


# Cases fresh-11 and fresh-12.
@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (Unit, "m", '\' must be one of "km", "mi", but is "m".'),
        (tuple[int, int], [1], "' must be a list of 2 items, but is [1]."),
        (tuple[int, int], [1, 2, 3], "' must be a list of 2 items, but is [1, 2, 3]."),
        (date, "2026-02-30", '\' must be a date such as 2026-12-31, but is "2026-02-30".'),
        (dict[str, list[date]], {"a": ["x"]}, '.a[0]\' must be a date such as 2026-12-31, but is "x".'),
        (set[int], [1, 1], "': [1, 1] has non-unique elements."),
        (set, [[1]], "' must be a list of single values, but is [[1]]."),
        (dict[date, int], {"x": 1}, '\' has the key "x", which must be a date such as 2026-12-31.'),
        (list[Box], [{}], "[0]' lacks 'width'."),
        (Box, {"width": -1}, "' is refused: ValueError: a width is not negative."),
        (Item, {"day": "x", "box": {"width": 1}}, ".day' is refused: Input should be"),
        (Item, {"day": "2026-12-31", "box": {"width": "1"}}, ".box.width' must be of type integer"),
        (Annotated[int, annotated_types.Gt(0)], 0, "': 0 is less than or equal to the minimum of 0."),
    ],
)
def test_what_does_not_fit_is_named(hint: Any, value: Any, text: str) -> None:
    assert refused(with_type(hint), p=value).startswith(f"argument 'p{text}")


@dataclasses.dataclass
class Node:
    children: "list[Node]"


class Tree(pydantic.BaseModel):
    children: "list[Tree]"


@dataclasses.dataclass
class Circle:
    radius: float


@dataclasses.dataclass
class Ball:
    radius: float


@dataclasses.dataclass
class Square:
    kind: Literal["square"]
    radius: float


class Color(enum.Enum):
    MI = "mi"


class Empty(enum.Enum):
    pass


class Points(enum.Enum):
    ORIGIN = (0, 0)


# Cases fresh-11 and fresh-12.
@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (bytes, "bytes has no form in JSON; allowed are str, int,"),
        (complex, "complex has no form"),
        (Callable[[int], int], "Callable[[int], int] has no form"),
        (torch.Tensor, "torch.Tensor has no form"),
        (type, "type has no form"),
        (typing.TypeVar("T"), "~T has no form"),
        (list[bytes], "bytes has no form"),
        (dict[tuple[int, int], int], "the keys of a JSON object are text, which cannot hold tuple[int, int]"),
        (set[list[int]], "a set cannot hold list[int], which has no hash"),
        (frozenset[Box], "which has no hash"),
        (Node, "Node holds itself"),
        (Tree, "Tree holds itself"),
        (Circle | Ball, "can be the same in JSON"),
        (Unit | Color, "can be the same in JSON"),
        (Empty, "the Enum Empty has no values"),
        (Points, "the Enum Points has the value (0, 0), which is no str, int, float, bool or None"),
        (Literal[b"a"], "the Literal has the value b'a'"),
        (Annotated[str, annotated_types.Predicate(str.isupper)], "has no keyword in the JSON schema"),
        (Annotated[date, annotated_types.Gt(date(2026, 1, 1))], "has no keyword in the JSON schema"),
    ],
)
def test_what_json_cannot_say_is_refused_by_name(hint: Any, text: str) -> None:
    with pytest.raises(ValueError) as caught:
        with_type(hint)
    assert str(caught.value).startswith("Tool 'f' gives no JSON schema: argument 'p': ")
    assert text in str(caught.value)


def test_classes_that_json_tells_apart_may_stand_in_one_union() -> None:
    assert received(with_type(Circle | Square), p={"radius": 1}) == Circle(1.0)
    assert received(with_type(Circle | Square), p={"kind": "square", "radius": 1}) == Square("square", 1.0)
    assert received(with_type(Circle | Box), p={"width": 1}) == Box(1)


def test_a_default_of_none_may_be_written_as_null() -> None:
    for hint in (int, Unit, list[int]):
        tool = with_type(hint, default=None)
        assert received(tool, p=None) is None and received(tool) is None
        assert "nullable" not in str(tool.schema)
    assert "must be of type integer" in refused(with_type(int, default=3), p=None)
    assert "must be of type integer" in refused(with_type(int), p=None)


def test_what_a_tool_is_given_is_its_own() -> None:
    written = {"text": "a", "parts": [[1.0]]}
    tool = Tool.from_schema({"name": "t"}, lambda **given: given)
    received(tool, p=written)["p"]["parts"].append(2)
    received(with_type(Any), p=written)["parts"].append(2)
    received(with_type(list), p=written["parts"]).append(2)
    assert written == {"text": "a", "parts": [[1.0]]}
