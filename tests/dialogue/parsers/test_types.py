"""Values without types, as the schema of the tool admits them."""

import pytest

from fnroll.dialogue.parsers.schema import convert, parameter_schemas
from tests.dialogue.parsers.written import coder, parse, tool

TYPED = tool(
    "t",
    flag={"type": "boolean"},
    day={"type": "integer"},
    memo={"type": "string"},
    note={"type": ["string", "null"]},
    rows={"type": "array", "items": {"type": "object"}},
    table={"type": "object"},
    x={"type": "number"},
    either={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    color={"enum": ["red", "7"]},
    level={"enum": [1, 2]},
    point={"$ref": "#/$defs/Point"},
    loop={"$ref": "#/$defs/Loop"},
    maybe={"type": "integer", "nullable": True},
    mixed={"type": ["string", "integer"]},
)
TYPED["function"]["parameters"]["$defs"] = {
    "Point": {"type": "object"},
    "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
}
CONVERSIONS = [
    ("flag", "yes", "yes"),
    ("flag", "True", True),
    ("flag", "false", False),
    ("flag", "1", "1"),
    ("day", "2031-02-03", "2031-02-03"),
    ("day", "3.0", 3),
    ("day", "3.5", "3.5"),
    ("day", "-12", -12),
    ("day", "1_000", "1_000"),
    ("day", "9" * 5000, "9" * 5000),
    ("memo", "null", "null"),
    ("memo", "00123", "00123"),
    ("memo", "{'a':1}", "{'a':1}"),
    ("memo", '{"a":1}', '{"a":1}'),
    ("memo", " true ", " true "),
    ("note", "null", None),
    ("note", "None", "None"),
    ("note", "{'a':1}", "{'a':1}"),
    ("rows", '[{"on": true, "n": null}]', [{"on": True, "n": None}]),
    ("rows", "[{'on': True}]", "[{'on': True}]"),
    ("rows", "[__import__('os').getpid()]", "[__import__('os').getpid()]"),
    ("rows", "[1 + 1]", "[1 + 1]"),
    ("rows", '{"a": 1}', '{"a": 1}'),
    ("table", '{"a": [1]}', {"a": [1]}),
    ("table", '{"a": NaN}', '{"a": NaN}'),
    ("free", "null", "null"),
    ("free", "17", "17"),
    ("x", "1e20", 1e20),
    ("x", "5", 5),
    ("x", "1e999", "1e999"),
    ("x", "nan", "nan"),
    ("x", ".5", ".5"),
    ("either", "null", None),
    ("either", "None", None),
    ("either", "4", 4),
    ("color", "7", "7"),
    ("level", "2", 2),
    ("point", '{"x": 1}', {"x": 1}),
    ("loop", "8", 8),
    ("maybe", "null", None),
    ("mixed", "42", 42),
    ("mixed", "042", "042"),
    ("mixed", "4.0", "4.0"),
]


@pytest.mark.parametrize(("key", "text", "expected"), CONVERSIONS)
def test_xml_values_are_typed_by_the_schema_and_nothing_else(key, text, expected):
    """Case parser-04."""
    (call,) = parse("qwen3_coder", coder("t", **{key: text}), tools=[TYPED]).calls
    assert call.arguments == {key: expected}
    assert type(call.arguments[key]) is type(expected)


def test_conversion_needs_no_schema():
    assert convert("17", {}, "x") == "17"
    assert parameter_schemas([{"name": "f", "input_schema": {"type": "object"}}]) == {"f": {"type": "object"}}
