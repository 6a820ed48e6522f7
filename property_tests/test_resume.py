"""Cuts change no record: a rollout in parts, from file to file, is the rollout that nobody cut."""

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

import fnroll
from fnroll.core import steps
from fnroll.core.tree import replace
from fnroll.models import toy_model
from fnroll.records.batch import RolloutBatch, RolloutRequest
from fnroll.records.turns import find_turns
from fnroll.rollout.driver import driver
from fnroll.rollout.flight import launch as flights
from property_tests.test_turns import MAX_TURNS, PER_TURN, cases, model, schedules, tokenizer, tools


def sampling_of(case, **more):
    return fnroll.SamplingConfig(
        temperature=case["temperature"],
        top_p=case["top_p"],
        max_new_tokens_per_turn=PER_TURN,
        max_tool_output_chars=case["chars"],
        **more,
    )


def rollout_of(case, schedule, used=None, **more):
    options = dict(schedule)
    latencies = options.pop("latencies")
    config = fnroll.RolloutConfig(
        max_length=case["max_length"], max_turns=MAX_TURNS, progress=False, **options, **more
    )
    return fnroll.Rollout(model(), tokenizer(), config, tools(latencies) if used is None else used)


def request_of(case):
    records = [fnroll.RolloutRecord(messages=[{"role": "user", "content": text}]) for text in case["prompts"]]
    return RolloutRequest(records, case["n"])


def through_a_file(batch, folder):
    batch.save(Path(folder) / "cut.jsonl")
    return RolloutBatch.load(Path(folder) / "cut.jsonl")


def run_in_parts(case, parts, folder, sampling, most=1000, **more):
    """Roll out for the steps of each part, by its schedule; the last part repeats. Return all batches."""
    request, batches = request_of(case), []
    for number in range(most):
        schedule, steps = parts[min(number, len(parts) - 1)]
        with rollout_of(case, schedule, **more) as rollout:
            batch = rollout.generate(request, sampling, seed=case["seed"], max_steps=steps)
        batches.append(batch)
        if not any(record.is_unfinished for record in batch):
            return batches
        request = RolloutRequest(through_a_file(batch, folder).records, resume=True)
    raise AssertionError("a rollout in parts did not end")


def parts():
    return st.lists(st.tuples(schedules(), st.integers(1, 9)), min_size=1, max_size=4)


def stands_where_it_says(record):
    """What holds of every record that was cut."""
    assert record.reason is None and record.run is not None
    turns, last = find_turns(record.loss_mask), record.loss_mask[-1]
    assert len(record.log_probs) == len(record.weight_versions) == len(record.tokens)
    is_waiting = record.status == "WAITING"
    assert record.num_turns == len(turns) - (last and not is_waiting)
    assert {call["turn"] for call in record.tool_calls} <= set(range(record.num_turns - is_waiting))
    assert record.status != "RUNNING" or last
    event(f"cut {record.status}")


def cuts_change_nothing(case, schedule, drawn, support_size=0):
    sampling = sampling_of(case, support_size=support_size)
    with rollout_of(case, schedule) as rollout:
        whole = rollout.generate(request_of(case), sampling, seed=case["seed"])
    with tempfile.TemporaryDirectory() as folder:
        batches = run_in_parts(case, drawn, folder, sampling)
    for batch in batches:
        assert len(batch) == len(whole)
        for record in batch:
            if record.is_unfinished:
                stands_where_it_says(record)
    assert batches[-1] == whole


@settings(max_examples=40)
@given(cases(), schedules(), parts(), st.sampled_from([0, 0, 300]))
def test_a_rollout_in_parts_is_the_whole_one(case, schedule, drawn, support_size):
    """Many turns, tools, any schedule for each part, through JSON Lines in between: bitwise equal."""
    cuts_change_nothing(case, schedule, drawn, support_size)


@functools.cache
def toy():
    return toy_model(31, sharpness=0.1, stop_ids=(0, 7))


def single_turn(case, schedule, steps=None, request=None):
    options = {name: schedule[name] for name in ("rows", "batching", "poll_every")}
    config = fnroll.RolloutConfig(max_length=24, progress=False, **options)
    fresh = [fnroll.RolloutRecord(prompt_ids=[ord(char) % 31 for char in text]) for text in case["prompts"]]
    with fnroll.Rollout(toy(), None, config) as rollout:
        return rollout.generate(
            request or RolloutRequest(fresh, case["n"]), sampling_of(case), seed=case["seed"], max_steps=steps
        )


@settings(max_examples=30)
@given(cases(), schedules(), schedules(), st.integers(1, 5))
def test_a_single_turn_rollout_in_parts_is_the_whole_one(case, one, other, steps):
    whole, batch = single_turn(case, one), single_turn(case, other, steps)
    while any(record.is_unfinished for record in batch):
        batch = single_turn(case, other, steps, RolloutRequest(batch.records, resume=True))
    assert batch == whole


@settings(max_examples=40)
@given(cases(), schedules(), schedules(), st.data())
def test_a_rewound_record_goes_on_as_it_went(case, one, other, data):
    """Rewind to any place and go on: the same record, as if it had never gone further."""
    with rollout_of(case, one) as rollout:
        whole = rollout.generate(request_of(case), sampling_of(case), seed=case["seed"])
    rewound = []
    for record in whole:
        places = [record.prompt_length, *(i + 1 for i, mask in enumerate(record.loss_mask) if mask)]
        places += [start for start, _ in find_turns(record.loss_mask)]
        rewound.append(record.rewind(data.draw(st.sampled_from(places))))
        stands_where_it_says(rewound[-1].replace(run={}))
    with rollout_of(case, other) as rollout:
        request = RolloutRequest(rewound, resume=True)
        assert rollout.generate(request, sampling_of(case), seed=case["seed"]) == whole


