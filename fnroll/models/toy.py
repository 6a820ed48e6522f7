"""A model whose answers can be worked out by hand, with a cache that shows every bookkeeping mistake."""

from __future__ import annotations

import torch
from torch import Tensor

from fnroll.core.model import Chunk, read_layer, write_layer
from fnroll.core.output import ModelOutput
from fnroll.core.tree import replace
from fnroll.core.types import Cache
from fnroll.models.base import Model


def toy_logits(tokens: list[int], vocab_size: int, sharpness: float = 1.0) -> list[float]:
    """Return the toy model's logits after `tokens`, in plain Python: the answer it must give.

    The likeliest next token is `sum((i + 1) * token_i) + length`, modulo the vocabulary; the logit falls
    by `sharpness` for each step away from it around the circle of ids.
    """
    peak = (sum((i + 1) * token for i, token in enumerate(tokens)) + len(tokens)) % vocab_size
    distance = [abs(v - peak) for v in range(vocab_size)]
    return [-sharpness * min(d, vocab_size - d) for d in distance]


def toy_model(
    vocab_size: int = 16,
    *,
    sharpness: float = 1.0,
    stop_ids: tuple[int, ...] = (0,),
    dtype: torch.dtype = torch.float64,
) -> Model:
    """Return the toy model.

    Its one layer caches the token as the key and its position as the value, so a wrong slot, a stale
    entry, a token fed twice or a shifted position all change the answer. Its parameter, `[1]`, is the
    sharpness.

    Args:
      vocab_size: V.
      sharpness: how fast a logit falls with the distance from the likeliest token; 0 is uniform.
      stop_ids: ids that end a turn.
      dtype: of cache and logits.
    """

    def fn(params: Tensor, chunk: Chunk, cache: Cache) -> ModelOutput:
        tokens = chunk.tokens[:, :, None, None].to(dtype)
        positions = chunk.positions[:, :, None, None].to(dtype)
        keys = write_layer(cache.keys[0], tokens, chunk)
        values = write_layer(cache.values[0], positions, chunk)
        token = read_layer(keys, chunk)[:, :, 0, 0]
        weight = read_layer(values, chunk)[:, :, 0, 0] + 1
        last = chunk.positions[:, -1]
        seen = torch.arange(chunk.window, device=token.device) <= last[:, None]
        peak = torch.where(seen, token * weight, 0.0).sum(dim=-1) + last + 1
        distance = (torch.arange(vocab_size, device=token.device) - peak[:, None]).abs() % vocab_size
        logits = -params * torch.minimum(distance, vocab_size - distance)
        return ModelOutput(logits=logits, cache=replace(cache, keys=(keys,), values=(values,)))

    return Model(
        fn=fn,
        params=torch.tensor([sharpness], dtype=dtype),
        cache_shapes=((1, 1, 1),),
        vocab_size=vocab_size,
        dtype=dtype,
        stop_ids=stop_ids,
        name="toy",
    )
