"""Schedule invariance with tools: latencies, orders of finishing, polls and replay change no record."""

import asyncio
import functools
import json
import time
from collections import deque
from itertools import groupby

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import fnroll
from fnroll.core import steps
from fnroll.core import types as t
from fnroll.dialogue.join import Chat
from fnroll.models import toy_logits
from fnroll.models.chatter import CHATTER_CALLS, chatter_model, chatter_tokenizer
from fnroll.rollout.cache import plan
from fnroll.rollout.cache.prefixes import Prefixes
from fnroll.rollout.cache.slots import Slots
from fnroll.rollout.driver import driver
from fnroll.rollout.driver.driver import Driver
from fnroll.rollout.flight.conversation import Conversations
from fnroll.testing.oracle import OracleSampling, roll_out_turns
from fnroll.tools.runner import ToolRunner

MAX_TURNS, PER_TURN = 3, 4


@pytest.fixture(autouse=True)
def _share_all(monkeypatch):
    """The prompts here are short and the rows few: share whatever is common, wait for half of the rows."""
    monkeypatch.setattr(plan, "LEAST_SHARED", 1)
    monkeypatch.setattr(driver, "ROWS_TO_JOIN", 2)


@functools.cache
def tokenizer():
    return chatter_tokenizer()


@functools.cache
def model():
    return chatter_model(calls=7.5, stops=8.0)


def forward(ids):
    base = torch.tensor(toy_logits(ids, model().vocab_size, 0.02), dtype=torch.float64)
    return base + model().params[1]


def expected_output(call):
    """What the model must read for each of the chatter's calls."""
    good = {CHATTER_CALLS[0]: "3", CHATTER_CALLS[1]: "42", CHATTER_CALLS[2]: "ababab"}
    return good.get(call)


def tools(latencies):
    """Three tools; call number i takes the i-th latency, round and round."""
    count = iter(range(10**9))

    def delay():
        return latencies[next(count) % len(latencies)]

    async def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first.
            b: the second.
        """
        await asyncio.sleep(delay())
        return a + b

    def repeat(text: str, times: int) -> str:
        """Repeat a text.

        Args:
            text: what to repeat.
            times: how often.
        """
        time.sleep(delay())
        return text * times

    def fail() -> str:
        """Fail."""
        time.sleep(delay())
        raise StopIteration

    return [add, repeat, fail]


@st.composite
def cases(draw):
    """What to roll out."""
    return {
        "prompts": draw(st.lists(st.text("ab?", min_size=1, max_size=4), min_size=1, max_size=4)),
        "n": draw(st.integers(1, 2)),
        "seed": draw(st.integers(0, 2**32)),
        "temperature": draw(st.sampled_from([0.7, 1.0, 1.0])),
        "top_p": draw(st.sampled_from([0.95, 1.0])),
        "max_length": draw(st.sampled_from([200, 480])),
        "chars": draw(st.sampled_from([None, 30])),
    }


@st.composite
def schedules(draw):
    """How to run it."""
    return {
        "rows": draw(st.sampled_from([1, 2, 3, 8])),
        "batching": draw(st.sampled_from(["continuous", "static"])),
        "poll_every": draw(st.sampled_from([1, 3])),
        "pool": draw(st.sampled_from([None, 0, 1, 2, 8])),
        "share_prefixes": draw(st.sampled_from([True, True, False])),
        "returning": draw(st.sampled_from(["front", "back"])),
        "wait_for_tools": draw(st.booleans()),
        "max_concurrent_tools": draw(st.sampled_from([1, 2, 16])),
        "latencies": draw(st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.004]), min_size=1, max_size=5)),
    }


def roll(case, schedule, **more):
    """The batch, and the profile of how it came about."""
    options = dict(schedule)
    used = tools(options.pop("latencies"))
    config = fnroll.RolloutConfig(
        max_length=case["max_length"], max_turns=MAX_TURNS, progress=False, **options, **more
    )
    records = [fnroll.RolloutRecord(messages=[{"role": "user", "content": text}]) for text in case["prompts"]]
    sampling = fnroll.SamplingConfig(
        temperature=case["temperature"],
        top_p=case["top_p"],
        max_new_tokens_per_turn=PER_TURN,
        max_tool_output_chars=case["chars"],
    )
    with fnroll.Rollout(model(), tokenizer(), config, used) as rollout:
        batch = rollout.generate(fnroll.RolloutRequest(records, case["n"]), sampling, seed=case["seed"])
        return batch, rollout.profile


def run(case, schedule, **more):
    return roll(case, schedule, **more)[0]


def respond(record):
    """Say what must follow each turn of a record: spelled out here, taken from no template.

    The texts of failing calls are the record's own; that they are the right ones is for the tests of tools.
    """
    answers = iter(record.tool_calls)

    def answer(turn_ids, turn):
        text = tokenizer().decode(turn_ids)
        calls = [tokenizer().decode([i]) for i in turn_ids if tokenizer().decode([i]) in CHATTER_CALLS]
        if not calls:
            return None
        if turn + 1 == MAX_TURNS:
            return []
        outputs = []
        for call in calls:
            logged = next(answers, None)
            outputs.append(expected_output(call) or (logged["result"] if logged else "?" * 500))
        end = "\n" if text.endswith("<|im_end|>") else "<|im_end|>\n"
        body = "\n".join(outputs)
        suffix = f"{end}<|im_start|>tool\n{body}<|im_end|>\n<|im_start|>assistant\n"
        return tokenizer().encode(suffix)

    return answer


def equals_the_oracle(case, schedule, **more):
    """Every record is the oracle's: ids, mask, reason, turns; log-probs to the last place of float32."""
    for record in run(case, schedule, **more):
        oracle = roll_out_turns(
            forward,
            record.tokens[: record.prompt_length],
            respond(record),
            max_length=case["max_length"],
            max_turns=MAX_TURNS,
            per_turn=PER_TURN,
            stop_ids=model().stop_ids,
            sampling=OracleSampling(case["temperature"], 0, case["top_p"]),
            seed=case["seed"],
            prompt_id=record.prompt_id,
            sample=record.sample,
        )
        assert list(record.tokens) == oracle.tokens
        assert list(record.loss_mask) == oracle.loss_mask
        assert record.reason == oracle.reason and record.num_turns == oracle.num_turns
        assert max(abs(a - b) for a, b in zip(record.log_probs, oracle.log_probs, strict=True)) < 1e-6
        # A cut made between a call and its marker has no text of its own in this template.
        assert record.response == tokenizer().decode(record.response_ids)


