import enum
import functools
import sys
import threading
from typing import Any, Literal

import pytest

from fnroll.dialogue.depth import MAX_DEPTH
from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import BadCall, BoundCall, Tool, ToolSet, to_tool


def add(a: int, b: int) -> int:
    """Adds two integers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def fetch(url: str, retries: int | None = None) -> str:
    """Fetches a page.

    Args:
        url: the address
        retries: how often to try
    """
    return url


class SearchIndex:
    """Looks up documents."""

    async def __call__(self, query: str, limit: int = 3) -> list[str]:
        """Finds documents.

        Args:
            query: the words
            limit: most documents
        """
        return [query] * limit


def call(name: str, arguments: Any) -> ToolCall:
    return ToolCall(name, arguments, (0, 0))


def bad(tools: ToolSet, name: str, arguments: Any) -> BadCall:
    answer = tools.bind(call(name, arguments))
    assert isinstance(answer, BadCall)
    return answer


def test_from_function_gives_the_openai_schema() -> None:
    tool = Tool.from_function(add)
    assert tool.schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two integers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first"},
                    "b": {"type": "integer", "description": "the second"},
                },
                "required": ["a", "b"],
            },
        },
    }
    assert not tool.is_async
    tool.schema["function"]["name"] = "changed"
    assert tool.schema["function"]["name"] == "add"


def test_from_object_takes_async_call_and_names_itself() -> None:
    tool = Tool.from_object(SearchIndex())
    assert (tool.name, tool.is_async) == ("search_index", True)
    assert tool.schema["function"]["parameters"]["required"] == ["query"]
    assert Tool.from_object(SearchIndex(), name="find").name == "find"


def test_from_object_takes_the_docstring_of_the_class() -> None:
    class Echo:
        """Repeats.

        Args:
            text: what
        """

        name = "echo"

        def __call__(self, text: str) -> str:
            return text

    assert Tool.from_object(Echo()).schema["function"]["description"] == "Repeats."


def test_from_schema_takes_both_forms() -> None:
    inner = {
        "name": "sub",
        "description": "Subtracts.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    }
    whole = {"type": "function", "function": inner}
    for schema in (inner, whole):
        assert Tool.from_schema(schema, lambda a, b=1: a - b).schema == whole
    inner["name"] = "changed"
    assert Tool.from_schema({"name": "now"}, lambda: 0).schema["function"]["parameters"]["properties"] == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tool.from_function(lambda a: a), "Tool '<lambda>' has no docstring"),
        (lambda: Tool.from_function(lambda: 0, name="a b"), "Tool 'a b' has no docstring"),
        (lambda: Tool.from_function(3), "Tool.from_function needs a function, but got 3."),  # type: ignore[arg-type]
        (lambda: Tool.from_object(SearchIndex), "Tool.from_object needs an instance with __call__"),
        (lambda: Tool.from_schema({"name": "a b"}, lambda: 0), "Tool name 'a b' must consist of letters"),
        (lambda: Tool.from_schema({"name": ""}, lambda: 0), "Tool name '' must consist of letters"),
        (lambda: Tool.from_schema({}, lambda: 0), "must hold a string 'name'"),
        (lambda: Tool.from_schema([], lambda: 0), "the schema is a list; it must be a dict"),  # type: ignore[arg-type]
        (lambda: Tool.from_schema({"name": "t"}, 3), "Tool 't': needs a callable, but got 3."),  # type: ignore[arg-type]
        (
            lambda: Tool.from_schema({"name": "t", "description": 3}, lambda: 0),
            "it must be a string",
        ),
        (
            lambda: Tool.from_schema({"name": "t", "parameters": {"type": "array"}}, lambda: 0),
            "of type 'object'",
        ),
        (
            lambda: Tool.from_schema(
                {"name": "t", "parameters": {"properties": {"a": {"type": "int"}}}}, add
            ),
            "'parameters' is no valid JSON schema",
        ),
        (
            lambda: Tool.from_schema({"name": "t", "parameters": {"properties": {"a": {"x": add}}}}, add),
            "cannot be written as JSON",
        ),
        (
            lambda: Tool.from_schema(
                {"name": "t", "parameters": {"properties": {"a": {"$ref": "https://x.example/s.json"}}}},
                lambda a=0: a,
            ),
            "'$ref' 'https://x.example/s.json' is not found; only places inside 'parameters' are allowed.",
        ),
        (
            lambda: Tool.from_schema(
                {"name": "t", "parameters": {"properties": {"c": {}}}}, lambda a=0, b=0: 0
            ),
            "the schema offers 'c', but the callable takes a, b.",
        ),
        (
            lambda: Tool.from_schema({"name": "t", "parameters": {"properties": {"a": {}}}}, lambda a: 0),
            "the callable requires 'a', but the schema does not.",
        ),
        (lambda: Tool.from_schema({"name": "t"}, lambda *a: 0), "'*a' cannot be filled by name"),
        (
            lambda: Tool.from_schema({"name": "t"}, lambda a, /: 0),
            "parameter 'a' must not be positional-only",
        ),
        (lambda: Tool.from_schema({"name": "t"}, max), "the callable has no signature"),
        (lambda: to_tool("add"), "needs an instance with __call__, but got 'add'"),
    ],
)
def test_construction_says_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)


def test_missing_hint_or_description_is_named() -> None:
    def no_hint(a) -> None:  # type: ignore[no-untyped-def]
        """Does.

        Args:
            a: what
        """

    def no_text(a: int) -> None:
        """Does."""

    with pytest.raises(ValueError, match=r"Tool 'no_hint' gives no JSON schema: .*type hint"):
        Tool.from_function(no_hint)
    with pytest.raises(ValueError, match=r"Tool 'no_text' gives no JSON schema: .*'a'"):
        Tool.from_function(no_text)


# Case tools-08.
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": 1}, "missing argument 'b'"),
        ({}, "missing argument 'a'; missing argument 'b'"),
        ({"a": 1, "b": 2, "c": 3}, 'unexpected argument "c" (it takes: a, b)'),
        ({"a": "1", "b": 2}, "argument 'a' must be of type integer, but is the string \"1\""),
        ({"a": True, "b": 2}, "argument 'a' must be of type integer, but is the boolean true"),
        ({"a": None, "b": 2}, "argument 'a' must be of type integer, but is the null null"),
        (
            {"self": 1},
            "missing argument 'a'; missing argument 'b'; unexpected argument \"self\" (it takes: a, b)",
        ),
        ({"a": 1, "b": 2, "": 0}, 'unexpected argument "" (it takes: a, b)'),
        (
            {"a": 1, "b": "x" * 500},
            "argument 'b' must be of type integer, but is the string \"" + "x" * 96 + "...",
        ),
        ([1, 2], "the arguments must be a JSON object, but are [1, 2]"),
        (None, "the arguments must be a JSON object, but are null"),
        ({"a": 1, "b": "\ud800"}, "argument 'b' must be of type integer, but is the string \"\ufffd\""),
    ],
)
def test_bad_arguments_are_named(arguments: Any, text: str) -> None:
    answer = bad(ToolSet([add]), "add", arguments)
    assert answer == BadCall(f"Error: wrong arguments for tool 'add': {text}.", "bad_arguments")


def test_unknown_tool_lists_the_known_ones() -> None:
    tools = ToolSet([add, fetch])
    assert bad(tools, "ad", {}) == BadCall(
        'Error: there is no tool "ad". The tools are: add, fetch.', "unknown_tool"
    )
    # Exact match only: a near miss must not run another tool.
    for name in ("Add", "add ", "", "ａｄｄ"):
        assert bad(tools, name, {"a": 1, "b": 2}).status == "unknown_tool"
    assert bad(ToolSet(), "add", {}).text == 'Error: there is no tool "add". There are no tools.'


# Case tools-07.
def test_duplicate_names_are_refused() -> None:
    def named(name: str) -> Tool:
        return Tool.from_schema({"name": name}, lambda: 0)

    pairs = [
        ("read", "read"),
        ("read", "Read"),
        ("caf\u00e9", "cafe\u0301"),
        ("straße", "STRASSE"),
        ("ﬁnd", "find"),
    ]
    for first, second in pairs:
        with pytest.raises(ValueError) as caught:
            ToolSet([named("other"), named(first), named(second)])
        assert repr(first) in str(caught.value) and repr(second) in str(caught.value)
    same = named("read")
    with pytest.raises(ValueError, match="'read' and 'read'"):
        ToolSet([same, same])


def test_set_is_a_lookup_in_order() -> None:
    tools = ToolSet([fetch, add, SearchIndex()])
    assert tools.names == ("fetch", "add", "search_index")
    assert [schema["function"]["name"] for schema in tools.schemas] == list(tools.names)
    assert len(tools) == 3 and "add" in tools and "Add" not in tools
    assert tools["add"].function is add and [tool.name for tool in tools] == list(tools.names)


def test_bound_arguments_are_an_own_copy() -> None:
    def push(items: list[int]) -> list[int]:
        """Pushes.

        Args:
            items: where to
        """
        items.append(1)
        return items

    request = call("push", {"items": [[0]][0]})
    for _ in range(2):
        bound = ToolSet([push]).bind(request)
        assert isinstance(bound, BoundCall)
        assert bound.tool.function(**bound.arguments) == [0, 1]
    assert request.arguments == {"items": [0]}


def test_optional_hints_accept_null() -> None:
    tools = ToolSet([fetch])
    assert isinstance(tools.bind(call("fetch", {"url": "x", "retries": None})), BoundCall)
    assert isinstance(tools.bind(call("fetch", {"url": "x", "retries": 2})), BoundCall)
    assert "must be of type integer or null" in bad(tools, "fetch", {"url": "x", "retries": "2"}).text


def test_nested_and_enumerated_arguments() -> None:
    class Color(enum.Enum):
        RED = "red"

    def paint(
        color: Color, mode: Literal["a", "b"] | None, points: list[dict[str, int]] | None = None
    ) -> None:
        """Paints.

        Args:
            color: the color
            mode: how
            points: where
        """

    tools = ToolSet([paint])
    good = {"color": "red", "mode": None, "points": [{"x": 1}]}
    assert isinstance(tools.bind(call("paint", good)), BoundCall)
    text = bad(tools, "paint", {"color": "blue", "mode": "a"}).text
    assert 'argument \'color\' must be one of "red", but is "blue"' in text
    text = bad(tools, "paint", {"color": "red", "mode": "c", "points": [{"x": 1}, {"x": "1"}]}).text
    assert "argument 'mode' must be one of" in text and "argument 'points'" in text


def test_nested_path_and_missing_key() -> None:
    parameters = {
        "type": "object",
        "properties": {"box": {"$ref": "#/$defs/box"}},
        "required": ["box"],
        "$defs": {
            "box": {
                "type": "object",
                "properties": {"sizes": {"type": "array", "items": {"type": "integer", "maximum": 9}}},
                "required": ["sizes"],
            }
        },
    }
    tools = ToolSet([Tool.from_schema({"name": "t", "parameters": parameters}, lambda box: 0)])
    assert "argument 'box' lacks 'sizes'." in bad(tools, "t", {"box": {}}).text
    assert (
        "argument 'box.sizes[1]' must be of type integer"
        in bad(tools, "t", {"box": {"sizes": [1, "2"]}}).text
    )
    assert (
        "argument 'box.sizes[0]': 10 is greater than the maximum"
        in bad(tools, "t", {"box": {"sizes": [10]}}).text
    )


def nested(levels: int) -> Any:
    deep: Any = 0
    for _ in range(levels):
        deep = [deep]
    return deep


def test_deep_arguments_are_refused_and_do_not_overflow() -> None:
    """Case reliability-08: by a fixed bound, whatever stack and recursion limit the process has."""
    tools = ToolSet([Tool.from_schema({"name": "t", "parameters": {"properties": {"a": {}}}}, lambda a=0: 0)])
    before, found = sys.getrecursionlimit(), []

    def look() -> None:
        found.extend(bad(tools, "t", {"a": nested(levels)}).text for levels in (MAX_DEPTH, 900, 5000))
        found.append(str(isinstance(tools.bind(call("t", {"a": nested(MAX_DEPTH - 2)})), BoundCall)))

    look()
    try:
        sys.setrecursionlimit(10_000)
        look()
        threading.stack_size(256 * 1024)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
        sys.setrecursionlimit(before)
    assert len(found) == 12 and found[:4] == found[4:8] == found[8:]
    assert all("nested too deeply, beyond 128 levels" in text for text in found[:3]) and found[3] == "True"


def test_many_findings_are_cut() -> None:
    text = bad(ToolSet([add]), "add", {f"x{i}": 0 for i in range(50)}).text
    assert "; and 44 more" in text and len(text) < 500


def test_open_callables_take_any_name_that_the_schema_allows() -> None:
    def anything(**options: Any) -> dict[str, Any]:
        """Takes all."""
        return options

    tools = ToolSet([anything])
    assert isinstance(tools.bind(call("anything", {"max-results": 3})), BoundCall)
    closed = {"name": "t", "parameters": {"properties": {"a": {}}, "additionalProperties": False}}
    tools = ToolSet([Tool.from_schema(closed, lambda **options: options)])
    assert "'b' was unexpected" in bad(tools, "t", {"b": 1}).text


def test_async_is_seen_through_wrappers() -> None:
    @functools.wraps(fetch)
    async def wrapped(*args: Any, **kwargs: Any) -> str:
        return await fetch(*args, **kwargs)

    assert Tool.from_function(wrapped).is_async
    partial = functools.partial(fetch, retries=1)
    assert Tool.from_schema({"name": "t", "parameters": fetch_parameters()}, partial).is_async
    assert Tool.from_function(SearchIndex().__call__, name="s").is_async


def fetch_parameters() -> dict[str, Any]:
    parameters = Tool.from_function(fetch).schema["function"]["parameters"]
    assert isinstance(parameters, dict)
    return parameters
