"""Training tensors: padded and packed, and scored log-probs that give an unchanged policy a ratio of one."""

import dataclasses
import functools
import math
import time
from random import Random

import pytest
import torch

import fnroll
from fnroll.grpo import group_advantages, grpo_policy_loss
from fnroll.models import scoring
from fnroll.models.tiny import TINY_TOOLS, load_tiny, make_tasks
from fnroll.models.zoo import tiny_model

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14, 15, 16]]
CUT = {"temperature": 0.8, "top_k": 8, "top_p": 0.9}


def roll_out(model, *, support_size=8, n=2, **sampling):
    batch = fnroll.generate(
        model, None, PROMPTS, max_length=24, n=n, rows=4, seed=1, support_size=support_size, **sampling
    )
    rewards = [1.0, 0.0, 0.5, 0.5, 0.25, 1.0]
    return [record.replace(reward=reward) for record, reward in zip(batch, rewards, strict=True)]


def test_every_field_is_where_it_is_documented_to_be():
    records = roll_out(tiny_model("llama"), **CUT)
    batch = fnroll.to_training(records, pad_id=47)
    width = max(len(record.tokens) for record in records)
    assert batch.input_ids.shape == batch.loss_mask.shape == batch.old_log_probs.shape == (6, width)
    assert batch.input_ids.dtype == torch.int64 and batch.old_log_probs.dtype == torch.float32
    assert batch.group.tolist() == [0, 0, 1, 1, 2, 2]
    for row, record in enumerate(records):
        count = len(record.tokens)
        assert batch.input_ids[row, :count].tolist() == list(record.tokens)
        assert (batch.input_ids[row, count:] == 47).all()
        assert batch.attention_mask[row].tolist() == [1] * count + [0] * (width - count)
        assert batch.position_ids[row, :count].tolist() == list(range(count))
        assert batch.loss_mask[row, :count].tolist() == list(record.loss_mask)
        assert not batch.loss_mask[row, count:].any()
    expected = group_advantages([record.reward for record in records], batch.group.tolist())
    assert torch.equal(batch.advantages, expected) and batch.advantages[2:4].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_unchanged_weights_have_ratio_one(name, packed):
    model = tiny_model(name, torch.float32)
    records = roll_out(model, **CUT)
    batch = fnroll.to_training(records, packed=packed)
    scored = fnroll.score(model, batch, fnroll.SamplingConfig(**CUT), chunk=7)
    ratio = (scored - batch.old_log_probs)[batch.loss_mask].exp()
    assert len(ratio) > 30 and float((ratio - 1).abs().max()) <= 1e-5


@pytest.mark.parametrize("packed", [False, True])
def test_with_a_penalty_too(packed):
    model = tiny_model("llama", torch.float32)
    options = {**CUT, "repetition_penalty": 1.3}
    batch = fnroll.to_training(roll_out(model, **options), packed=packed)
    scored = fnroll.score(model, batch, fnroll.SamplingConfig(**options), chunk=7)
    assert float((scored - batch.old_log_probs)[batch.loss_mask].abs().max()) <= 1e-5


# A model that is sure of nearly every token: at a low temperature all that top-p keeps is one, of log-prob 0.
TOOL_USE = {"temperature": 1.8, "top_k": 30, "top_p": 0.999, "repetition_penalty": 1.1}


@functools.cache
def tool_use():
    """Sixteen records of one to four turns, with tool output between them."""
    model, tokenizer = load_tiny("solved")
    prompts = [fnroll.RolloutRecord(messages=task.messages) for task in make_tasks(16, split="held-out")]
    sampling = fnroll.SamplingConfig(**TOOL_USE, support_size=30)
    config = fnroll.RolloutConfig(max_length=256, rows=5, max_turns=5, progress=False)
    with fnroll.Rollout(model, tokenizer, config, TINY_TOOLS) as rollout:
        return model, rollout.generate(fnroll.RolloutRequest(prompts), sampling, seed=3)


def roll_out_with_latency(latency, *, wait, **more):
    """What was decided and how it was scheduled, with tools that take a time drawn by the seed `latency`."""
    model, tokenizer = load_tiny("start")
    random = Random(latency)

    def slow(tool):
        @functools.wraps(tool)
        def call(*args, **kwargs):
            time.sleep(latency * random.random() / 10)
            return tool(*args, **kwargs)

        return call

    prompts = [fnroll.RolloutRecord(messages=task.messages) for task in make_tasks(8)]
    config = fnroll.RolloutConfig(
        max_length=256, rows=8, max_turns=5, progress=False, wait_for_tools=wait, **more
    )
    with fnroll.Rollout(model, tokenizer, config, [slow(tool) for tool in TINY_TOOLS]) as rollout:
        batch = rollout.generate(fnroll.RolloutRequest(prompts, n=2), seed=3)
        profile = rollout.profile
    return batch, (profile.steps, profile.forwards, profile.padded_tokens)


