"""What a model writes for a value of a supported type reaches the tool as that value; nothing is coerced."""

import dataclasses
import enum
import json
import math
import typing
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import pydantic
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from fnroll.dialogue.forms import containers, find
from fnroll.dialogue.forms.form import EXACT
from fnroll.dialogue.forms.scalars import SCALARS
from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import BoundCall, Tool, ToolSet


class Unit(enum.Enum):
    KM = "km"
    MI = "mi"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Span:
    start: int
    unit: Unit
    when: date | None = None


class Place(NamedTuple):
    x: float
    tags: tuple[str, ...]


class Options(TypedDict, total=False):
    limit: typing.Required[int]
    units: list[Unit]


class Model(pydantic.BaseModel):
    count: int
    span: Span | None
    unit: Unit


class Case(NamedTuple):
    """A type, and its values."""

    hint: Any
    values: st.SearchStrategy[Any]


FLOATS = st.floats(allow_nan=False)
SPANS = st.builds(Span, st.integers(), st.sampled_from(Unit), st.none() | st.dates())
LEAVES = [
    Case(int, st.integers()),
    Case(float, FLOATS),
    Case(bool, st.booleans()),
    Case(str, st.text()),
    Case(Unit, st.sampled_from(Unit)),
    Case(Level, st.sampled_from(Level)),
    Case(Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    Case(date, st.dates()),
    Case(datetime, st.datetimes()),
    Case(time, st.times()),
    Case(UUID, st.uuids()),
    Case(Path, st.text(st.characters(exclude_characters="\0"), min_size=1).map(Path)),
    Case(Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    Case(Span, SPANS),
    Case(Place, st.builds(Place, FLOATS, st.lists(st.text(), max_size=3).map(tuple))),
    Case(Model, st.builds(Model, count=st.integers(), span=st.none() | SPANS, unit=st.sampled_from(Unit))),
    Case(
        Options,
        st.fixed_dictionaries(
            {"limit": st.integers()}, optional={"units": st.lists(st.sampled_from(Unit), max_size=2)}
        ),
    ),
]
KEYS = [case for case in LEAVES if case.hint in (int, str, Unit, Level, date, UUID, bool)]
ITEMS = [case for case in LEAVES if case.hint not in (Options, Model)]
# Members of a union that JSON tells apart.
MEMBERS = [
    Case(None, st.none()),
    Case(bool, st.booleans()),
    Case(int, st.integers()),
    Case(float, FLOATS),
    Case(Unit, st.sampled_from(Unit)),
    Case(date, st.dates()),
    Case(str, st.text("xyz")),
    Case(Span, SPANS),
    Case(tuple[int, int], st.tuples(st.integers(), st.integers())),
    Case(list[Unit], st.lists(st.sampled_from(Unit), max_size=1)),
    Case(dict[str, int], st.dictionaries(st.text("xyz"), st.integers(), max_size=2)),
]


@st.composite
def groups(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    """A container of what `inner` draws."""
    item = draw(inner)
    lists = st.lists(item.values, max_size=3)
    single = draw(st.sampled_from(ITEMS))
    sets = st.sets(single.values, max_size=3)
    key = draw(st.sampled_from(KEYS))
    dicts = st.dictionaries(key.values, item.values, max_size=3)
    return draw(
        st.sampled_from(
            [
                Case(list[item.hint], lists),
                Case(Sequence[item.hint], lists),
                Case(Iterable[item.hint], lists),
                Case(deque[item.hint], lists.map(deque)),
                Case(tuple[item.hint, ...], lists.map(tuple)),
                Case(tuple[item.hint, single.hint], st.tuples(item.values, single.values)),
                Case(set[single.hint], sets),
                Case(frozenset[single.hint], sets.map(frozenset)),
                Case(dict[key.hint, item.hint], dicts),
                Case(Mapping[key.hint, item.hint], dicts),
                Case(OrderedDict[key.hint, item.hint], dicts.map(OrderedDict)),
                Case(typing.Optional[item.hint], st.none() | item.values),  # noqa: UP045
                Case(typing.Annotated[item.hint, "a note"], item.values),
            ]
        )
    )


@st.composite
def unions(draw: st.DrawFn) -> Case:
    members = draw(st.lists(st.sampled_from(MEMBERS), min_size=2, max_size=4, unique_by=str))
    return Case(
        typing.Union[tuple(member.hint for member in members)],  # noqa: UP007
        st.one_of([member.values for member in members]),
    )


CASES = st.recursive(st.sampled_from(LEAVES) | unions(), groups, max_leaves=3)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    case = draw(CASES)
    return case.hint, draw(case.values)


def written(value: Any) -> Any:
    """What a model writes for a value, without a word of fnroll's."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value):
        return {field.name: written(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID | Path | Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {written(key): written(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [written(item) for item in value]
    return value


def is_same(one: Any, other: Any) -> bool:
    """Equal, and of equal types to the last part."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return (
            list(map(type, one)) == list(map(type, other))
            and one.keys() == other.keys()
            and all(is_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple | deque):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, set | frozenset):
        return one == other and {type(item) for item in one} == {type(item) for item in other}
    return bool(one == other)


def tool_with(hint: Any) -> Tool:
    def tool(value):  # type: ignore[no-untyped-def]
        """Takes a value.

        Args:
            value: of the type
        """

    tool.__annotations__["value"] = hint
    return Tool.from_function(tool)


def bind(hint: Any, value: Any) -> Any:
    return ToolSet([tool_with(hint)]).bind(ToolCall("tool", {"value": value}, (0, 0)))


def value_law(case: tuple[Any, Any]) -> None:
    """What is written for a value is read as that value."""
    hint, value = case
    answer = bind(hint, json.loads(json.dumps(written(value))))
    assert isinstance(answer, BoundCall), answer
    assert is_same(answer.arguments["value"], value), answer


# Cases fresh-10, fresh-11 and fresh-12.
@given(typed_values())
def test_a_value_that_is_written_as_json_reaches_the_tool_as_it_was(case: tuple[Any, Any]) -> None:
    value_law(case)


def as_floats(value: Any) -> Any:
    """The same JSON with every whole number that a float holds exactly written with a point."""
    if isinstance(value, list):
        return [as_floats(item) for item in value]
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53
    return float(value) if is_whole else value


# Case fresh-10.
@given(typed_values().filter(lambda case: "float" not in str(case[0])))
def test_whole_numbers_may_be_written_as_floats(case: tuple[Any, Any]) -> None:
    hint, value = case
    answer = bind(hint, as_floats(json.loads(json.dumps(written(value)))))
    assert isinstance(answer, BoundCall) and is_same(answer.arguments["value"], value), answer


JSON_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | FLOATS
    | st.text()
    | st.sampled_from(["1", "true", "null", "km"])
)
JSON_VALUES = st.recursive(
    JSON_SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["limit", "1", "a"]), inner),
)
# What has several forms in JSON.
LOOSE = ("Path", "time", "Decimal", "Model", "Span", "set")


