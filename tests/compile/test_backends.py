"""`backend="captured"`: whole rollouts on replayed steps, and what a machine without CUDA is told."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings

import fnroll.compile.steps as lowered_module
from fnroll import Rollout, RolloutConfig
from fnroll.compile.graph import Captured
from fnroll.models.zoo import tiny_model
from fnroll.testing.rolling import run_work
from property_tests.test_schedules import TOY_VOCABULARY, scheduled, toy
from tests.compile.recorder import record
from tests.compile.test_compiled import assert_same_records, request


def emulate(patch):
    """Let a CPU capture: steps as they are, on a recorder that replays their operators."""
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(lowered_module, "compiled", lambda step: step)
    patch.setattr(lowered_module, "cuda_recorder", lambda: record)


@pytest.fixture
def emulated(monkeypatch):
    emulate(monkeypatch)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_cuda_the_other_backends_are_named():
    with pytest.raises(ValueError, match=r"backend.*captured.*'compiled' \(or 'eager'\).*without a CUDA"):
        RolloutConfig(max_length=8, backend="captured")


@settings(max_examples=15)
@given(scheduled(TOY_VOCABULARY))
def test_captured_records_equal_eager_ones_for_all_schedules(emulated, case):
    work, schedule = case
    eager, found = (run_work(toy(), work, schedule, backend) for backend in ("eager", "captured"))
    assert eager.keys() == found.keys()
    for identity, one in eager.items():
        assert found[identity].replace(log_probs=None) == one.replace(log_probs=None)
        pairs = zip(found[identity].log_probs, one.log_probs, strict=True)
        assert max((abs(a - b) for a, b in pairs), default=0.0) <= 1e-5


def test_a_captured_rollout_on_a_model_with_layers(emulated):
    module = tiny_model("llama")
    work, config = request(9, 48), partial(RolloutConfig, max_length=24, rows=4, progress=False)
    with Rollout(module, None, config(backend="captured")) as rollout:
        rollout.warm_up()
        steps = [step for step in rollout._steps._lowered.values() if isinstance(step, Captured)]
        assert steps and all(step.num_captures == 1 for step in steps)
        first = rollout.generate(work)
        for parameter in module.parameters():
            parameter.mul_(0.5)
        second = rollout.generate(work)
        assert all(step.num_captures == 1 for step in steps)
        module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight * -1)
        third = rollout.generate(work)
    assert max(step.num_captures for step in steps) == 2
    assert all(step._graph is None for step in steps)  # released with the rollout
    with Rollout(module, None, config()) as fresh:
        assert_same_records(third, fresh.generate(work), 1e-6)
    assert len({tuple(record.tokens for record in batch) for batch in (first, second, third)}) == 3
