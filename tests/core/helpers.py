"""Small states for the tests of the core."""

import torch

from fnroll.core import steps
from fnroll.core.rng import init_keys
from fnroll.core.types import init_state
from fnroll.models import toy_model


def toy_state(prompts=((1, 2, 3), (4,), (5, 6)), *, rows=2, lines=4, max_length=16, stop_ids=(0,), limit=16):
    """Return the toy model and a state in which `prompts` are queued."""
    model = toy_model(13, stop_ids=stop_ids)
    state = init_state(model.init_cache(rows, max_length), num_records=lines, stop_ids=torch.tensor(stop_ids))
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
