"""Warm-up: every graph of a configuration ahead of time, and none after it."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from fnroll import Rollout, RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.compile import steps as lowered
from fnroll.compile.warmup import WarmUpError
from fnroll.models import toy_model
from tests.compile.test_compiled import assert_same_records, lower_with

VOCABULARY, LENGTH = 61, 70


def rollout_of(backend, **config):
    options = {"max_length": LENGTH, "rows": 4, "progress": False, **config}
    return Rollout(toy_model(VOCABULARY, sharpness=0.05), None, RolloutConfig(backend=backend, **options))


@functools.cache
def warm(rows, batching):
    """An eager rollout, and a compiled one that is warmed up, with its counter."""
    counter = CompileCounterWithBackend("eager")
    options = {"rows": rows, "batching": batching}
    with pytest.MonkeyPatch.context() as patch:
        lower_with(patch, counter)
        compiled = rollout_of("compiled", **options)
        done = compiled.warm_up(SamplingConfig(top_k=8, top_p=0.9, repetition_penalty=1.2))
    assert done.graphs == counter.frame_count == len(compiled._steps.shapes())
    return rollout_of("eager", **options), compiled, counter


def samplings(most):
    """Parameters that the same graphs serve, and at most so many new tokens."""
    return st.builds(
        SamplingConfig,
        temperature=st.sampled_from([0.5, 1.0, 1.5]),
        top_k=st.integers(5, 8),
        top_p=st.sampled_from([0.5, 0.95]),
        repetition_penalty=st.sampled_from([1.1, 1.4]),
        max_new_tokens=st.none() | st.integers(1, most),
    )


prompts = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=60), min_size=1, max_size=9)


@settings(max_examples=20)
@given(st.sampled_from([(1, "continuous"), (6, "static"), (6, "continuous")]), prompts, samplings(LENGTH))
def test_no_schedule_compiles_anything_after_warm_up(schedule, ids, sampling):
    eager, compiled, counter = warm(*schedule)
    graphs = counter.frame_count
    work = RolloutRequest([RolloutRecord(prompt_ids=prompt) for prompt in ids])
    with torch.compiler.set_stance("fail_on_recompile"):
        found = compiled.generate(work, sampling, seed=3)
    assert_same_records(found, eager.generate(work, sampling, seed=3), 1e-5)
    assert counter.frame_count == graphs


@pytest.mark.slow
def test_nothing_is_compiled_after_a_warm_up_with_inductor(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(lowered, "EAGER_PREFILL", frozenset())
    sampling = SamplingConfig(temperature=0.9, top_k=8, top_p=0.9, repetition_penalty=1.2)
    prompts = [[7 * i % VOCABULARY for i in range(count)] for count in (1, 11, 4, 3, 9)]
    work = RolloutRequest([RolloutRecord(prompt_ids=ids) for ids in prompts], 2)
    with rollout_of("eager", max_length=12, rows=2) as rollout:
        eager = rollout.generate(work, sampling, seed=3)
    with rollout_of("compiled", max_length=12, rows=2) as rollout:
        assert rollout.warm_up(sampling).graphs == len(rollout._steps.shapes()) == 4
        graphs = counters["stats"]["unique_graphs"]
        with torch.compiler.set_stance("fail_on_recompile"):
            found = rollout.generate(work, sampling, seed=3)
        assert counters["stats"]["unique_graphs"] == graphs and rollout._steps.num_graphs == 4
    assert_same_records(found, eager, 1e-5)


def test_a_second_warm_up_has_nothing_to_do(monkeypatch):
    lower_with(monkeypatch, "eager")
    with rollout_of("compiled", max_length=12) as rollout:
        first = rollout.warm_up()
        assert (first.graphs, rollout.warm_up().graphs) == (len(rollout._steps.shapes()), 0)
        assert str(first).startswith(f"{first.graphs} graphs in ")


def test_eager_rollouts_have_nothing_to_warm_up():
    with rollout_of("eager") as rollout:
        assert rollout.warm_up().graphs == 0


def test_running_out_of_memory_names_the_graph_and_what_to_lower(monkeypatch):
    lower_with(monkeypatch, "eager")
    with rollout_of("compiled", max_length=24) as rollout:
        take = rollout._steps.try_shape

        def fail(state, shape):
            if getattr(shape, "width", 0) == 24:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return take(state, shape)

        monkeypatch.setattr(rollout._steps, "try_shape", fail)
        expected = (
            r"graph 4 of 5 \(prefill of 1 x 24, window 24; done: decode of 1 rows, window 24, decode of 2 "
            r"rows, window 24, decode of 4 rows, window 24\).*"
            r"lower RolloutConfig\.rows or RolloutConfig\.max_length.*CUDA out of memory"
        )
        with pytest.raises(WarmUpError, match=expected):
            rollout.warm_up()


def test_after_it_the_last_records_are_computed_alone(monkeypatch):
    """The record that goes on moves from the second row to the first, and no other row is computed."""
    lower_with(monkeypatch, "eager")
    padded = []
    for is_warm in (False, True):
        with rollout_of("compiled") as rollout:
            if is_warm:
                rollout.warm_up()
            records = [RolloutRecord(prompt_ids=[1 + i % 60 for i in range(count)]) for count in (60, 40)]
            batch = rollout.generate(RolloutRequest(records), seed=1)
            padded.append(rollout.profile.padded_tokens)
    short, long = (record.num_sampled for record in batch)
    assert 0 < short < long == rollout.profile.steps
    assert padded[0] - padded[1] == 4 * long - (short + long)


def test_the_bar_names_each_graph(monkeypatch, capsys):
    lower_with(monkeypatch, "eager")
    with rollout_of("compiled", max_length=12, progress=True) as rollout:
        rollout.warm_up()
    assert "warm-up" in capsys.readouterr().err
