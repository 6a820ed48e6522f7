"""Tiny random models of many architectures, for tests: real code, weights of a few thousand numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

_VOCABULARY = 48
_POSITIONS = 64
_WINDOW = 4


def _common(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": _VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": _POSITIONS,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **more,
    }


_CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_common()),
    "qwen3": lambda: Qwen3Config(**_common(head_dim=8)),
    "gpt2": lambda: GPT2Config(
        vocab_size=_VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=_POSITIONS,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    ),
    "mistral": lambda: MistralConfig(**_common(sliding_window=_WINDOW)),
    "gemma3": lambda: Gemma3TextConfig(
        **_common(head_dim=8, sliding_window=_WINDOW, layer_types=["sliding_attention", "full_attention"])
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_common(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    ),
}  # fmt: skip

TINY_MODELS = tuple(_CONFIGS)


def tiny_model(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """Return a random causal language model in evaluation mode: V 48, 64 positions, 2 layers.

    Args:
      name: one of `TINY_MODELS`.
      dtype: of the weights.
      seed: of the weights; the global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Grouped matrix products have no float64.
        model = AutoModelForCausalLM.from_config(_CONFIGS[name](), experts_implementation="eager")
        # Weights of the usual initial size give nearly uniform logits, which would hide mistakes.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


def forward_of(model: Any) -> Callable[[list[int]], torch.Tensor]:
    """Return `ids -> logits [V]` by a full forward without cache: what the oracle asks for."""

    def forward(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        return logits

    return forward
