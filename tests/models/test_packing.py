"""Records that share a row do not see each other, whatever the architecture makes of a packed batch."""

import itertools

import pytest
import torch
import transformers

import fnroll
from fnroll.models import UnsupportedModelError, causal_lm, packing, scoring
from fnroll.models.packing import is_known_to_pack
from fnroll.models.zoo import TINY_MODELS, tiny_model
from fnroll.testing.models import tiny_causal_lm

PROMPTS = [[5, 6, 7], [9]]
LEAKY = ("gpt_oss", "opt", "biogpt", "ernie", "qwen2_vl", "qwen2_5_vl")
APART = ("llama", "qwen3", "gemma3_text")


def rolled(module, n=2, max_length=24):
    return list(fnroll.generate(module, None, PROMPTS, max_length=max_length, n=n, seed=1))


def both_scores(module, records):
    """The log-probs of all tokens of all records, padded and packed."""
    padded, packed = fnroll.to_training(records), fnroll.to_training(records, packed=True)
    alone = fnroll.score(module, padded)[padded.attention_mask.bool()]
    return alone, fnroll.score(module, packed)[0]


PAIRS = itertools.product([*LEAKY, *APART], ["eager", "sdpa"])


@pytest.mark.parametrize(("kind", "attention"), [pair for pair in PAIRS if pair != ("gpt_oss", "sdpa")])
def test_packed_scores_are_the_padded_ones(kind, attention):
    """Case fresh-02: models that build no mask from positions, and models that do."""
    module = tiny_causal_lm(kind, torch.float32)
    module.set_attn_implementation(attention)
    padded, packed = both_scores(module, rolled(module))
    assert float((padded - packed).abs().max()) <= 1e-5
    assert is_known_to_pack(module) == (kind in APART)


@pytest.mark.parametrize("kind", LEAKY)
def test_a_packed_forward_that_nobody_tried_would_leak(kind, monkeypatch):
    module = tiny_causal_lm(kind, torch.float32)
    records = rolled(module)
    monkeypatch.setattr(scoring, "can_pack", lambda forward, lines: True)
    padded, packed = both_scores(module, records)
    assert float((padded - packed).abs().max()) > 0.1


@pytest.mark.parametrize("kind", ["opt", "llama"])
def test_gradients_are_those_of_the_padded_batch(kind):
    module = tiny_causal_lm(kind)
    records = rolled(module)
    found = []
    for packed in (False, True):
        module.zero_grad()
        with torch.enable_grad():
            fnroll.score(module, fnroll.to_training(records, packed=packed)).sum().backward()
        found.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_what_was_tried_on_short_records_is_tried_again_on_longer_ones(monkeypatch):
    module, tried = tiny_model("llama"), []
    own = packing._is_apart
    monkeypatch.setattr(
        packing, "_is_apart", lambda f, lines, pair, w: tried.append(w) or own(f, lines, pair, w)
    )
    for length in (8, 12, 40):
        both_scores(module, rolled(module, max_length=length))
    assert tried == [4, 8, 4, 40]


def test_another_attention_is_tried_anew():
    module = tiny_model("llama")
    both_scores(module, rolled(module))
    assert is_known_to_pack(module)
    module.set_attn_implementation("eager")
    assert not is_known_to_pack(module)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_one_record_alone_needs_no_trial(name, monkeypatch):
    module = tiny_model(name)
    monkeypatch.setattr(packing, "_is_apart", None)
    padded, packed = both_scores(module, rolled(module, n=1)[:1])
    assert torch.allclose(padded, packed, atol=1e-6)


def test_a_model_that_looks_ahead_is_refused():
    config = transformers.BertConfig(
        vocab_size=48, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    with pytest.raises(UnsupportedModelError, match=r"BertLMHeadModel.*attends to later tokens"):
        causal_lm(transformers.BertLMHeadModel(config).eval())
