import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fnroll.dialogue.output import to_output

TEXT = st.text(st.characters())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary()
JSON_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


def generator(items: list[Any]) -> Iterator[Any]:
    yield from items
    if len(items) % 2:
        raise StopAsyncIteration


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.none() | st.integers() | TEXT | st.tuples(st.integers()) | st.floats()
    lists = st.lists(inner, max_size=4)
    return (
        lists
        | lists.map(tuple)
        | lists.map(generator)
        | lists.map(iter)
        | st.dictionaries(keys, inner, max_size=4)
    )


ERRORS = st.sampled_from([ValueError("\ud800"), StopIteration(), SystemExit(), GeneratorExit()])
LEAVES = SCALARS | ERRORS.map(Raises) | st.sets(st.integers() | TEXT) | st.just(object())


@given(st.recursive(LEAVES, containers))
def test_any_value_becomes_a_text_that_can_be_encoded(value: Any) -> None:
    output = to_output(value)
    output.text.encode("utf-8")
    assert not output.is_error or output.text.startswith("Error: ")


@given(
    st.recursive(
        JSON_SCALARS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    ).filter(lambda value: not isinstance(value, str | None))
)
def test_json_values_come_back(value: Any) -> None:
    output = to_output(value)
    assert not output.is_error and json.loads(output.text) == value