def test_waiting_for_tools_makes_schedule_and_log_probs_independent_of_their_latency():
    """Bitwise: the rounding of a float32 forward depends on which turns share it."""
    quick, slow = (roll_out_with_latency(latency, wait=True) for latency in (0, 1))
    assert quick == slow
    # What the option is for: without it, turns share their forwards as it happens.
    assert roll_out_with_latency(1, wait=False)[1] != quick[1]


def test_a_replay_repeats_a_rollout_that_waits_for_tools_bit_for_bit(tmp_path):
    log = str(tmp_path / "effects.jsonl")
    live = roll_out_with_latency(0.3, wait=True, log=log)
    assert roll_out_with_latency(0, wait=True, replay=log) == live


def ratios(packed, **changes):
    """The ratio of every sampled token of every record, scored before any update."""
    model, batch = tool_use()
    tensors = batch.to_training(packed=packed)
    scored = fnroll.score(model, tensors, fnroll.SamplingConfig(**{**TOOL_USE, **changes}), chunk=100)
    return (scored.double() - tensors.old_log_probs.double())[tensors.loss_mask].exp()


@pytest.mark.parametrize("packed", [False, True])
def test_every_token_of_a_rollout_with_tools_has_ratio_one(packed):
    _, batch = tool_use()
    assert {record.num_turns for record in batch} >= {2, 3, 4}
    assert sum(call["status"] == "ok" for record in batch for call in record.tool_calls) >= 24
    assert sum(value < -0.01 for record in batch for value in record.log_probs) > 100
    assert sum(len(ids) > 1 for record in batch for ids in record.support) > 400
    found = ratios(packed)
    assert len(found) == sum(record.num_sampled for record in batch) > 400
    assert float((found - 1).abs().max()) <= 1e-5


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "changes", [{"repetition_penalty": 1.0}, {"temperature": 1.0}, {"top_k": 0, "top_p": 1.0}]
)
def test_another_distribution_is_not_mistaken_for_it(changes, packed):
    """Of the last, only the support counts, and the records carry it: the ratio stays one."""
    worst = float((ratios(packed, **changes) - 1).abs().max())
    assert worst <= 1e-5 if "top_k" in changes else worst > 1e-2


def test_a_penalty_sees_all_turns_of_its_record_and_no_other():
    """Case sampling-06: turns that return to a row between two other records, and to rows side by side."""
    model, tokenizer = load_tiny("solved")
    prompts = [fnroll.RolloutRecord(messages=task.messages) for task in make_tasks(8)[2:6]]
    sampling = fnroll.SamplingConfig(temperature=0.0, repetition_penalty=1.3)
    batches = []
    for rows, batching in ((1, "continuous"), (4, "static")):
        config = fnroll.RolloutConfig(
            max_length=256, rows=rows, batching=batching, max_turns=5, progress=False
        )
        with fnroll.Rollout(model, tokenizer, config, TINY_TOOLS) as rollout:
            batches.append(rollout.generate(fnroll.RolloutRequest(prompts), sampling))
    alone, together = batches
    assert [record.tokens for record in alone] == [record.tokens for record in together]
    assert any(record.num_turns >= 3 for record in alone)
    tensors = alone.to_training()
    scored = fnroll.score(model, tensors, sampling)
    # Of the whole past, in one forward: a turn that forgot an earlier one would differ.
    assert float((scored - tensors.old_log_probs)[tensors.loss_mask].abs().max()) <= 1e-5
    plain = fnroll.score(model, tensors, fnroll.SamplingConfig(temperature=0.0, repetition_penalty=1.0))
    assert float((scored - plain)[tensors.loss_mask].abs().max()) > 1e-3


def test_a_past_of_other_records_would_be_caught(monkeypatch):
    """A packed row up to the token, as if all of it were the token's own record."""
    monkeypatch.setattr(scoring, "_history", lambda ids, positions, row, place, longest: (ids[row], place))
    assert float((ratios(False) - 1).abs().max()) <= 1e-5
    assert float((ratios(True) - 1).abs().max()) > 1e-2


def test_without_support_a_warning_says_what_bias_to_expect():
    model = tiny_model("llama")
    batch = fnroll.to_training(roll_out(model, support_size=0, **CUT))
    assert batch.support is None
    with pytest.warns(UserWarning, match=r"ratio, not 1.*support_size"):
        scored = fnroll.score(model, batch, fnroll.SamplingConfig(**CUT))
    assert ((scored - batch.old_log_probs)[batch.loss_mask] <= 1e-6).all()


