"""Lowered steps give the records of eager ones, on models with layers and over many turns."""

import dataclasses
import functools

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from fnroll import Rollout, RolloutConfig, SamplingConfig
from fnroll.compile import shapes as buckets
from fnroll.compile import steps as lowered
from fnroll.compile.graph import Captured
from fnroll.compile.shapes import Buckets
from fnroll.compile.steps import LoweredSteps
from fnroll.models import toy_model
from fnroll.rollout.cache import plan
from fnroll.testing.rolling import run_work
from fnroll.testing.strategies import prompts, schedules, works
from property_tests import test_turns
from property_tests.test_schedules import tiny
from property_tests.test_turns import run
from tests.compile.test_backends import emulate
from tests.compile.test_compiled import assert_same_records, lower_with
from tests.compile.test_warmup import samplings

LENGTH, ROWS, COPIED = 24, 3, 8
COUNTER = CompileCounterWithBackend("aot_eager")
GRAPHS: dict = {}


@pytest.fixture(autouse=True)
def _lowered(monkeypatch):
    """Share compiled steps between rollouts, and let short records have many shapes and shared prefixes."""
    make = LoweredSteps.__init__

    def share(steps, model, **options):
        make(steps, model, **options)
        if steps.backend == "compiled":
            key = (model.name, model.fn, steps.max_length, steps.buckets.num_rows)
            steps._lowered = GRAPHS.setdefault(key, {})

    lower_with(monkeypatch, COUNTER)
    monkeypatch.setattr(LoweredSteps, "__init__", share)
    monkeypatch.setattr(plan, "LEAST_SHARED", 1)
    monkeypatch.setattr(lowered, "_EAGER_WINDOW", COPIED)
    for name, least in (("WINDOW", 12), ("WIDTH", 8)):
        monkeypatch.setattr(buckets, f"_SMALLEST_{name}", least)


@functools.cache
def warm(name):
    """Compile every step of a model."""
    config = RolloutConfig(max_length=LENGTH, rows=ROWS, backend="compiled", progress=False)
    model = dataclasses.replace(model_of(name), stop_ids=(2, 3))
    before = COUNTER.frame_count
    with Rollout(model, None, config) as rollout:
        done = rollout.warm_up(SamplingConfig(top_k=8, top_p=0.9, repetition_penalty=1.2))
        assert done.graphs == COUNTER.frame_count - before == len(rollout._steps.shapes())


@st.composite
def scheduled(draw):
    """Draw work that needs no other way of sampling than what is warm, and a schedule of it."""
    work = dataclasses.replace(
        draw(works(48, LENGTH)),
        prompts=draw(prompts(48, longest=LENGTH - 2)),
        sampling=draw(samplings(LENGTH)),
        stop_ids=(2, draw(st.integers(3, 47))),
    )
    return work, dataclasses.replace(draw(schedules(len(work.prompts))), rows=ROWS)


@functools.cache
def model_of(name):
    return toy_model(48) if name == "toy" else tiny(name, torch.float32)[0]


def compiled_equal_eager(name, work, schedule):
    """Tokens equal, log-probs to 1e-5, nothing compiled after warm-up."""
    warm(name)
    model, graphs = model_of(name), COUNTER.frame_count
    eager = run_work(model, work, dataclasses.replace(schedule, share_prefixes=False))
    with torch.compiler.set_stance("fail_on_recompile"):
        found = run_work(model, work, schedule, "compiled")
    assert COUNTER.frame_count == graphs
    assert_same_records([found[identity] for identity in eager], eager.values(), 1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@settings(max_examples=15)
@given(scheduled())
def test_compiled_records_equal_eager_ones_for_all_schedules(name, case):
    compiled_equal_eager(name, *case)


@st.composite
def turns(draw):
    """Draw work with tools, and a schedule of it."""
    case = {**draw(test_turns.cases()), "max_length": 160, "top_p": 0.95}
    schedule = {**draw(test_turns.schedules()), "rows": ROWS, "pool": draw(st.sampled_from([None, 0, 1]))}
    return case, schedule


def lowered_turns_equal_eager_ones(backend, case, schedule):
    """Whatever pool and shared prefixes save; the eager rollout has neither."""
    eager = run(case, {**schedule, "pool": 0, "share_prefixes": False})
    with pytest.MonkeyPatch.context() as patch:
        if backend == "captured":
            emulate(patch)
        found = run(case, schedule, backend=backend)
    assert_same_records(found, eager, 1e-6)


@pytest.mark.parametrize("backend", ["compiled", "captured"])
@settings(max_examples=25)
@given(turns())
def test_lowered_turns_equal_eager_ones_for_all_schedules(backend, case):
    lowered_turns_equal_eager_ones(backend, *case)


def one_too_small(sizes, count, length, decode=Buckets.decode):
    return decode(sizes, count, max(length - 1, 1))


def rows_of_another_number(steps, rows, height, width):
    return torch.tensor(rows), torch.full((len(rows),), width)


def inputs_of_the_first_replay(step, *args, call=Captured.__call__):
    if step._graph is not None:
        args = (*args[:2], *step.first)
    step.first = args[2:]
    return call(step, *args)


def parked_one_window_short(steps, state, rows, slots, records, *, length, park=LoweredSteps.park):
    return park(steps, state, rows, slots, records, length=max(length - COPIED, 1))


STALE_SLOT, LATE, TOO_MANY = (
    test_turns.MUTANTS[name]
    for name in ("a stale slot", "parked after the row was used again", "one token too many is shared")
)
MUTANTS = {
    "window one too small": ("toy", Buckets, "decode", one_too_small),
    "rows that no graph has": ("toy", LoweredSteps, "_fill_up", rows_of_another_number),
    "compiled turns, window one too small": ("compiled", Buckets, "decode", one_too_small),
    "compiled turns, a stale slot": ("compiled", *STALE_SLOT),
    "compiled turns, parked after the row was used again": ("compiled", *LATE),
    "compiled turns, parked one window short": ("compiled", LoweredSteps, "park", parked_one_window_short),
    "compiled turns, one token too many is shared": ("compiled", *TOO_MANY),
    "captured turns, window one too small": ("captured", Buckets, "decode", one_too_small),
    "captured turns, a stale slot": ("captured", *STALE_SLOT),
    "captured turns, inputs of the first replay": (
        "captured",
        Captured,
        "__call__",
        inputs_of_the_first_replay,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(name, monkeypatch):
    on, *mistake = MUTANTS[name]
    law, drawn = (compiled_equal_eager, scheduled) if on == "toy" else (lowered_turns_equal_eager_ones, turns)
    if on == "toy":
        warm(on)
    monkeypatch.setattr(*mistake)

    @settings(max_examples=40, phases=[Phase.generate], report_multiple_bugs=False)
    @given(drawn())
    def check(case):
        law(on, *case)

    with pytest.raises((AssertionError, RuntimeError)):
        check()
