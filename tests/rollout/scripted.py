"""A model that follows scripts, so that every length and every end is known beforehand."""

import torch

from fnroll.core.model import read_layer, write_layer
from fnroll.core.output import ModelOutput
from fnroll.core.tree import replace
from fnroll.models import Model


def forced_model(scripts, vocab_size=32, stop_ids=(0,), forwards=None):
    """Return a model that goes on after a prompt's first id, which names the script, with its tokens.

    After the script's end it says 1 for ever. `forwards`, a list, takes rows and columns of every forward.
    """

    def fn(params, chunk, cache):
        if forwards is not None:
            forwards.append(chunk.tokens.shape)
        keys = write_layer(cache.keys[0], chunk.tokens[:, :, None, None].double(), chunk)
        first = read_layer(keys, chunk)[:, 0, 0, 0].long().tolist()
        logits = torch.zeros(chunk.tokens.shape[0], vocab_size, dtype=torch.float64)
        for row, (script, position) in enumerate(zip(first, chunk.positions[:, -1].tolist(), strict=True)):
            tokens = scripts.get(script, [])
            logits[row, tokens[position] if position < len(tokens) else 1] = 50.0
        return ModelOutput(logits=logits, cache=replace(cache, keys=(keys,)))

    return Model(
        fn=fn,
        params=None,
        cache_shapes=((1, 1, 1),),
        vocab_size=vocab_size,
        dtype=torch.float64,
        stop_ids=stop_ids,
        name="scripted",
    )
