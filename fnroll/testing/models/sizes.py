"""A configuration of a few thousand weights for every causal language model of transformers."""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING

VOCABULARY = 48
POSITIONS = 64
_WINDOW = 4


def _each(names: str, value: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), value)


# What configurations call the sizes that they have. A record of the sweep is longer than any window here.
_SIZES = {
    **_each("vocab_size vocab_size_per_layer_input unpadded_vocab_size ngram_vocab_size_base", VOCABULARY),
    **_each("pronunciation_vocab_size shape_vocab_size type_vocab_size", 4),
    **_each(
        "hidden_size d_model n_embd emb_dim embedding_size word_embed_proj_dim input_embedding_size "
        "output_embedding_size attention_hidden_size lru_width embedding_dim dim_model_base embed_dim "
        "mamba_d_ssm ple_embed_dim cross_attention_hidden_size pronunciation_embed_dim shape_embed_dim",
        32,
    ),
    **_each(
        "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_inner dff dim_ff ffn_hidden_size "
        "expert_ffn_hidden_size intermediate_size_mlp dense_intermediate_size feed_forward_size mlp_dim",
        48,
    ),
    **_each(
        "moe_intermediate_size shared_expert_intermediate_size shared_experts_intermediate_size "
        "shared_intermediate_size moe_shared_expert_intermediate_size hidden_size_per_layer_input d_rel "
        "router_hidden_size laurel_rank hc_lowrank o_lora_rank loop_gate_rank adapter_rank gated_norm_rank",
        16,
    ),
    **_each(
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_blocks "
        "num_encoder_layers num_decoder_layers num_layers_per_stack depth num_global_layers",
        2,
    ),
    **_each(
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads "
        "num_encoder_attention_heads num_decoder_attention_heads attention_heads swa_num_attention_heads "
        "linear_num_heads index_n_heads",
        4,
    ),
    **_each(
        "num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads "
        "linear_num_value_heads num_query_groups",
        2,
    ),
    **_each(
        "head_dim swa_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim kv_channels d_head "
        "dim_head attention_head_size attention_head_dim index_head_dim global_head_dim",
        8,
    ),
    **_each("rotary_dim qk_nope_head_dim qk_rope_head_dim hc_mult hc_count", 4),
    **_each("kv_lora_rank q_lora_rank", 16),
    **_each("qk_head_dim", 8),
    **_each("v_head_dim", 12),
    **_each("num_experts n_routed_experts num_local_experts moe_num_experts zero_expert_num", 4),
    **_each("num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts", 2),
    **_each("n_shared_experts num_shared_experts moe_num_shared_experts", 1),
    **_each("n_group topk_group num_expert_group first_k_dense_replace num_nextn_predict_layers", 1),
    **_each(
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions context_length "
        "model_max_length",
        POSITIONS,
    ),
    **_each(
        "sliding_window sliding_window_size attention_chunk_size window_size attention_window_size "
        "local_attention",
        _WINDOW,
    ),
    **_each("index_topk rel_extent chunk_size mamba_chunk_size block_size keep_window_size", 16),
    **_each("ssm_state_size mamba_d_state state_size conv_kernel", 4),
    **_each("image_size", 16),
    **_each("patch_size", 8),
}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_MIXED = ("layer_types", "mlp_layer_types", "indexer_types")
"""Lists with an entry a layer, of which the first two kinds are taken."""

_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16}
_HEAD = {"head_dim": 8}
_PER_LAYER = {"per_layer_config": None}
_ASSISTANT = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_SECTIONS = {**_ROPE, "mrope_section": [1, 1, 2]}

_OWN: dict[str, dict[str, Any]] = {
    "bamba": _MAMBA,
    "blt": {"encoder_hash_byte_group_vocab": 16},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dory": {
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_audio": {"adapter_in_dim": 32},
    "dots3_note_text": {**_PER_LAYER, **_HEAD},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 1,
        "intermediate_size": 48,
        "layer_types": ["full_attention"] * 4,
    },
    "gemma4_assistant": {"backbone_hidden_size": 32},
    "gemma4_text": _PER_LAYER,
    "gemma4_unified_assistant": {"backbone_hidden_size": 32},
    "gemma4_unified_text": _PER_LAYER,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": _MAMBA,
    "hunyuan_v1_dense": _HEAD,
    "hunyuan_v1_moe": _HEAD,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, **_HEAD},
    "ministral": _HEAD,
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1},
    "qwen2_5_vl_text": {"rope_parameters": _SECTIONS},
    "qwen2_vl_text": {"rope_parameters": _SECTIONS},
    "qwen4_exp_text": {"layer_types": ["linear_attention"] * 2},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}
"""What the table does not know, by kind of model."""

_START = {"gemma4_assistant": {"text_config": {"model_type": "gemma4_text", **_ASSISTANT}}}
"""Without which a default configuration cannot be made."""


def _sizes(default: Any) -> dict[str, Any]:
    """Return what makes a configuration and its parts tiny."""
    fields = default.to_dict()
    # A size of 0 says that there is no such part.
    values: dict[str, Any] = {
        name: size if fields[name] else 0 for name, size in _SIZES.items() if type(fields.get(name)) is int
    }
    values |= _IDS
    for name in _MIXED:
        kinds = list(dict.fromkeys(fields.get(name) or ()))
        if len(kinds) > 1:
            values[name] = kinds[:2]
    if "kv_lora_rank" in values:  # latent attention groups no queries
        values["num_key_value_heads"] = values["num_attention_heads"]
        values["head_dim"] = values["qk_rope_head_dim"]
    if fields.get("is_decoder") is False and not fields.get("is_encoder_decoder"):
        values["is_decoder"] = True
    for name in default.sub_configs:
        if isinstance(fields.get(name), dict):
            part = getattr(default, name)
            values[name] = {"model_type": part.model_type, **_sizes(part)}
    return values | _OWN.get(default.model_type, {})


def tiny_config(kind: str) -> Any:
    """Return a configuration of that kind of model with two layers of few weights."""
    default = CONFIG_MAPPING[kind](**_START.get(kind, {}))
    return type(default)(**_sizes(default))