def step(packed):
    """The loss of one step and the gradient of every parameter."""
    model = tiny_model("qwen3")
    batch = fnroll.to_training(roll_out(model, **CUT), packed=packed)
    with torch.enable_grad():
        scored = fnroll.score(model, batch, fnroll.SamplingConfig(**CUT))
        loss, _ = grpo_policy_loss(
            scored, batch.old_log_probs, batch.advantages, batch.loss_mask, segments=batch.segments
        )
        loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_step_is_the_same_padded_or_packed():
    (loss, gradient), (packed_loss, packed_gradient) = step(False), step(True)
    torch.testing.assert_close(loss, packed_loss, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(gradient, packed_gradient, rtol=1e-5, atol=1e-7)
    assert gradient.abs().max() > 1e-3


def test_support_survives_a_file(tmp_path):
    batch = fnroll.RolloutBatch(tuple(roll_out(tiny_model("llama"), **CUT)))
    batch.save(tmp_path / "a.jsonl")
    assert fnroll.RolloutBatch.load(tmp_path / "a.jsonl") == batch
    assert batch[0].support[0] == () and len(batch[0].support[-1]) >= 1


def test_without_rewards_there_are_no_advantages_and_without_log_probs_an_error():
    records = [record.replace(reward=None) for record in roll_out(tiny_model("llama"))]
    assert fnroll.to_training(records).advantages is None
    with pytest.raises(ValueError, match="record 0/0 has no log_probs"):
        fnroll.to_training([record.replace(log_probs=None) for record in records])


def test_a_prompt_without_room_takes_no_support_from_the_others():
    model = tiny_model("llama", torch.float32)
    batch = fnroll.generate(model, None, [[5, 6], [7] * 30], max_length=24, seed=1, support_size=8, **CUT)
    assert batch[1].reason == "prompt"
    training = batch.to_training()
    scored = fnroll.score(model, training, fnroll.SamplingConfig(**CUT))
    assert float((scored - training.old_log_probs)[training.loss_mask].abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([1.0, math.nan, 0.0, 0.0], "record 0/1: reward is nan; it must be a finite number, or None"),
        ([1.0, 0.0, -math.inf, 0.0], "record 1/0: reward is -inf"),
        ([1.0, 0.0, 10**400, 0.0], "record 1/0: reward is 1000"),
    ],
)
def test_a_reward_that_is_no_number_is_named_with_its_record(rewards, message):
    records = roll_out(tiny_model("llama"))[:4]
    with pytest.raises(ValueError, match=message):
        fnroll.to_training([r.replace(reward=reward) for r, reward in zip(records, rewards, strict=True)])


def test_groups_of_unequal_size_are_named_as_the_records_name_them():
    records = [record.replace(group=record.group + 40) for record in roll_out(tiny_model("llama"))]
    with pytest.raises(ValueError, match=r"most have 2 records, group 42 has 1; pass allow_unequal=True"):
        fnroll.to_training(records[:5])
    with pytest.warns(UserWarning, match="one scored record"):
        assert fnroll.to_training(records[:5], allow_unequal=True).advantages[4] == 0


WRONG = {
    "loss_mask": (lambda batch: batch.loss_mask[:, 1:], r"\[6, 23\] and input_ids \[6, 24\]"),
    "old_log_probs": (lambda batch: batch.old_log_probs[1:], r"\[5, 24\] and input_ids \[6, 24\]"),
    "position_ids": (lambda batch: batch.position_ids[0], r"\[24\] and input_ids"),
    "attention_mask": (lambda batch: batch.attention_mask[:, :, None][:, :2], r"\[6, 2, 1\] and input_ids"),
    "support": (lambda batch: torch.zeros(6, 23, 8), r"\[6, 23, 8\] and input_ids \[6, 24\]"),
    "advantages": (lambda batch: batch.advantages[:4], r"\[4\] and group \[6\]"),
    "group": (lambda batch: torch.zeros(3), r"\[3\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_tensors_that_do_not_fit_are_named_with_both_shapes(name):
    change, message = WRONG[name]
    batch = fnroll.to_training(roll_out(tiny_model("llama")))
    assert batch.input_ids.shape == (6, 24)
    with pytest.raises(ValueError, match=f"(TrainingBatch.{name} has shape |and group ){message}"):
        dataclasses.replace(batch, **{name: change(batch)})


@pytest.mark.parametrize("ids", [[], [[5, 6, 7]]])
def test_nothing_to_score_has_a_gradient_of_zeros(ids):
    """Case grpo-loss-02: without a record, or without a sampled token, backward runs as on any other rank."""
    model = tiny_model("llama", torch.float32)
    rolled = {"prompt_length": 3, "loss_mask": (False,) * 3, "log_probs": (0.0,) * 3}
    batch = fnroll.to_training([fnroll.RolloutRecord(prompt_ids=i, tokens=tuple(i), **rolled) for i in ids])
    with torch.enable_grad():
        scored = fnroll.score(model, batch)
        loss, _ = grpo_policy_loss(scored, batch.old_log_probs, torch.ones(len(ids)), batch.loss_mask)
        loss.backward()
    assert loss == 0 and scored.shape == batch.loss_mask.shape and scored.dtype == torch.float32
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_no_records():
    batch = fnroll.to_training([])
    assert batch.input_ids.shape == (0, 0) and dataclasses.asdict(batch)["advantages"] is None