@settings(max_examples=60)
@given(cases(), schedules())
def test_records_of_many_turns_equal_the_oracle(case, schedule):
    equals_the_oracle(case, schedule)


@settings(max_examples=60)
@given(cases(), schedules(), schedules())
def test_records_of_many_turns_are_bitwise_equal_for_all_schedules(case, one, other):
    assert run(case, one) == run(case, other)


def waiting_hides_latency(case, one, other):
    """If tools are waited for, their latencies change neither a record nor what shares a forward."""
    counts = []
    for how in (one, other):
        times = {name: how[name] for name in ("latencies", "max_concurrent_tools")}
        batch, profile = roll(case, {**one, **times, "wait_for_tools": True})
        counts.append((batch, profile.steps, profile.forwards, profile.fed_tokens, profile.padded_tokens))
    assert counts[0] == counts[1]


@settings(max_examples=30)
@given(cases(), schedules(), schedules())
def test_latencies_of_tools_that_are_waited_for_change_no_forward(case, one, other):
    waiting_hides_latency(case, one, other)


@settings(max_examples=40)
@given(cases(), schedules(), schedules())
def test_a_replay_of_the_log_gives_the_records_and_calls_no_tool(tmp_path_factory, case, one, other):
    log = str(tmp_path_factory.mktemp("log") / "effects.jsonl")
    live = run(case, one, log=log)
    calls = sum(len(record.tool_calls) for record in live)
    with open(log) as file:
        events = [json.loads(line) for line in file][1:]
    # Every call is an event when it is made, and one when it is answered.
    assert len([event for event in events if event.get("event") == "call"]) == calls
    assert len([event for event in events if "text" in event]) == calls

    def forbid(*_, **__):
        raise AssertionError("a tool was called in a replay")

    patch = pytest.MonkeyPatch()
    patch.setattr(ToolRunner, "submit", forbid)
    try:
        assert run(case, other, replay=log) == live
    finally:
        patch.undo()


def a_full_pool_gives_a_slot_to_two(slots, line, length, park=Slots.park):
    if not slots._free and slots._held:
        shortest = min(slots._held, key=lambda held: slots._held[held][1])
        slots._held[line] = (slots._held[shortest][0], length)
        return slots._held[line][0]
    return park(slots, line, length)


