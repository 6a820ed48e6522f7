"""A training forward of somebody else's model, up to where its output head can be applied piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fnroll.models.support import max_positions, text_config

# Hidden states and logits are compared on this many tokens before the head is applied piece by piece.
_PROBE = 4
_CAN_CHUNK: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@contextmanager
def in_evaluation(module: nn.Module) -> Iterator[None]:
    """Try something without gradient, and without dropout, which would draw from the caller's generator."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


def _decoder(module: nn.Module) -> nn.Module | None:
    """Return what leaves the hidden states; None for a model that does not say what that is."""
    decoder = getattr(module, getattr(cast(Any, module), "base_model_prefix", "") or "", None)
    return decoder if isinstance(decoder, nn.Module) and decoder is not module else None


def _apply_head(module: nn.Module, hidden: Tensor) -> Tensor:
    logits: Tensor = cast(Any, module).get_output_embeddings()(hidden)
    cap = getattr(text_config(module), "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def can_chunk(module: nn.Module, ids: Tensor) -> bool:
    """Say whether a model's logits are its head applied to its hidden states, tried once on a few ids."""
    if module not in _CAN_CHUNK:
        with in_evaluation(module):
            _CAN_CHUNK[module] = _is_head_all(module, ids[:1, :_PROBE])
    return _CAN_CHUNK[module]


def _is_head_all(module: nn.Module, ids: Tensor) -> bool:
    decoder, call = _decoder(module), cast(Any, module)
    if decoder is None or getattr(call, "get_output_embeddings", lambda: None)() is None:
        return False
    hidden = getattr(decoder(input_ids=ids, use_cache=False), "last_hidden_state", None)
    if hidden is None:
        return False
    logits = call(input_ids=ids, use_cache=False, **_options(module)).logits
    return torch.allclose(_apply_head(module, hidden), logits, rtol=1e-3, atol=1e-3)


def _options(module: nn.Module) -> dict[str, Any]:
    # Not every forward takes the word, and without it a model answers as its configuration says.
    return {} if getattr(cast(Any, module).config, "return_dict", True) else {"return_dict": True}


class Forward:
    """Computes what a model leaves at each token, and logits of that.

    Args:
      module: a Hugging Face causal language model, in whatever mode it is in.
      ids: `[N, L]` int64, some tokens to try the output head on.
    """

    def __init__(self, module: nn.Module, ids: Tensor) -> None:
        self.module = module
        self.name = type(module).__name__
        self.max_positions = max_positions(text_config(module))
        self._decoder = _decoder(module) if can_chunk(module, ids) else None

    def __call__(self, ids: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return hidden states `[N, L, H]` or, where the head cannot be applied later, logits `[N, L, V]`.

        Args:
          ids: `[N, L]` int64.
          positions: `[N, L]` int64; None leaves them to the model, which counts from 0 in each row.
        """
        inputs: dict[str, Any] = {"input_ids": ids, "use_cache": False, **_options(self.module)}
        if positions is not None:
            inputs["position_ids"] = positions
        if self._decoder is None:
            logits: Tensor = self.module(**inputs).logits
            return logits
        hidden: Tensor = self._decoder(**inputs).last_hidden_state
        return hidden

    def head(self, states: Tensor) -> Tensor:
        """Return the logits `[n, V]` of what the forward left at n tokens."""
        return states if self._decoder is None else _apply_head(self.module, states)
