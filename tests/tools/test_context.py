"""A tool learns which record calls it, and no model sees that it does."""

import functools
from types import MappingProxyType
from typing import Any

import pytest

import fnroll
from fnroll import ToolContext
from fnroll.dialogue.tool import Tool, ToolSet
from fnroll.models import load_model
from fnroll.models.tiny.tools import calc
from fnroll.tools.log import EffectLog, turn_events
from fnroll.tools.replay import ReplayRunner
from fnroll.tools.result import TurnKey
from fnroll.tools.runner import ToolRunner
from tests.tools.runs import LONG_S, answer, call, finish

KEY = TurnKey("p", 1, 2, seed=3, step=4)


def whoami(word: str, context: ToolContext) -> str:
    """Says who calls.

    Args:
        word: to repeat
    """
    return f"{word}: {context}"


async def later(context: ToolContext | None = None, *, word: str = "") -> str:
    """Says who calls.

    Args:
        word: to repeat
    """
    return f"{word}: {context}"


class Whoami:
    def __call__(self, where: "ToolContext", **more: int) -> str:
        """Says who calls."""
        return f"{sorted(more)}: {where}"


def run(tool: Any, *calls: Any, key: Any = KEY, metadata: Any = None) -> list[str]:
    with ToolRunner(ToolSet([tool]), tool_timeout_s=LONG_S) as runner:
        runner.submit(key, calls, metadata)
        return [result.text for result in finish(runner, key)[key]]


def test_a_tool_is_told_which_call_it_answers() -> None:
    calls = [call("whoami", word="a"), call("whoami", word="b")]
    assert run(whoami, *calls) == [
        "a: ToolContext(prompt_id='p', sample=1, turn=2, call=0, seed=3, step=4)",
        "b: ToolContext(prompt_id='p', sample=1, turn=2, call=1, seed=3, step=4)",
    ]
    assert run(later, call("later"), key=(7, 0, 1)) == [
        ": ToolContext(prompt_id=7, sample=0, turn=1, call=0, seed=0, step=0)"
    ]
    assert run(functools.partial(whoami, word="x"), call("whoami"))[0].startswith("x: ToolContext(")
    assert run(Whoami(), call("whoami", a=1))[0].startswith("['a']: ToolContext(")
    named = Tool.from_schema({"name": "t"}, Whoami())
    assert run(named, call("t"))[0].startswith("[]: ToolContext(")


def test_the_context_is_not_shown_and_cannot_be_written() -> None:
    for tool in map(ToolSet, ([whoami], [later], [Whoami()])):
        (schema,) = tool.schemas
        assert "context" not in str(schema).lower() and "where" not in str(schema)
    (text,) = run(whoami, call("whoami", word="a", context={"prompt_id": 9}))
    assert 'unexpected argument "context" (it takes: word)' in text
    (text,) = run(Whoami(), call("whoami", where={}))
    assert 'unexpected argument "where"' in text


def test_metadata_is_a_copy_for_each_call() -> None:
    def take(context: ToolContext) -> int:
        """Takes one."""
        return context.metadata["left"].pop()

    metadata = {"left": [1, 2]}
    assert run(take, call("take"), call("take"), metadata=metadata) == ["2", "2"]
    assert metadata == {"left": [1, 2]}
    (text,) = run(take, call("take"), metadata=MappingProxyType({}))
    assert text.startswith("Error: tool 'take' raised TypeError: cannot pickle 'mappingproxy' object")


def test_a_key_that_names_no_record_is_refused_before_anything_runs() -> None:
    with ToolRunner(ToolSet([whoami])) as runner, pytest.raises(ValueError) as caught:
        runner.submit("turn", [call("whoami", word="a")])
    assert str(caught.value) == (
        "ToolRunner.submit: key is 'turn'; it must be a TurnKey or as long, "
        "as tool 'whoami' asks for a ToolContext"
    )
    assert answer(ToolSet([whoami]), call("whoami"))[0].status == "bad_arguments"


def test_what_a_context_cannot_be_is_refused_by_name() -> None:
    def twice(one: ToolContext, other: ToolContext) -> None:
        """Does."""

    def many(contexts: list[ToolContext]) -> None:
        """Does.

        Args:
            contexts: of all
        """

    def rest(**contexts: ToolContext) -> None:
        """Does."""

    with pytest.raises(ValueError, match="'one' and 'other' are both ToolContext; one is enough"):
        Tool.from_function(twice)
    for function in (many, rest):
        with pytest.raises(ValueError, match="a ToolContext can only be a parameter of its own"):
            Tool.from_function(function)
    offered = {"name": "t", "parameters": {"properties": {"word": {}, "context": {}}, "required": ["word"]}}
    with pytest.raises(ValueError, match="the schema offers 'context', which is the ToolContext"):
        Tool.from_schema(offered, whoami)


def test_a_replay_needs_no_context(tmp_path: Any) -> None:
    calls = [call("whoami", word="a")]
    with ToolRunner(ToolSet([whoami])) as runner, EffectLog.open(tmp_path / "log") as log:
        runner.submit(KEY, calls, {"a": 1})
        results = finish(runner, KEY)[KEY]
        log.write(*turn_events(KEY, calls, results))
    with ReplayRunner(tmp_path / "log") as replay:
        replay.submit(KEY, calls)
        assert replay.ready() == [(KEY, results)]


def test_a_rollout_tells_its_tools_which_record_calls() -> None:
    told: list[ToolContext] = []

    def price(item: str, shop: int, context: ToolContext) -> int:
        """Looks up what one piece costs.

        Args:
            item: what is sold, in the singular
            shop: the number of the shop
        """
        told.append(context)
        return len(item) + shop

    model, tokenizer = load_model("tiny-solved")
    config = fnroll.RolloutConfig(max_length=256, rows=4, max_turns=3)
    question = {"role": "user", "content": "Shop 18: what do 2 eggs cost?"}
    record = fnroll.RolloutRecord(messages=[question], metadata={"shop": 18})
    with fnroll.Rollout(model, tokenizer, config, tools=[price, calc]) as rollout:
        batch = rollout.generate(fnroll.RolloutRequest([record], n=2), seed=3, step=5)
    made = [
        (record.prompt_id, record.sample, call["turn"])
        for record in batch
        for call in record.tool_calls
        if call["name"] == "price"
    ]
    assert sorted((one.prompt_id, one.sample, one.turn) for one in told) == sorted(made) and made
    assert {(one.seed, one.step) for one in told} == {(3, 5)}
    assert all(one.metadata == {"shop": 18} and one.metadata is not record.metadata for one in told)
