"""What is not a number fails by name, and alone."""

import dataclasses

import pytest
import torch

import fnroll
from fnroll.core import pool, steps
from fnroll.core.model import Chunk, write_layer
from fnroll.core.output import ModelOutput
from fnroll.models import toy_model
from fnroll.models.attention import ValueCache
from fnroll.models.causal_lm import causal_lm
from fnroll.models.zoo import tiny_model
from fnroll.rollout.cache.plan import CachePlan
from tests.core.helpers import running

POISON = 47


def poisoned(name="llama", value=torch.nan):
    model = tiny_model(name)
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = value
    return model


def prompts(count=12, sick=(0,)):
    """Return prompts with a common beginning; those of some records hold the poison, in the middle."""
    common = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]
    middle = {True: [POISON], False: [22]}
    return [
        fnroll.RolloutRecord(prompt_ids=[*common, *middle[index in sick], 3 + index], prompt_id=index)
        for index in range(count)
    ]


def bits(records):
    """Return what a rollout decides of records, to be compared bit for bit."""
    return [(r.prompt_id, r.tokens, r.loss_mask, r.log_probs, r.status, r.reason) for r in records]


def roll(model, records, calls=1, **config):
    options = {"max_length": 40, "rows": 3, "progress": False, **config}
    with fnroll.Rollout(model, None, fnroll.RolloutConfig(**options)) as rollout:
        batches = [rollout.generate(fnroll.RolloutRequest(records), seed=3) for _ in range(calls)]
    return batches


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("rows", [1, 2, 12])
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize("poll_every", [1, 4])
def test_reliability_01_a_record_that_is_not_a_number_spoils_no_other(rows, share, batching, poll_every):
    options = {"rows": rows, "share_prefixes": share, "batching": batching, "poll_every": poll_every}
    model, records = causal_lm(poisoned()), prompts()
    first, again = roll(model, records, calls=2, **options)
    healthy = roll(model, records[1:], **options)[0]
    assert (first[0].status, first[0].reason) == ("FAILED", "not_finite")
    assert first[0].error.startswith("the logits of token 19 are not finite")
    assert "(row " in first[0].error and first[0].num_sampled == 0
    assert bits(first)[1:] == bits(healthy) and bits(again) == bits(first)
    assert all(record.num_sampled for record in healthy)


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("name", ["gpt2", "qwen3", "mistral", "gemma3", "qwen3_moe"])
def test_infinities_and_other_models_too(name, value):
    model = poisoned(name, value)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    records = prompts(4, sick=(2,))
    batch = roll(model, records)[0]
    assert batch[2].reason == "not_finite" and not batch[2].num_sampled
    healthy = [record for record in records if record.prompt_id != 2]
    assert bits(r for r in batch if r.prompt_id != 2) == bits(roll(model, healthy)[0])


def test_a_weight_that_is_nan_fails_every_record_and_is_named_before_the_first_step():
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.warns(UserWarning, match=r"layers\.1\.mlp\.up_proj\.weight"):
        batch = roll(model, prompts(2))[0]
    assert {str(record.reason) for record in batch} == {"not_finite"}
    training = fnroll.to_training(list(batch))
    assert not training.loss_mask.any()


def broken_at(model, position, logit):
    """The toy, whose logits are something else where the token at a position is drawn, for records of 9."""

    def fn(params, chunk, cache):
        output = model.fn(params, chunk, cache)
        first = output.cache.keys[0][:, 0, 0, 0][: len(output.logits)]
        sick = (first == 9) & (chunk.positions[:, -1] + 1 == position)
        return ModelOutput(logits=torch.where(sick[:, None], logit, output.logits), cache=output.cache)

    return dataclasses.replace(model, fn=fn)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logit", [torch.nan, torch.inf, -torch.inf])
def test_tokens_before_the_failure_stay_with_their_log_probs(logit, temperature):
    toy = toy_model(31, sharpness=0.2, stop_ids=(30,))
    records = [fnroll.RolloutRecord(prompt_ids=[9 - index, 4], prompt_id=index) for index in range(3)]
    sampling = fnroll.SamplingConfig(temperature=temperature)
    config = fnroll.RolloutConfig(max_length=12, rows=2, progress=False)
    with fnroll.Rollout(broken_at(toy, 5, logit), None, config) as rollout:
        batch = rollout.generate(fnroll.RolloutRequest(records), sampling)
    with fnroll.Rollout(toy, None, config) as rollout:
        plain = rollout.generate(fnroll.RolloutRequest(records), sampling)
    assert bits(batch)[1:] == bits(plain)[1:]
    assert batch[0].tokens == plain[0].tokens[:5] and batch[0].log_probs == plain[0].log_probs[:5]
    assert (batch[0].status, batch[0].num_sampled) == ("FAILED", 3)
    assert fnroll.to_training(list(batch)).loss_mask.sum() == sum(record.num_sampled for record in batch)


def test_what_is_not_finite_is_never_in_the_cache():
    """Neither tokens before it nor the row's next record could attend around it: 0 times NaN is NaN."""
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    chunk = Chunk(tokens=tokens, start=torch.tensor([2]), slots=torch.tensor([[2]]), rows=None, window=4)
    for value in (torch.nan, torch.inf, -torch.inf):
        new = torch.ones(1, 1, 2, 3)
        new[0, 0, 1, 2] = value
        written = write_layer(torch.zeros(1, 6, 2, 3), new, chunk)
        assert written[0, 2].tolist() == [[1, 1, 1], [1, 1, 0]] and not written[0, [0, 1, 3, 4, 5]].any()


def test_an_infinity_in_keys_alone_fails_the_record():
    """Its score is -inf, and no logit would tell."""
    model = tiny_model("llama")
    healthy = causal_lm(model)
    with torch.no_grad():
        model.model.layers[0].input_layernorm.weight *= 1e10
        model.model.layers[0].self_attn.k_proj.weight *= 1e300
        model.model.layers[0].self_attn.q_proj.weight *= 0.0
    batch = roll(healthy, prompts(2))[0]
    assert {str(record.reason) for record in batch} == {"not_finite"}


def all_copies_are_sound(state, source, entries):
    return state.rows.sound


def nothing_is_reported(cache):
    return None


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (CachePlan, "forget", lambda plan, rows: None),
        (pool, "_sound_of", all_copies_are_sound),
        (ValueCache, "is_finite", nothing_is_reported),
    ],
)
def test_planted_mistakes_are_caught(monkeypatch, owner, name, mistake):
    """A failed record's prefix is used; what is not finite is copied unseen, or is never reported."""
    monkeypatch.setattr(owner, name, mistake)
    records = [*prompts(3), *(record.replace(prompt_id=9 + i) for i, record in enumerate(prompts(3)))]
    for rows in (1, 6):
        batch = roll(causal_lm(poisoned()), records, rows=rows)[0]
        if [record.reason == "not_finite" for record in batch] != [True, False, False] * 2:
            return
    pytest.fail("the mistake was not seen")


def test_a_failed_row_draws_nothing_more_before_it_is_retired():
    model, state = running(rows=2)
    logits, state = steps.extend(model.params, state, model=model.fn, window=16)
    failed = steps.sample(state, torch.full_like(logits, torch.nan))
    assert failed.records.length.tolist() == state.records.length.tolist()
    assert steps.sample(failed, logits).records.length.tolist() == state.records.length.tolist()
    retired, ended = steps.retire(failed)
    assert (ended >= 0).all() and (retired.rows.record == -1).all()