@settings(max_examples=30)
@given(cases(), schedules(), schedules(), st.integers(1, 12))
def test_a_fork_is_the_other_sample_from_there_on(case, one, other, steps):
    """A fork keeps the tape, draws the other sample's noise behind it, and leaves its source as it was."""
    case = {**case, "n": 1}
    with rollout_of(case, one) as rollout:
        cut = rollout.generate(request_of(case), sampling_of(case), seed=case["seed"], max_steps=steps)
    open_ = [record for record in cut if record.is_unfinished]
    forks = [record.fork(sample) for record in open_ for sample in (3, 9)]
    ends = []
    for schedule, records in ((other, [*open_, *forks]), (one, [*forks[::-1], *open_])):
        with rollout_of(case, schedule) as rollout:
            batch = rollout.generate(
                RolloutRequest(records, resume=True), sampling_of(case), seed=case["seed"]
            )
        ends.append({(record.prompt_id, record.sample): record for record in batch})
    assert ends[0] == ends[1]
    for source in open_:
        for sample in (0, 3, 9):
            record = ends[0][source.prompt_id, sample]
            assert record.tokens[: len(source.tokens)] == source.tokens
            assert record.log_probs[: len(source.tokens)] == source.log_probs


@settings(max_examples=30)
@given(cases(), schedules(), schedules(), st.integers(0, 4))
def test_an_abort_touches_no_other_record_and_can_be_taken_back(case, one, other, after):
    """What was aborted is what the record would have been up to there, and goes on from there."""
    with rollout_of(case, one) as rollout:
        whole = rollout.generate(request_of(case), sampling_of(case), seed=case["seed"])
    ended = []

    def stop(_, record):
        ended.append(record)
        if len(ended) > after:
            rollout.abort(lambda other: other.prompt_id != record.prompt_id)

    with rollout_of(case, other) as rollout:
        batch = rollout.generate(request_of(case), sampling_of(case), seed=case["seed"], on_record=stop)
    assert len(ended) == len(batch) == len(whole)
    revived = []
    for left, right in zip(whole, batch, strict=True):
        is_aborted = right.reason == "aborted"
        event(f"aborted {is_aborted}")
        assert is_aborted or right == left
        assert right.tokens == left.tokens[: len(right.tokens)]
        revived.append(right.rewind(len(right.tokens)) if is_aborted else right)
    with rollout_of(case, one) as rollout:
        again = rollout.generate(RolloutRequest(revived, resume=True), sampling_of(case), seed=case["seed"])
    assert again == whole


def noise_from_position_0_again(monkeypatch):
    """The second part of a record draws what its first one drew."""
    begun, resume, draw = {}, flights.resume_flight, steps.draw

    def remember(*args):
        flight = resume(*args)
        begun[tuple(flight.key)] = flight.length - len(flight.prompt_ids)
        return flight

    def restart(scores, params, key, position):
        back = torch.tensor([begun.get(tuple(words), 0) for words in key.tolist()])
        return draw(scores, params, key, position - back)

    monkeypatch.setattr(flights, "resume_flight", remember)
    monkeypatch.setattr(steps, "draw", restart)


def resumed_with(change):
    """The mistake of changing every flight that goes on with a record."""

    def plant(monkeypatch, resume=flights.resume_flight):
        def changed(*args):
            flight = resume(*args)
            return flight.replace(**change(flight))

        monkeypatch.setattr(flights, "resume_flight", changed)

    return plant


def lose_turns(flight):
    return {"num_turns": 0}


def count_cut_outputs_anew(flight):
    return {"num_cut": 0}


def pass_over_the_ended_turn(flight):
    return {"is_waiting": False, "num_turns": flight.num_turns + flight.is_waiting}


def count_the_limit_from_the_cut(flight):
    return {"limit": min(flight.length + PER_TURN, flight.limit + PER_TURN)}


def first_log_probs_dropped(monkeypatch, begin=driver.begin):
    def drop(*args):
        begun = begin(*args)
        return replace(begun, entries={**begun.entries, "log_probs": begun.entries["log_probs"] * 0.0})

    monkeypatch.setattr(driver, "begin", drop)


MUTANTS = {
    "noise is drawn from position 0 again": noise_from_position_0_again,
    "the first log-probs are dropped": first_log_probs_dropped,
    "the count of turns is lost": resumed_with(lose_turns),
    "cut outputs are counted anew": resumed_with(count_cut_outputs_anew),
    "the limit is counted from the cut": resumed_with(count_the_limit_from_the_cut),
    "a turn that had ended is not read again": resumed_with(pass_over_the_ended_turn),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(name, monkeypatch):
    MUTANTS[name](monkeypatch)

    @settings(max_examples=40, phases=[Phase.generate], report_multiple_bugs=False)
    @given(cases(), schedules(), parts())
    def check(case, schedule, drawn):
        cuts_change_nothing(case, schedule, drawn)

    with pytest.raises((AssertionError, ValueError, RuntimeError)):
        check()
