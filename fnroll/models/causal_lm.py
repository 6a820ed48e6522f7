"""A Hugging Face causal language model as a pure function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.cache_utils import Cache as TransformersCache

from fnroll.core.model import Chunk, ModelFn
from fnroll.core.output import ModelOutput
from fnroll.core.types import Cache
from fnroll.models import attention
from fnroll.models.base import Model
from fnroll.models.twin import make_twin, relink

_ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


class UnsupportedModelError(ValueError):
    """A model that cannot be driven over a cache of keys and values."""


def _text_config(module: nn.Module) -> Any:
    config: Any = module.config
    return config.get_text_config(decoder=True)


def check_layers(module: nn.Module) -> None:
    """Refuse a model whose layers keep something else than keys and values.

    Raises:
      UnsupportedModelError: naming the layers.
    """
    name, config = type(module).__name__, _text_config(module)
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    other = [f"{index} ({kind})" for index, kind in enumerate(kinds) if kind not in _ATTENTION_LAYERS]
    if not other and getattr(module, "_is_stateful", False):
        other = [path for path, _ in module.named_modules() if path.split(".")[-1].isdigit()] or ["all"]
    if other:
        raise UnsupportedModelError(
            f"{name}: layers {', '.join(other)} keep a recurrent or other state besides keys and values, "
            f"which padding and reuse of rows would corrupt; only attention layers are supported "
            f"({', '.join(sorted(_ATTENTION_LAYERS))})"
        )


def max_positions(config: Any) -> int | None:
    """Return how many positions a model computes alike whatever else is in the batch; None for no bound.

    With rotary factors that change with the longest position in the batch (longrope), a record would depend
    on its neighbours beyond the length of the first factors.
    """
    bound: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    for part in parts:
        if part.get("rope_type") == "longrope":
            first = part.get("original_max_position_embeddings")
            first = first or getattr(config, "original_max_position_embeddings", None)
            bound = first if bound is None or first is None else min(bound, first)
    return bound


class _ShapeRecorder(TransformersCache):
    """Stands in for the cache in a dry run and keeps what each layer hands over."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(layers=[])
        self.seen: dict[int, tuple[Tensor, Tensor]] = {}
        self.start = torch.zeros(1, dtype=torch.int64, device=device)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        self.seen[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_query_offset(self, layer_idx: int = 0) -> Tensor:
        return self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def _cache_argument(module: nn.Module) -> str:
    # transformers renamed `past_key_values` to `cache` in 5.2x.
    return "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"


def model_fn(twin: nn.Module) -> ModelFn:
    """Return the pure function of a twin; `params` None means the weights the twin shares."""
    argument = _cache_argument(twin)

    def fn(params: Mapping[str, Tensor] | None, chunk: Chunk, cache: Cache) -> ModelOutput:
        view = attention.ValueCache(cache, chunk)
        inputs = {
            "input_ids": chunk.tokens,
            "position_ids": chunk.positions,
            "use_cache": True,
            "logits_to_keep": 1 if chunk.needs_logits else chunk.tokens.new_empty(0),
            argument: view,
        }
        out = twin(**inputs) if params is None else functional_call(twin, dict(params), (), inputs)
        return ModelOutput(logits=_last(out.logits, chunk), cache=view.value(), is_finite=view.is_finite())

    return fn


def _last(logits: Tensor, chunk: Chunk) -> Tensor:
    """Return those of the last column, or zeros where the head had nothing to do, `[A, V]`."""
    if chunk.needs_logits:
        return logits[:, -1]
    return logits.new_zeros(1).expand(chunk.tokens.shape[0], logits.shape[-1])


def _set_attention(twin: nn.Module, implementation: str) -> None:
    own: Any = twin.config
    for config in {id(c): c for c in (own, _text_config(twin))}.values():
        config._attn_implementation = implementation


def _dry_run(twin: nn.Module, device: torch.device) -> tuple[Any, Tensor]:
    recorder = _ShapeRecorder(device)
    one = torch.zeros((1, 1), dtype=torch.int64, device=device)
    with torch.no_grad():
        inputs = {"input_ids": one, "position_ids": one, "use_cache": True, _cache_argument(twin): recorder}
        out = twin(**inputs)
    return recorder, out.logits


@dataclass(frozen=True, eq=False)
class CausalLM(Model):
    """A Hugging Face causal language model; made by `causal_lm`."""

    module: nn.Module = field(default_factory=nn.Module)
    """The caller's model, never written to."""
    weight_dtype: torch.dtype = torch.float32
    """Of the caller's first parameter, as it was when this was made."""
    twin: nn.Module = field(default_factory=nn.Module)
    """The module tree that runs: the same tensors, its own configuration."""

    def refresh(self) -> Sequence[str]:
        """Take up parameters that were replaced since the last call; return the names of those.

        Raises:
          ValueError: if the model's structure, device or dtype is no longer the one the cache was sized for.
        """
        now = next(self.module.parameters())
        if now.device != self.device or now.dtype != self.weight_dtype:
            raise ValueError(
                f"{self.name} was moved from {self.device}, {self.weight_dtype} to {now.device}, "
                f"{now.dtype}; make a new Rollout for it"
            )
        return relink(self.twin, self.module)

    def named_weights(self) -> Sequence[tuple[str, Tensor]]:
        """Return the parameters and buffers that the twin shares with the caller's model now."""
        return [*self.twin.named_parameters(), *self.twin.named_buffers()]


def _stop_ids(module: nn.Module) -> tuple[int, ...]:
    stop = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    if stop is None:
        stop = getattr(_text_config(module), "eos_token_id", None)
    if stop is None:
        return ()
    return tuple(stop) if isinstance(stop, list | tuple) else (int(stop),)


def causal_lm(module: nn.Module) -> CausalLM:
    """Return a Hugging Face causal language model as a pure function over a cache value.

    The sizes of the cache come from a dry run of one token, not from the configuration, which not every
    architecture keeps to.

    Args:
      module: a `...ForCausalLM`; its mode, configuration, hooks and weights stay as they are.

    Raises:
      UnsupportedModelError: if a layer keeps something else than keys and values, a layer of the cache is
        never written, or attention does not go through transformers' `AttentionInterface`.
    """
    check_layers(module)
    twin = make_twin(module)
    device = next(module.parameters()).device
    _set_attention(twin, attention.DRY_RUN)
    recorder, logits = _dry_run(twin, device)
    _set_attention(twin, attention.IMPLEMENTATION)
    layers = sorted(recorder.seen)
    if layers != list(range(len(layers))) or not layers:
        raise UnsupportedModelError(
            f"{type(module).__name__}: only layers {layers} write keys and values; every layer must"
        )
    if sum(map(attention.count_attended, twin.modules())) < len(layers):
        raise UnsupportedModelError(
            f"{type(module).__name__}: its layers attend by code of their own and not through transformers' "
            f"AttentionInterface, so their masks would be wrong over a cache of unequal rows"
        )
    keys = [recorder.seen[layer] for layer in layers]
    generation = getattr(module, "generation_config", None)
    return CausalLM(
        fn=model_fn(twin),
        params=None,
        cache_shapes=tuple((k.shape[1], k.shape[-1], v.shape[-1]) for k, v in keys),
        vocab_size=logits.shape[-1],
        max_positions=max_positions(_text_config(module)),
        dtype=keys[0][0].dtype,
        device=device,
        stop_ids=_stop_ids(module),
        repetition_penalty=getattr(generation, "repetition_penalty", None) or 1.0,
        name=type(module).__name__,
        module=module,
        weight_dtype=next(module.parameters()).dtype,
        twin=twin,
    )
