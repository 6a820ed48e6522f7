"""Names of parsers."""

from importlib.metadata import EntryPoint

import pytest

from fnroll.dialogue.message import ParsedTurn
from fnroll.dialogue.parsers import detect_parser, get_parser, parser_names, register_parser, registry
from tests.dialogue.parsers.written import BUILT_IN, parse


def test_built_in_parsers_are_known():
    assert set(BUILT_IN) <= set(parser_names())


def test_an_unknown_parser_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"'hermess'; known: .*hermes.*qwen3_coder"):
        get_parser("hermess")


class Shout:
    def parse(self, text, *, prefix, tools):
        return ParsedTurn(text.upper(), None, (), ())


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_parsers", dict(registry._parsers))


def test_a_registered_parser_is_found(clean_registry):
    register_parser("shout", Shout())
    assert parse("shout", "hi").content == "HI"
    assert "shout" in parser_names()


def test_what_cannot_parse_is_not_registered():
    with pytest.raises(TypeError, match="needs a method parse"):
        register_parser("nothing", object())


def test_entry_points_are_loaded_when_asked_for(clean_registry, monkeypatch):
    points = [
        EntryPoint("shout", f"{__name__}:never_loaded", registry.ENTRY_POINTS),
        EntryPoint("json", "json:loads", registry.ENTRY_POINTS),
        EntryPoint("same", "fnroll.dialogue.parsers.hermes:HERMES", registry.ENTRY_POINTS),
    ]

    def offered(*, group, name=None):
        return [point for point in points if group == point.group and name in (None, point.name)]

    assert registry.ENTRY_POINTS == "fnroll.parsers"
    monkeypatch.setattr(registry, "entry_points", offered)
    assert {"shout", "json", "same"} < set(parser_names())
    assert get_parser("same") is get_parser("hermes")
    with pytest.raises(TypeError, match="needs a method parse"):
        get_parser("json")


TEMPLATES = {
    "hermes": '{{- \'<tool_call>\\n{"name": "\' }}',
    "qwen3_coder": "'<tool_call>\\n<function=' + tool_call.name + '>\\n' '<parameter='",
    "llama": "<|start_header_id|>ipython<|end_header_id|>",
    "gpt_oss": "'<|start|>assistant to=functions.' + name + '<|channel|>commentary json<|message|>'",
    "mistral": "{{- '[TOOL_CALLS]' }}",
    "gemma4": "'<|tool_call>call:' + function['name'] + '{'",
    "glm": "<tool_call>{{ tc.name }}<arg_key>{{ k }}</arg_key>",
    "deepseek": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>",
    None: "{% for message in messages %}{{ message.content }}{% endfor %}",
}


@pytest.mark.parametrize(("name", "template"), TEMPLATES.items())
def test_detection_by_template(name, template):
    assert detect_parser(template) == name
