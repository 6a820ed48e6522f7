"""Real weights: what a rollout records is what a training forward computes."""

import functools

import pytest
import torch

import fnroll
from fnroll.core.logits import process
from fnroll.models.smollm2 import load_smollm2
from tests.core.test_logits import params

QUESTIONS = ("What is the capital of Japan?", "Name three animals that can fly.", "Write a haiku.")


@functools.cache
def smollm2():
    return load_smollm2()


def roll_out(**sampling):
    model, tokenizer = smollm2()
    return fnroll.generate(
        model, tokenizer, QUESTIONS, max_length=96, n=2, rows=4, max_new_tokens=32, seed=3, **sampling
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8, "top_k": 40, "top_p": 0.9}], ids=["plain", "cut"]
)
def test_log_probs_are_those_of_a_training_forward(options):
    """Case logprob-01, and on-policy exactness: at most 2e-4 in float32."""
    model, _ = smollm2()
    worst = 0.0
    for record in roll_out(**options):
        ids = torch.tensor([record.tokens])
        logits = model(ids, use_cache=False).logits[0, :-1]
        scores = process(logits, params(len(logits), **options), None)
        expected = scores.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        mask = torch.tensor(record.loss_mask[1:])
        recorded = torch.tensor(record.log_probs[1:])
        worst = max(worst, float((recorded - expected)[mask].abs().max()))
    assert worst <= 2e-4, worst


@pytest.mark.slow
def test_greedy_answers_are_those_of_generate():
    model, tokenizer = smollm2()
    for record in roll_out(temperature=0.0)[::2]:
        prompt = torch.tensor([record.tokens[: record.prompt_length]])
        out = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=32, do_sample=False, pad_token_id=2
        )
        assert out[0].tolist() == list(record.tokens)
        assert record.response == tokenizer.decode(record.response_ids)


@pytest.mark.slow
def test_rows_and_batching_change_no_token():
    first = roll_out()
    model, tokenizer = smollm2()
    config = fnroll.RolloutConfig(max_length=96, rows=2, batching="static", poll_every=4)
    request = fnroll.RolloutRequest([fnroll.RolloutRecord(messages=[_ask(text)]) for text in QUESTIONS], 2)
    with fnroll.Rollout(model, tokenizer, config) as rollout:
        second = rollout.generate(request, fnroll.SamplingConfig(max_new_tokens=32), seed=3)
    for a, b in zip(first, second, strict=True):
        assert a.tokens == b.tokens and a.reason == b.reason
        assert max(abs(x - y) for x, y in zip(a.log_probs, b.log_probs, strict=True)) < 1e-4


def _ask(text):
    return {"role": "user", "content": text}
