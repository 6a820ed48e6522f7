"""Numbers of NumPy and of tensors in a record: rewards are floats, and metadata is JSON when it is saved."""

import math

import numpy as np
import pytest
import torch

from fnroll import RolloutBatch, RolloutConfig, RolloutRecord, RolloutRequest
from fnroll.models import toy_model
from fnroll.rollout.rollout import Rollout

REWARDS = [
    np.float64(0.5), np.float32(0.5), np.float16(0.5), np.mean([0, 1]), np.array(0.5), torch.tensor(0.5),
    torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor([0.0, 1.0]).mean(),
    torch.tensor(0.5, requires_grad=True), 0.5,
]  # fmt: skip


@pytest.mark.parametrize("reward", REWARDS, ids=repr)
def test_a_reward_is_a_python_float_fresh_21(reward, tmp_path):
    record = RolloutRecord(prompt_ids=[1]).replace(reward=reward)
    assert type(record.reward) is float and record.reward == 0.5
    RolloutBatch((record,)).save(tmp_path / "batch.jsonl")
    assert '"reward": 0.5' in (tmp_path / "batch.jsonl").read_text()
    assert RolloutBatch.load(tmp_path / "batch.jsonl")[0] == record


def test_whole_numbers_and_truth_values_are_rewards_too():
    for reward in (np.int64(1), np.bool_(True), torch.tensor(1), torch.tensor(True), np.array(1, dtype="u1")):
        assert repr(RolloutRecord(prompt_ids=[1], reward=reward).reward) == "1.0"
    assert math.isnan(RolloutRecord(prompt_ids=[1], reward=np.float32("nan")).reward)
    assert RolloutRecord(prompt_ids=[1], reward=1).reward == 1


@pytest.mark.parametrize(
    "reward",
    [np.array([0.5]), torch.tensor([0.5]), np.complex64(1), np.str_("1"), np.datetime64("2026-01-01"), "1"],
)
def test_what_is_no_number_is_no_reward(reward):
    with pytest.raises(ValueError, match=r"RolloutRecord\.reward is .*; it must be a number, or None"):
        RolloutRecord(prompt_ids=[1], reward=reward)


METADATA = [
    (np.int64(3), 3),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.arange(2), [0, 1]),
    (np.zeros((1, 2)), [[0.0, 0.0]]),
    (np.array(["a", None, {"b": np.int8(1)}], dtype=object), ["a", None, {"b": 1}]),
    (torch.arange(2), [0, 1]),
    (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (
        {"a": [np.int64(1), (np.float64(2),)], np.int64(3): 4, "d": torch.ones(1)},
        {"a": [1, [2.0]], "3": 4, "d": [1.0]},
    ),
    (None, None),
]


@pytest.mark.parametrize(("metadata", "saved"), METADATA, ids=repr)
def test_arrays_in_metadata_are_saved_as_lists_fresh_21(metadata, saved, tmp_path):
    path = str(tmp_path / "save.jsonl")
    prompt = RolloutRecord(prompt_ids=[1, 2], metadata=metadata)
    with Rollout(toy_model(31), None, RolloutConfig(max_length=8, save=path, progress=False)) as rollout:
        batch = rollout.generate(RolloutRequest([prompt], n=2))
    assert all(record.metadata is metadata for record in batch)
    batch.save(tmp_path / "batch.jsonl")
    for file in ("save.jsonl", "batch.jsonl"):
        assert [record.metadata for record in RolloutBatch.load(tmp_path / file)] == [saved, saved]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"a": [1, {2}]}, r"metadata\['a'\]\[1\] is a set, \{2\}"),
        ({"when": np.datetime64("2026-01-01")}, r"metadata\['when'\] is a date"),
        ({"z": np.complex64(1)}, r"metadata\['z'\] is a complex"),
        ({"long": np.longdouble(1)}, r"metadata\['long'\] is a longdouble"),
        ({(1, 2): 3}, r"metadata has a key that is a tuple, \(1, 2\)"),
        (b"x", "metadata is a bytes"),
    ],
)
def test_metadata_that_cannot_be_saved_is_named_before_anything_runs(metadata, words, tmp_path):
    config = RolloutConfig(max_length=8, save=str(tmp_path / "save.jsonl"), progress=False)
    with Rollout(toy_model(31), None, config) as rollout:
        with pytest.raises(TypeError, match=rf"record 0/0 cannot be written as JSON: {words}"):
            rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=[1], metadata=metadata)]))
        assert rollout.profile.steps == 0
