"""Small states for the tests of the core."""

import torch

from fnroll.core import steps
from fnroll.core.pool import init_pool
from fnroll.core.rng import init_keys
from fnroll.core.tree import tree_leaves
from fnroll.core.types import init_state
from fnroll.models import toy_model


def toy_state(
    prompts=((1, 2, 3), (4,), (5, 6)),
    *,
    rows=2,
    lines=4,
    max_length=16,
    stop_ids=(0,),
    limit=16,
    slots=0,
    **more,
):
    """Return the toy model and a state in which `prompts` are queued."""
    model = toy_model(13, stop_ids=stop_ids)
    cache, stops = model.init_cache(rows, max_length), torch.tensor(stop_ids)
    state = init_state(cache, num_records=lines, stop_ids=stops, pool=init_pool(cache, slots), **more)
    return model, enqueue(state, range(len(prompts)), prompts, limit)


def enqueue(state, lines, prompts, limit):
    width = max(map(len, prompts))
    tokens = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
    count = torch.tensor([len(prompt) for prompt in prompts])
    line = torch.tensor(list(lines))
    keys = init_keys(0, 0, line, torch.zeros_like(line))
    return steps.enqueue(state, line, tokens, count, torch.full_like(count, limit), keys)


def prefill_all(model, state, window=16):
    rows = torch.arange(state.num_rows)
    return steps.prefill(model.params, state, rows, model=model.fn, width=8, window=window)


def running(**options):
    """Return the toy model and a state whose rows are admitted and prefilled."""
    model, state = toy_state(**options)
    state, _ = steps.admit(state)
    return model, prefill_all(model, state)


def unsunk(state):
    """Return the state without its sink lines and slots, whose content means nothing."""
    records = [leaf[:-1] for leaf in tree_leaves(state.records)]
    layers = (state.cache, (state.pool.keys, state.pool.values)) if state.pool else (state.cache,)
    pool = [leaf[:-1] for leaf in (state.pool.owner, state.pool.length)] if state.pool else []
    cached = [leaf[:, :-1] for leaf in tree_leaves(layers)]
    return [*records, *cached, *pool, *tree_leaves(state.rows), state.queue.ticket[:-1]]
