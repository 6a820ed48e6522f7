"""Positions and caches of real architectures: unequal rows, returning turns, keys and values that move."""

import pytest
import torch

from fnroll.core import pool as pools
from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.pool import init_pool
from fnroll.core.rng import init_keys
from fnroll.core.tree import replace
from fnroll.core.types import init_state
from fnroll.models import causal_lm
from fnroll.models.zoo import TINY_MODELS, forward_of, tiny_model

T = 40
PROMPTS = ([7, 8, 9], [10, 11, 12, 13, 14, 15, 16, 17, 18])
OUTPUT = [20, 21, 22, 23, 24]


def line(*values):
    return torch.tensor(values)


def greedy_alone(forward, ids, count):
    """Continue one record by full forwards without a cache, and return its smallest margin too."""
    ids, margin = list(ids), float("inf")
    for _ in range(count):
        best = forward(ids).topk(2)
        ids.append(int(best.indices[0]))
        margin = min(margin, float(best.values[0] - best.values[1]))
    return ids, margin


@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize("way", ["fed again", "parked", "shared"])
def test_rows_of_unequal_length_and_a_returning_turn_equal_the_row_alone(name, way):
    """Cases padding-01 and cache-02: rows of 3 and 9 tokens, 8 greedy tokens, a returning turn of 6, 14 more.

    The turn returns to the other row, its keys and values fed again, parked, or copied from the row it had.
    """
    module = tiny_model(name, torch.float32)
    model, forward = causal_lm(module), forward_of(module)
    cache = model.init_cache(2, T)
    state = init_state(cache, num_records=3, stop_ids=line(99), pool=init_pool(cache, 1))
    state = replace(state, sampling=replace(state.sampling, temperature=torch.zeros(4)))
    tokens = torch.tensor([[*PROMPTS[0], *[0] * 6], PROMPTS[1]])
    keys = init_keys(0, 0, line(0, 1), line(0, 0))
    state = steps.enqueue(state, line(0, 1), tokens, line(3, 9), line(T, T), keys)
    state, _ = steps.admit(state)

    def prefill(state, *rows):
        return steps.prefill(model.params, state, line(*rows), model=model.fn, width=T, window=T)

    def decode(state, count):
        for _ in range(count):
            state, _ = steps.decode_step(model.params, state, model=model.fn, window=T)
        return state

    state = decode(prefill(state, 0, 1), 8)
    alone = [greedy_alone(forward, prompt, 8) for prompt in PROMPTS]
    for place, (ids, margin) in enumerate(alone):
        assert margin > 1e-4 and state.records.tokens[place, : len(ids)].tolist() == ids

    # Record 1 leaves row 1, another record takes the first free row, and record 1 returns to what is left.
    state = steps.finish(state, line(0, 1), line(t.COMPLETED, t.WAITING), line(t.EOS, t.EOS))
    if way == "parked":
        state = pools.park(state, line(1), line(0), line(1), window=T)
    state = steps.append_tool(state, line(1), torch.tensor([OUTPUT]), line(5), line(T))
    state, admitted = steps.admit(state)
    assert admitted.tolist() == [1, -1]
    if way == "parked":
        state = pools.unpark(state, line(0), line(0), window=T)
    if way == "shared":
        state = pools.share(state, line(1), line(0), line(16), window=T)
    assert state.rows.cached[0] == (0 if way == "fed again" else 16)
    state = decode(prefill(state, 0), 14)
    ids, margin = greedy_alone(forward, alone[1][0] + OUTPUT, 14)
    assert margin > 1e-4 and state.records.tokens[1, : len(ids)].tolist() == ids
    log_probs = [float(forward(ids[:at]).log_softmax(-1)[ids[at]]) for at in range(22, 36)]
    assert torch.allclose(state.records.log_probs[1, 22:36], torch.tensor(log_probs), atol=1e-4)