def one_token_too_many(prefixes, ids, among=None, find=Prefixes.find):
    place, common = find(prefixes, ids, among)
    return place, min(common + 1, len(ids))


def parked_after_the_row_was_used_again(driver, waiting, park=Driver._park):
    late = getattr(driver, "late", [])
    driver.late = waiting
    park(driver, [placed for placed in late if placed.line in driver._lines])


def results_in_completion_order(runner, key, calls, metadata=None, *, submit=ToolRunner.submit):
    submit(runner, key, list(reversed(calls)), metadata)


def separator_dropped(chat, *args, join=Chat.continue_turn, **options):
    segment = join(chat, *args, **options)
    return segment.__class__(segment.ids[1:], *[getattr(segment, n) for n in segment.__slots__[1:]])


def mask_1_on_tool_output(records, line, count, entries, append=steps.append):
    given = {"loss_mask": torch.ones_like(entries["tokens"], dtype=torch.bool), **entries}
    return append(records, line, count, given)


def tools_run_on_a_cut_turn(driver, line, tape, status, row=None, *, end=Driver._end_turn):
    return end(driver, line, tape, t.WAITING if driver.turns is not None else status, row)


def answers_of_waiting_turns_swapped(conversations, step, take=Conversations.take_returned):
    conversations._collect()
    answered = conversations._answered
    if conversations.budget.config.wait_for_tools and not conversations.must_wait:
        # Of turns of as many calls, the first and the last get each other's answers.
        turns = sorted(answered, key=lambda item: len(item[1]))
        results = [item[1] for _, same in groupby(turns, lambda item: len(item[1])) for item in [*same][::-1]]
        conversations._answered = deque(zip([key for key, _ in turns], results, strict=True))
    return take(conversations, step)


MUTANTS = {
    "results in completion order": (ToolRunner, "submit", results_in_completion_order),
    "separator dropped": (Chat, "continue_turn", separator_dropped),
    "mask 1 on tool output": (steps, "append", mask_1_on_tool_output),
    "tools run on a cut turn": (Driver, "_end_turn", tools_run_on_a_cut_turn),
    "a stale slot": (Slots, "park", a_full_pool_gives_a_slot_to_two),
    "one token too many is shared": (Prefixes, "find", one_token_too_many),
    "parked after the row was used again": (Driver, "_park", parked_after_the_row_was_used_again),
    "answers of waiting turns swapped": (Conversations, "take_returned", answers_of_waiting_turns_swapped),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(name, monkeypatch):
    monkeypatch.setattr(*MUTANTS[name])

    @settings(max_examples=40, phases=[Phase.generate], report_multiple_bugs=False)
    @given(cases(), schedules())
    def check(case, schedule):
        equals_the_oracle(case, schedule)

    with pytest.raises((AssertionError, ValueError, IndexError, RuntimeError)):
        check()


TALK = {
    "prompts": ["a", "b", "ab", "?"], "n": 2, "seed": 5, "temperature": 1.0, "top_p": 1.0,
    "max_length": 480, "chars": None,
}  # fmt: skip
QUICK = {
    "rows": 2, "batching": "continuous", "poll_every": 1, "max_concurrent_tools": 4, "latencies": [0.0],
}  # fmt: skip


def test_decoding_on_while_tools_run_is_caught(monkeypatch):
    """The mistake shows by time alone, so latencies are far apart and nothing is drawn."""
    slow = {**QUICK, "latencies": [0.1]}
    waiting_hides_latency(TALK, QUICK, slow)
    monkeypatch.setattr(Conversations, "must_wait", False)
    with pytest.raises(AssertionError):
        waiting_hides_latency(TALK, QUICK, slow)


def test_a_returning_turn_at_the_back_changes_the_order_of_work_only():
    front = run(TALK, QUICK)
    assert run(TALK, QUICK, returning="back") == front


def test_one_log_holds_the_runs_of_many_seeds(tmp_path):
    """Two runs appended to one file replay each as itself."""
    case = {"prompts": ["a", "b"], "n": 2, "temperature": 1.0, "top_p": 1.0, "max_length": 480, "chars": None}
    log = str(tmp_path / "effects.jsonl")
    live = [run({**case, "seed": seed}, QUICK, log=log) for seed in (1, 2)]
    assert live[0] != live[1] and all(any(r.tool_calls for r in batch) for batch in live)
    assert [run({**case, "seed": seed}, QUICK, replay=log) for seed in (1, 2)] == live