def is_same_json(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same_json, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same_json(one[key], other[key]) for key in one)
    if isinstance(one, int | float) and isinstance(other, int | float):
        # JSON has one kind of number, as wide as a float; true is none.
        return isinstance(one, bool) == isinstance(other, bool) and math.isclose(one, other)
    return type(one) is type(other) and bool(one == other)


@given(CASES.filter(lambda case: not any(name in str(case.hint) for name in LOOSE)), JSON_VALUES)
def test_no_json_value_becomes_another(case: Case, value: Any) -> None:
    answer = bind(case.hint, value)
    if isinstance(answer, BoundCall):
        found = json.loads(json.dumps(written(answer.arguments["value"])))
        assert is_same_json(found, value), answer


def containers_of_today(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda item: list[item]),
        st.tuples(inner, inner).map(lambda items: tuple[items]),
        inner.map(lambda item: dict[str, item]),
        inner.map(lambda item: typing.Optional[item]),  # noqa: UP045
        st.lists(inner, min_size=1, max_size=3).map(lambda items: typing.Union[tuple(items)]),  # noqa: UP007
    )


TODAY = st.recursive(
    st.sampled_from(
        [
            int,
            float,
            str,
            bool,
            type(None),
            Any,
            list,
            tuple,
            dict,
            Unit,
            Level,
            Literal["a", 2],
            Literal["b", None],
            list,
        ]
    ),
    containers_of_today,
)


@given(TODAY, st.sampled_from(["what", "one of (choices: [1, 2])", "two\n            lines"]), st.booleans())
def test_what_transformers_can_describe_it_describes(hint: Any, text: str, is_optional: bool) -> None:
    def tool(value, other=0):  # type: ignore[no-untyped-def]
        pass

    tool.__doc__ = f"Does.\n\n        Args:\n            value: {text}\n            other: more\n"
    tool.__annotations__ = {"value": hint, "other": int}
    if is_optional:
        tool.__defaults__ = (None, 0)
    assert json.dumps(Tool.from_function(tool).schema) == json.dumps(get_json_schema(tool))


def unread(form):  # type: ignore[no-untyped-def]
    """The form with its values left as JSON has them."""
    return dataclasses.replace(form, read=lambda value: value)


def tuples_left_as_lists(kind, arguments, part, form=containers.container_form):  # type: ignore[no-untyped-def]
    return unread(form(kind, arguments, part)) if kind is tuple else form(kind, arguments, part)


MUTANTS = {
    "numbers left as they are": lambda patch: patch.setitem(SCALARS, float, unread(SCALARS[float])),
    "dates left as text": lambda patch: patch.setitem(SCALARS, date, unread(SCALARS[date])),
    "members left as their values": lambda patch: patch.setattr(
        find, "enum_form", lambda kind, form=find.enum_form: unread(form(kind))
    ),
    "tuples left as lists": lambda patch: patch.setattr(find, "container_form", tuples_left_as_lists),
    "keys left as text": lambda patch: patch.setattr(containers, "_read_key", lambda text, key: text),
    "text before what parses it": lambda patch: patch.setitem(
        SCALARS, str, dataclasses.replace(SCALARS[str], rank=EXACT)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)

    @settings(max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    @given(typed_values())
    def check(case: tuple[Any, Any]) -> None:
        value_law(case)

    with pytest.raises(AssertionError):
        check()
