"""Scored log-probs against recorded ones, under every kind of processing; gradients against plain code."""

import itertools

import pytest
import torch

from fnroll.core import steps
from fnroll.core.logits import find_support, process
from fnroll.core.rng import init_keys
from fnroll.core.types import init_state
from fnroll.models import causal_lm
from fnroll.models.scoring import can_chunk, score_tokens
from fnroll.models.zoo import TINY_MODELS, tiny_model
from tests.core.test_logits import hard_logits, params

PROMPTS = ([5, 6, 7], [9], [11, 12, 13, 14, 15, 16])
LENGTH, SIZE = 24, 6


def roll_out(module, *, temperature=1.0, top_k=0, top_p=1.0, penalty=1.0, support_size=0):
    """Roll out three prompts by the steps; return the records, with room for their supports."""
    model = causal_lm(module)
    count = torch.tensor([len(prompt) for prompt in PROMPTS])
    tokens = torch.tensor([[*prompt, *[0] * (6 - len(prompt))] for prompt in PROMPTS])
    state = init_state(
        model.init_cache(3, LENGTH), num_records=3, stop_ids=torch.tensor([2]), support_size=support_size
    )
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "penalty": penalty}
    state = steps.replace(state, sampling=params(4, **options))
    line = torch.arange(3)
    keys = init_keys(3, 0, line, torch.zeros(3, dtype=torch.int64))
    state = steps.enqueue(state, line, tokens, count, torch.full((3,), LENGTH), keys)
    state, _ = steps.admit(state)
    state = steps.prefill(None, state, line, model=model.fn, width=6, window=LENGTH)
    while (state.rows.record >= 0).any():
        state, _ = steps.decode_step(None, state, model=model.fn, window=LENGTH)
    return state.records


def inputs_of(records):
    place = torch.arange(LENGTH)
    valid = place < records.length[:3, None]
    return {
        "input_ids": records.tokens[:3],
        "position_ids": place.expand(3, LENGTH),
        "attention_mask": valid.long(),
        "loss_mask": records.loss_mask[:3] & valid,
    }


def score(module, records, **options):
    return score_tokens(module, **inputs_of(records), **options)


@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unchanged_weights_give_ratio_one(name, dtype):
    """Case C15: with truncated support, the ratio of an unchanged policy is exactly one."""
    module = tiny_model(name, dtype)
    records = roll_out(module, temperature=0.8, top_k=SIZE, top_p=0.9, penalty=1.2, support_size=SIZE)
    scored = score(
        module, records, temperature=0.8, repetition_penalty=1.2, support=records.support[:3], chunk=5
    )
    mask = inputs_of(records)["loss_mask"]
    assert mask.sum() > 20
    assert float((scored - records.log_probs[:3])[mask].exp().sub(1).abs().max()) <= 1e-5
    assert (scored[~mask] == 0).all()


def test_without_support_the_ratio_is_the_kept_mass():
    """p = (.4, .3, .2, .1) with top-p .6: the second token's ratio would be 0.7."""
    module = tiny_model("llama")
    records = roll_out(module, top_k=SIZE, support_size=SIZE)
    mask = inputs_of(records)["loss_mask"]
    ratio = (score(module, records) - records.log_probs[:3])[mask].exp()
    assert (ratio <= 1 + 1e-9).all() and ratio.min() < 0.9


def test_every_drawn_token_is_in_its_support():
    records = roll_out(tiny_model("qwen3"), temperature=1.5, top_p=0.95, support_size=SIZE)
    mask = inputs_of(records)["loss_mask"]
    support, tokens = records.support[:3][mask], records.tokens[:3][mask]
    assert (support == tokens[:, None]).any(-1).all()
    assert (records.support[:3][~mask & (inputs_of(records)["attention_mask"] > 0)] == -1).all()


@pytest.mark.parametrize("size", [1, 4, 100])
def test_support_is_what_is_left_and_no_more_than_its_size(size):
    """Ties at the bound: what was cut off cannot be drawn."""
    logits = hard_logits()
    row = params(len(logits), top_k=5, top_p=0.9)
    scores, support = find_support(process(logits, row, None), row, size)
    for left, kept in zip(scores, support, strict=True):
        ids = [token for token in kept.tolist() if token >= 0]
        assert sorted(ids) == left.isfinite().nonzero()[:, 0].tolist()
        assert len(ids) <= size and kept.shape[-1] == size
        assert left[ids].tolist() == sorted(left[ids].tolist(), reverse=True)


def test_greedy_rows_keep_the_whole_vocabulary():
    row = params(1, temperature=0.0)
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    scores, support = find_support(logits, row, 2)
    assert torch.equal(scores, logits) and support.tolist() == [[-1, -1]]


def plain_scores(module, records):
    data = inputs_of(records)
    logits = module(
        input_ids=data["input_ids"], attention_mask=data["attention_mask"], use_cache=False
    ).logits[:, :-1]
    scored = logits.log_softmax(-1).gather(-1, data["input_ids"][:, 1:, None])[..., 0]
    return torch.where(data["loss_mask"][:, 1:], scored, 0.0).sum()


@pytest.mark.parametrize(("name", "chunk"), [*itertools.product(("llama", "gpt2", "gemma3"), (3, 1000))])
def test_gradients_are_those_of_plain_code_for_any_chunk(name, chunk):
    module = tiny_model(name)
    records = roll_out(module)
    with torch.enable_grad():
        score(module, records, chunk=chunk).sum().backward()
        ours = [parameter.grad.clone() for parameter in module.parameters()]
        module.zero_grad()
        plain_scores(module, records).backward()
    for mine, parameter in zip(ours, module.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-5, atol=1e-5)


def test_no_more_tokens_than_a_chunk_pass_the_head_at_a_time():
    """What bounds the memory: logits of a chunk only, in the forward and again in the backward."""
    module, sizes = tiny_model("llama"), []
    records = roll_out(module)
    can_chunk(module, records.tokens[:3])
    module.lm_head.register_forward_hook(lambda _, given, out: sizes.append(given[0].shape[:-1].numel()))
    with torch.enable_grad():
        score(module, records, chunk=3).sum().backward()
    assert max(sizes) == 3 and len(sizes) > 4


def test_a_head_that_is_not_all_is_noticed_and_the_scores_stay_right():
    records = roll_out(tiny_model("llama"))
    expected = score(tiny_model("llama"), records)
    module = tiny_model("llama")
    module.register_forward_hook(lambda _, __, out: out.__class__(logits=out.logits * 2))
    assert not can_chunk(module, records.tokens[:3])
    torch.testing.assert_close(score(module, records, temperature=2.0), expected)


def test_a_model_in_training_mode_keeps_its_mode_and_its_random_numbers():
    module = tiny_model("gpt2").train()
    module.transformer.h[0].eval()
    before = [part.training for part in module.modules()]
    state = torch.get_rng_state()
    assert can_chunk(module, torch.tensor([[1, 2, 3, 4]]))
    assert [part.training for part in module.modules()] == before
    assert torch.equal(state, torch.get_rng_state())


def test_nothing_sampled_scores_nothing():
    module = tiny_model("llama")
    records = roll_out(module)
    data = inputs_of(records) | {"loss_mask": torch.zeros(3, LENGTH, dtype=torch.bool)}
    assert (score_tokens(module, **data) == 0).all()
