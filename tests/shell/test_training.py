"""Training tensors: padded and packed, and scored log-probs that give an unchanged policy a ratio of one."""

import dataclasses

import pytest
import torch

import fnroll
from fnroll.grpo import group_advantages, grpo_policy_loss
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


def test_with_a_penalty_too():
    model = tiny_model("llama", torch.float32)
    options = {**CUT, "repetition_penalty": 1.3}
    batch = fnroll.to_training(roll_out(model, **options))
    scored = fnroll.score(model, batch, fnroll.SamplingConfig(**options))
    assert float((scored - batch.old_log_probs)[batch.loss_mask].abs().max()) <= 1e-5
    with pytest.raises(ValueError, match=r"repetition penalty \(1.3\) needs a padded batch"):
        fnroll.score(
            model, fnroll.to_training(roll_out(model), packed=True), fnroll.SamplingConfig(**options)
        )


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


def test_no_records():
    batch = fnroll.to_training([])
    assert batch.input_ids.shape == (0, 0) and dataclasses.asdict(batch)["advantages"] is None
