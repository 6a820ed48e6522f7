"""A whole rollout on compiled steps: a graph for each window, none compiled twice, records as eager ones."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import fnroll.compile.steps as lowered_module
from fnroll import Rollout, RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.models import causal_lm, toy_model
from fnroll.models.zoo import tiny_model

HARD = SamplingConfig(temperature=0.9, top_k=9, top_p=0.95, repetition_penalty=1.2)


def lower_with(patch, backend):
    """Compile with another backend than Inductor, and prefills too, which a CPU else runs as they are."""
    patch.setattr(lowered_module, "compiled", partial(lowered_module.compiled, backend=backend))
    patch.setattr(lowered_module, "EAGER_PREFILL", frozenset())


@pytest.fixture
def counter(monkeypatch):
    """Compile with the same tracing and functionalisation as Inductor's, without its code generation."""
    found = CompileCounterWithBackend("aot_eager")
    lower_with(monkeypatch, found)
    return found


def request(count, vocab_size):
    prompts = [[(7 * i + j) % vocab_size for j in range(1 + 5 * i % 23)] for i in range(count)]
    return RolloutRequest([RolloutRecord(prompt_ids=ids) for ids in prompts])


def rollout_of(model, max_length, **config):
    return Rollout(model, None, RolloutConfig(max_length=max_length, rows=4, progress=False, **config))


def assert_same_records(left, right, tolerance):
    for one, other in zip(left, right, strict=True):
        assert one.replace(log_probs=None) == other.replace(log_probs=None)
        assert max(abs(a - b) for a, b in zip(one.log_probs, other.log_probs, strict=True)) <= tolerance


def known_shapes(rollout):
    return {*rollout._steps.buckets.decodes(), *rollout._steps.buckets.prefills()}


@pytest.mark.parametrize(
    ("make", "max_length"),
    [(lambda: toy_model(61, sharpness=0.02), 100), (lambda: causal_lm(tiny_model("llama")), 24)],
    ids=["toy", "llama"],
)
def test_a_rollout_compiles_a_graph_for_each_shape_and_none_again(counter, make, max_length):
    model = make()
    work, more = request(20, model.vocab_size), request(3, model.vocab_size)
    with rollout_of(model, max_length) as rollout:
        eager = rollout.generate(work, HARD, seed=0), rollout.generate(more, HARD, seed=1)
    with rollout_of(model, max_length, backend="compiled") as rollout:
        assert_same_records(rollout.generate(work, HARD, seed=0), eager[0], 1e-6)
        assert counter.frame_count == rollout._steps.num_graphs
        # Another seed, number of records, version of the weights and other parameters: all of it data.
        assert_same_records(rollout.generate(more, HARD, seed=1), eager[1], 1e-6)
        rollout.sync_weights(2)
        near = SamplingConfig(temperature=0.5, top_k=12, top_p=0.8, repetition_penalty=1.1)
        again = rollout.generate(work if model.name == "toy" else more, near)
        assert {version for record in again for version in record.weight_versions} == {-1, 2}
        assert counter.frame_count == rollout._steps.num_graphs <= len(known_shapes(rollout))


def test_weights_replaced_between_calls_are_used_by_the_compiled_step(counter):
    """Case cache-01 on the compiled path: a graph never keeps the tensors it was traced with."""
    module = tiny_model("llama")
    work = request(3, 48)
    with rollout_of(module, 16, backend="compiled") as rollout:
        first = rollout.generate(work)
        for parameter in module.parameters():
            parameter.mul_(0.5)
        second = rollout.generate(work)
        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight * -1)
        third = rollout.generate(work)
    with rollout_of(module, 16) as fresh:
        assert_same_records(third, fresh.generate(work), 1e-6)
    assert len({tuple(record.tokens for record in batch) for batch in (first, second, third)}) == 3


def test_static_batching_and_polling_on_a_compiled_step(counter):
    model = toy_model(31, sharpness=0.1)
    work = request(9, 31)
    with rollout_of(model, 40) as rollout:
        eager = rollout.generate(work)
    with rollout_of(model, 40, backend="compiled", batching="static", poll_every=5) as rollout:
        assert_same_records(rollout.generate(work), eager, 0.0)
        assert counter.frame_count == rollout._steps.num_graphs


def test_any_number_of_ways_to_sample(counter):
    """Each way of sampling is a graph of its own, and none of them uses up another's recompile limit."""
    model = toy_model(61, sharpness=0.02)
    work = request(2, model.vocab_size)
    ways = [SamplingConfig(top_k=k, top_p=p) for k in (0, 1, 2, 4, 8, 16) for p in (0.9, 1.0)]
    with rollout_of(model, 24) as eager, rollout_of(model, 24, backend="compiled") as compiled:
        for way in ways:
            assert_same_records(compiled.generate(work, way), eager.generate(work, way), 1e-6)
        assert counter.frame_count == compiled._steps.num_graphs == len(ways) + 1  # one prefill


def test_on_a_cpu_only_decode_steps_are_compiled(monkeypatch):
    found = CompileCounterWithBackend("eager")
    monkeypatch.setattr(lowered_module, "compiled", partial(lowered_module.compiled, backend=found))
    model, work = toy_model(61), request(9, 61)
    with rollout_of(model, 100) as eager, rollout_of(model, 100, backend="compiled") as compiled:
        assert_same_records(compiled.generate(work), eager.generate(work), 1e-6)
        assert compiled._steps.shapes() == compiled._steps.buckets.decodes()
        assert compiled.profile.fed_tokens == eager.profile.fed_tokens
        assert 1 <= found.frame_count == compiled._steps.num_graphs <= 2
