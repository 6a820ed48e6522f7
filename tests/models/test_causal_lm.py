"""Hugging Face models as pure functions: equal to `generate()` and to a full forward, or refused."""

import copy
import functools
import inspect

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from fnroll import Rollout, RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.models import UnsupportedModelError, causal_lm
from fnroll.models.zoo import TINY_MODELS, _common, tiny_model
from tests.models.helpers import PROMPTS, engine, request, roll, same_tokens, worst_error

_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = _common(
    num_key_value_heads=4,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    qk_rope_head_dim=4,
    v_head_dim=12,
    n_routed_experts=4,
    n_shared_experts=1,
    first_k_dense_replace=1,
    topk_group=1,
    **_EXPERTS,
)
_MIXED = {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_LINEAR = {
    "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

MORE_MODELS = {
    "gemma2, capped scores": lambda: transformers.Gemma2Config(
        **_common(**_MIXED, attn_logit_softcapping=2.0, final_logit_softcapping=5.0)
    ),
    "gpt-oss, sinks": lambda: transformers.GptOssConfig(
        **_common(**_MIXED, num_local_experts=4, num_experts_per_tok=2)
    ),
    "phi3, fused projections": lambda: transformers.Phi3Config(**_common()),
    "olmo2, norms after attention": lambda: transformers.Olmo2Config(**_common()),
    "deepseek-v2, latent attention": lambda: transformers.DeepseekV2Config(
        **_LATENT, q_lora_rank=None, n_group=1
    ),
    "deepseek-v3, latent attention": lambda: transformers.DeepseekV3Config(
        **_LATENT, q_lora_rank=16, n_group=2
    ),
    "llama4, chunked attention": lambda: transformers.Llama4TextConfig(
        **_common(
            head_dim=8,
            intermediate_size_mlp=48,
            attention_chunk_size=4,
            num_local_experts=2,
            num_experts_per_tok=1,
            layer_types=["chunked_attention", "full_attention"],
        )
    ),
}

STATEFUL_MODELS = {
    "layers 0 (linear_attention) keep": lambda: transformers.Qwen3NextConfig(
        **_common(**_LINEAR, num_experts=4, shared_expert_intermediate_size=16, **_EXPERTS)
    ),
    "layers 0 (conv) keep": lambda: transformers.Lfm2Config(
        **_common(layer_types=["conv", "full_attention"])
    ),
    "layers 0 (linear_attention), 1 (linear_attention) keep": lambda: transformers.MambaConfig(
        vocab_size=48, hidden_size=32, state_size=4, num_hidden_layers=2
    ),
    "layers rwkv.blocks.0, rwkv.blocks.1 keep": lambda: transformers.RwkvConfig(
        vocab_size=48, hidden_size=32, num_hidden_layers=2
    ),
}

OWN_ATTENTION = {
    "Bloom": lambda: transformers.BloomConfig(vocab_size=48, hidden_size=32, n_layer=2, n_head=4),
    "GPTNeo": lambda: transformers.GPTNeoConfig(
        vocab_size=48,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=4,
        max_position_embeddings=64,
    ),
}


def build(config, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config(), experts_implementation="eager")
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


@functools.cache
def shared(name, dtype=torch.float64):
    return tiny_model(name, dtype)


def generate(module, prompts, pad_id, new=12, **options):
    """Greedy `generate()` over left-padded rows, without what it appends after a stop id."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts])
    out = module.generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=new, pad_token_id=pad_id, **options
    )
    found = []
    for prompt, row in zip(prompts, out[:, width:].tolist(), strict=True):
        end = row.index(2) + 1 if 2 in row else len(row)
        found.append((*prompt, *row[:end]))
    return found


@pytest.mark.parametrize("penalty", [1.0, 1.5])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_greedy_tokens_equal_generate_alone_and_padded(name, penalty):
    """`generate()` counts pad ids as history, so the padded batch uses a pad id that every prompt holds."""
    module = shared(name)
    batch = roll(module, temperature=0.0, repetition_penalty=penalty, max_new_tokens=12)
    tokens = [record.tokens for record in batch]
    alone = [generate(module, [ids], 0, repetition_penalty=penalty)[0] for ids in PROMPTS]
    assert tokens == alone
    assert tokens == generate(module, list(PROMPTS), pad_id=5, repetition_penalty=penalty)


def test_the_penalty_and_its_default_from_the_generation_config():
    module = tiny_model("llama")
    plain = roll(module, temperature=0.0, max_new_tokens=12)
    module.generation_config.repetition_penalty = 1.5
    own = roll(module, temperature=0.0, max_new_tokens=12)
    assert [record.tokens for record in own] == [generate(module, [ids], 0)[0] for ids in PROMPTS]
    assert not same_tokens(plain, own)
    assert same_tokens(plain, roll(module, temperature=0.0, max_new_tokens=12, repetition_penalty=1.0))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.float32, 2e-4)])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_log_probs_equal_a_training_forward(name, dtype, tolerance):
    """Case logprob-01: under the distribution that was drawn from, at a temperature other than 1."""
    module = shared(name, dtype)
    for temperature in (1.0, 0.6):
        batch = roll(module, n=2, temperature=temperature)
        assert worst_error(module, batch, temperature) <= tolerance


@pytest.mark.parametrize("name", MORE_MODELS)
def test_other_architectures_equal_a_training_forward(name):
    module = build(MORE_MODELS[name])
    batch = roll(module, n=2)
    # Far beyond the windows of 4.
    assert max(record.num_sampled for record in batch) > 8
    assert worst_error(module, batch) <= 1e-5


def test_latent_attention_keeps_what_it_caches_and_not_its_heads():
    model = causal_lm(build(MORE_MODELS["deepseek-v3, latent attention"]))
    assert model.cache_shapes == ((1, 16, 4), (1, 16, 4))


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_a_record_longer_than_its_sliding_window(name):
    """Case cache-02: windows of 4; prompts of 10 and 1, 14 and more tokens decoded."""
    module = shared(name)
    batch = roll(module, n=3, max_length=48, temperature=0.0)
    assert max(len(record.tokens) for record in batch) >= 24
    assert [record.tokens for record in batch[::3]] == [
        generate(module, [ids], 0, new=48 - len(ids))[0] for ids in PROMPTS
    ]
    # The window matters: without it the same weights say something else.
    wide = copy.deepcopy(module)
    wide.config.sliding_window = 64
    assert worst_error(module, batch) <= 1e-5 < 1e-2 < worst_error(wide, batch)


SPELLINGS = inspect.signature(LlamaForCausalLM.forward).parameters
SPELLING = "cache" if "cache" in SPELLINGS else "past_key_values"


@pytest.mark.parametrize("name", [*TINY_MODELS, *MORE_MODELS])
def test_the_output_head_reads_only_what_is_sampled_from(name):
    module = shared(name) if name in TINY_MODELS else build(MORE_MODELS[name])
    with engine(module, max_length=16, rows=2) as rollout:
        seen = []
        head = rollout.model.twin.get_output_embeddings()
        head.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0].shape[:-1].numel()))
        rollout.generate(request([[3, 4, 5, 6], [7, 8]]), SamplingConfig(max_new_tokens=3))
    # A prefill for both rows, then three steps of two rows.
    assert seen == [0, 2, 2, 2]


class OlderLlama(LlamaForCausalLM):
    """The signature that transformers had before `past_key_values` became `cache`."""

    def forward(
        self, input_ids=None, position_ids=None, past_key_values=None, use_cache=None, logits_to_keep=0
    ):
        assert past_key_values is not None
        return super().forward(
            input_ids,
            position_ids=position_ids,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **{SPELLING: past_key_values},
        )


def test_both_spellings_of_the_cache():
    module = tiny_model("llama")
    older = OlderLlama(module.config).double().eval()
    older.load_state_dict(module.state_dict())
    assert roll(older, n=2).records == roll(module, n=2).records


@pytest.mark.parametrize("layers", STATEFUL_MODELS)
def test_a_recurrent_model_is_refused_with_its_layers_named(layers):
    module = build(STATEFUL_MODELS[layers], torch.float32)
    with pytest.raises(UnsupportedModelError) as refused:
        causal_lm(module)
    assert type(module).__name__ in str(refused.value) and layers in str(refused.value)


@pytest.mark.parametrize("name", OWN_ATTENTION)
def test_a_model_that_attends_by_its_own_code_is_refused(name):
    """It would read a boolean mask as numbers to add, and be wrong by nats without an error."""
    with pytest.raises(UnsupportedModelError, match=rf"{name}ForCausalLM.*AttentionInterface"):
        causal_lm(build(OWN_ATTENTION[name]))


def test_what_is_known_of_the_model():
    module = tiny_model("llama")
    module.generation_config.eos_token_id = [2, 9]
    model = causal_lm(module)
    assert (model.vocab_size, model.max_positions, model.stop_ids) == (48, 64, (2, 9))
    assert (model.dtype, model.repetition_penalty, model.name) == (torch.float64, 1.0, "LlamaForCausalLM")
    assert model.cache_shapes == ((2, 8, 8), (2, 8, 8))
    cache = model.init_cache(3, 10)
    assert [leaf.shape for leaf in (*cache.keys, *cache.values)] == [torch.Size([3, 11, 2, 8])] * 4


def test_longrope_is_bounded_by_its_first_factors():
    """Beyond them the factors follow the longest position in the batch, and so would the records."""
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 8,
    }  # fmt: skip
    config = transformers.Phi3Config(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, original_max_position_embeddings=8,
        rope_parameters=rope, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    module = transformers.AutoModelForCausalLM.from_config(config).double().eval()
    assert causal_lm(module).max_positions == 8
    with pytest.raises(ValueError, match="has positions for at most 8 tokens"):
        Rollout(module, None, RolloutConfig(max_length=20))
    records = [RolloutRecord(prompt_ids=ids) for ids in ([5, 6, 7], [9], [1, 2, 3, 4])]
    batches = [
        Rollout(module, None, RolloutConfig(max_length=8, rows=rows)).generate(RolloutRequest(records))
        for rows in (1, 3)
    ]
    assert [r.tokens for r in batches[0]] == [r.tokens for r in batches[1]]
