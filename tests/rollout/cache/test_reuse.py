"""Keys and values of earlier calls: taken over when asked for, also under newer weights, and never else."""

import copy
import dataclasses
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import fnroll
from fnroll import RolloutConfig, RolloutRecord, RolloutRequest
from fnroll.models import causal_lm, toy_model
from fnroll.models.zoo import tiny_model
from fnroll.rollout import rollout as rollout_module
from fnroll.rollout.cache import plan
from fnroll.rollout.driver.driver import Driver
from tests.rollout.cache.test_pool import counted


@pytest.fixture(autouse=True)
def _share_all(monkeypatch):
    monkeypatch.setattr(plan, "LEAST_SHARED", 1)


def prompts(count=5, vocab_size=31):
    return RolloutRequest([RolloutRecord(prompt_ids=[i + 1, 5, i % vocab_size + 2]) for i in range(count)])


def in_parts(rollout, steps, between=lambda: None):
    batch = rollout.generate(prompts(), seed=3, max_steps=steps)
    while any(record.is_unfinished for record in batch):
        between()
        batch = rollout.generate(RolloutRequest(batch.records, resume=True), seed=3, max_steps=steps)
    return batch


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize("rows", [2, 5])
def test_a_record_that_is_gone_on_with_is_not_fed_again(steps, rows):
    model = toy_model(31, sharpness=0.05)
    config = RolloutConfig(max_length=24, rows=rows, progress=False)
    with fnroll.Rollout(model, None, config) as rollout:
        whole, least = rollout.generate(prompts(), seed=3), rollout.profile.fed_tokens
    totals = {}
    for reuse in (False, True):
        counting, fed = counted(model)
        again = dataclasses.replace(config, reuse_cache=reuse)
        with fnroll.Rollout(counting, None, again) as rollout:
            assert in_parts(rollout, steps) == whole
        totals[reuse] = sum(fed)
    assert totals[True] <= least < totals[False]


def mixed_log_probs(old, new, record, fed_by_old):
    """Score a record token by token, the first ones fed to the old weights, by the library's own cache."""
    cache, found = DynamicCache(), [0.0]
    for place, token in enumerate(record.tokens[:-1]):
        module = old if place < fed_by_old else new
        logits = module(torch.tensor([[token]]), cache=cache).logits[0, -1]
        found.append(float(logits.double().log_softmax(-1)[record.tokens[place + 1]]))
    return found


@pytest.mark.parametrize("reuse", [True, False])
def test_newer_weights_go_on_over_older_keys_and_values_only_when_asked(reuse):
    module = tiny_model("llama", torch.float64)
    old = copy.deepcopy(module)
    config = RolloutConfig(max_length=16, rows=5, progress=False, reuse_cache=reuse)
    request = RolloutRequest([RolloutRecord(prompt_ids=[i + 3, 9, 4]) for i in range(4)])
    with (
        torch.no_grad(),
        fnroll.Rollout(dataclasses.replace(causal_lm(module), stop_ids=(99,)), None, config) as r,
    ):
        cut = r.generate(request, seed=1, max_steps=4)
        for parameter in module.parameters():
            parameter.mul_(1.3)
        r.sync_weights(1)
        batch = r.generate(RolloutRequest(cut.records, resume=True), seed=1)
        for record in batch:
            # Three ids and three samples were fed before; new weights are fed the fourth sample first.
            assert record.weight_versions == (-1, -1, -1, *[0] * 4, *[1] * 9)
            expected = mixed_log_probs(old, module, record, fed_by_old=6 if reuse else 0)
            assert record.log_probs[7:] == pytest.approx(expected[7:], abs=1e-5)
            other = mixed_log_probs(old, module, record, fed_by_old=0 if reuse else 6)
            assert record.log_probs[7:] != pytest.approx(other[7:], abs=1e-3)


def test_what_an_interrupted_or_failed_call_left_is_not_taken():
    def fail(index, record):
        raise RuntimeError("the caller's own mistake")

    model = toy_model(31, sharpness=0.05)
    with fnroll.Rollout(model, None, RolloutConfig(max_length=24, rows=2, reuse_cache=True)) as rollout:
        whole = rollout.generate(prompts(), seed=3)
        with pytest.raises(RuntimeError, match="own mistake"):
            rollout.generate(prompts(), seed=4, on_record=fail)
        assert rollout._buffers._held is None and rollout._buffers._kept is None
        assert rollout.generate(prompts(), seed=3) == whole


def test_without_shared_prefixes_there_is_nothing_to_take_over():
    with pytest.raises(ValueError, match=r"RolloutConfig\.reuse_cache is True.*without share_prefixes"):
        RolloutConfig(max_length=8, reuse_cache=True, share_prefixes=False)


def fail_to_warm_up(rollout):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rollout_module, "warm_up", Mock(side_effect=KeyboardInterrupt))
        rollout.warm_up()


def update_with_nan(rollout):
    rollout._buffers._kept[0].keys[0][0, 0] = torch.nan
    rollout.sync_weights(1)
    assert not rollout._buffers._kept[0].keys[0].any()


@pytest.mark.parametrize(
    "lose", [fnroll.Rollout.shutdown, fnroll.Rollout.warm_up, fail_to_warm_up, update_with_nan]
)
def test_nothing_is_taken_from_buffers_that_are_gone(lose):
    config = RolloutConfig(max_length=24, rows=5, progress=False, reuse_cache=True)
    with fnroll.Rollout(toy_model(31, sharpness=0.05), None, config) as rollout:
        whole = rollout.generate(prompts(), seed=3)
        assert rollout._buffers._held is not None
        lose(rollout)
        again = rollout.generate(prompts(), seed=3)
        assert [record.tokens for record in again] == [record.tokens for record in whole]
        assert rollout.profile.shared_tokens == 0


def cut_rows_kept_as_admitted(driver):
    """Plant: what a row's record sampled before the cut is forgotten, so it is fed again."""
    return driver.plan.held


def rows_kept_one_late(driver, leave=Driver.leave):
    """Plant: each row is said to hold what the next one holds."""
    held = leave(driver)
    held._ids[:], held._length[:] = np.roll(held._ids, 1, axis=0), np.roll(held._length, 1)
    return held


@pytest.mark.parametrize("mistake", [cut_rows_kept_as_admitted, rows_kept_one_late])
def test_a_planted_mistake_is_caught(mistake, monkeypatch):
    monkeypatch.setattr(Driver, "leave", mistake)
    with pytest.raises(AssertionError):
        test_a_record_that_is_gone_on_with_is_not_fed_again(3, 5)
