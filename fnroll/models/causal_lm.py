"""A Hugging Face causal language model as a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fnroll.core.model import Chunk, ModelFn
from fnroll.core.output import ModelOutput
from fnroll.core.types import Cache
from fnroll.models import attention
from fnroll.models.base import Model
from fnroll.models.dry_run import cache_argument, dry_run
from fnroll.models.probe import check_agreement
from fnroll.models.support import check_layers, max_positions, text_config
from fnroll.models.twin import Twin


def model_fn(twin: nn.Module) -> ModelFn:
    """Return the pure function of a twin; `params` None means the weights the twin shares."""
    argument = cache_argument(twin)

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


@dataclass(frozen=True, eq=False)
class CausalLM(Model):
    """A Hugging Face causal language model; made by `causal_lm`."""

    module: nn.Module = field(default_factory=nn.Module)
    """The caller's model, never written to."""
    weight_dtype: torch.dtype = torch.float32
    """Of the caller's first parameter, as it was when this was made."""
    mirror: Twin = field(default_factory=lambda: Twin(nn.Module()))
    """What keeps the twin in step with the caller's model."""

    @property
    def twin(self) -> nn.Module:
        """The module tree that runs: the same tensors, its own configuration."""
        return self.mirror.module

    def refresh(self) -> Sequence[str]:
        """Take up what was set on the model since the last call; return the names of that.

        Raises:
          ValueError: if the model's structure, device or dtype is no longer the one the cache was sized for.
        """
        now = next(self.module.parameters())
        if now.device != self.device or now.dtype != self.weight_dtype:
            raise ValueError(
                f"{self.name} was moved from {self.device}, {self.weight_dtype} to {now.device}, "
                f"{now.dtype}; make a new Rollout for it"
            )
        changed = self.mirror.relink()
        if changed:
            self._check_sizes()
        return changed

    def _check_sizes(self) -> None:
        found = dry_run(self.twin, self.device)
        if (found.cache_shapes, found.vocab_size) != (self.cache_shapes, self.vocab_size):
            raise ValueError(
                f"{self.name} was resized since the rollout was made, from {self.vocab_size} ids and keys "
                f"and values of {self.cache_shapes} to {found.vocab_size} and {found.cache_shapes}; make a "
                f"new Rollout for it"
            )

    def named_weights(self) -> Sequence[tuple[str, Tensor]]:
        """Return the parameters and buffers that the twin has now."""
        return [*self.twin.named_parameters(), *self.twin.named_buffers()]


def _stop_ids(module: nn.Module) -> tuple[int, ...]:
    stop = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    if stop is None:
        stop = getattr(text_config(module), "eos_token_id", None)
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
        never written, attention does not go through transformers' `AttentionInterface`, or the logits of
        unequal rows are not those of a plain forward.
    """
    check_layers(module)
    mirror = Twin(module)
    first = next(module.parameters())
    found = dry_run(mirror.module, first.device)
    generation = getattr(module, "generation_config", None)
    model = CausalLM(
        fn=model_fn(mirror.module),
        params=None,
        cache_shapes=found.cache_shapes,
        vocab_size=found.vocab_size,
        max_positions=max_positions(text_config(module)),
        dtype=found.dtype,
        device=first.device,
        stop_ids=_stop_ids(module),
        repetition_penalty=getattr(generation, "repetition_penalty", None) or 1.0,
        name=type(module).__name__,
        module=module,
        weight_dtype=first.dtype,
        mirror=mirror,
    )
    check_agreement(model, mirror.module, module)
    return model
