"""The public suite `canitoolcall`, against every parser.

`pytest tests/dialogue/parsers/test_conformance.py -k scores -s` prints the columns of docs/parsers.md.
"""

import json
from collections import Counter
from functools import cache

import pytest

from fnroll.dialogue.message import ParsedTurn
from fnroll.dialogue.parsers import get_parser

WHY = "the conformance suite is a development dependency"
checks = pytest.importorskip("canitoolcall.checks", reason=WHY)
fixtures = pytest.importorskip("canitoolcall.fixtures", reason=WHY)
plugin = pytest.importorskip("canitoolcall.pytest_plugin", reason=WHY)
results = pytest.importorskip("canitoolcall.results", reason=WHY)

PARSERS = {
    "qwen3-hermes": "hermes",
    "qwen3-xml": "qwen3_coder",
    "llama": "llama",
    "gpt-oss": "gpt_oss",
    "mistral": "mistral",
    "gemma4": "gemma4",
    "glm": "glm",
    "deepseek": "deepseek",
    "kimi": "kimi",
}
FIRST = ("qwen3-hermes", "qwen3-xml")


@cache
def default_prompts() -> dict[str, str]:
    """Generation prompt by model, for the fixtures that leave it out."""
    prompts = {}
    for fixture in fixtures.load_fixtures():
        family = json.loads((fixture.source.parent / "family.json").read_text(encoding="utf-8"))
        prompts |= {m["repo"]: m.get("default_generation_prompt") or "" for m in family["reference_models"]}
    return prompts


def parse(fixture) -> ParsedTurn:
    prefix = fixture.generation_prompt
    if prefix is None:
        prefix = default_prompts().get(fixture.reference_model, "")
    parser = get_parser(PARSERS[fixture.family])
    return parser.parse(fixture.raw_output, prefix=prefix, tools=fixture.tools)


def has_right_calls(fixture, message: ParsedTurn) -> bool:
    expected = fixture.expected.tool_calls if fixture.expected else ()
    return [typed(call) for call in message.calls] == [typed(call) for call in expected]


def typed(call) -> tuple[str, object]:
    return call.name, checks.canonical_arguments(json.dumps(call.arguments))


def problem(fixture, message: ParsedTurn) -> str:
    """What the suite's full check says, or nothing."""
    calls = tuple(results.ParsedToolCall(call.name, json.dumps(call.arguments)) for call in message.calls)
    result = results.ParseResult(message.content or None, message.reasoning, calls)
    try:
        plugin.assert_conforms(fixture, result, soft=True, family=plugin.family_for(fixture))
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("fixture", fixtures.load_fixtures(families=list(FIRST)), ids=lambda f: f.id)
def test_first_families_have_all_calls_right(fixture):
    message = parse(fixture)
    assert has_right_calls(fixture, message), message


def test_scores():
    total, calls, full = Counter(), Counter(), Counter()
    for fixture in fixtures.load_fixtures():
        message = parse(fixture)
        total[fixture.family] += 1
        calls[fixture.family] += has_right_calls(fixture, message)
        full[fixture.family] += not problem(fixture, message)
    for family in PARSERS:
        print(f"| {family} | {total[family]} | {calls[family]} | {full[family]} |")
    print(f"| all | {total.total()} | {calls.total()} | {full.total()} |")
    assert total.total() == 469
    assert all(calls[family] == total[family] for family in FIRST)
    assert sum(full[family] for family in FIRST) >= 102
    assert calls.total() >= 0.95 * total.total()
