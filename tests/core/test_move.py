"""Running records move to other rows, and a decode step may compute the first rows only."""

from functools import partial

import pytest
import torch

from fnroll.compile.lower import donate
from fnroll.core import pool as pools
from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.tree import replace, tree_equal, tree_leaves
from fnroll.core.types import Rows
from tests.core.helpers import running, unsunk

ALL = ("cache", "records", "rows", "queue")
PROMPTS = ((1, 2, 3), (4,), (5, 6), (7, 8, 9, 10))


def index(*values):
    return torch.tensor(values)


def half_done(step=lambda function: function):
    """Four rows; records 0 and 2 end, so rows 1 and 3 still run."""
    model, state = running(prompts=PROMPTS, rows=4, lines=4, stop_ids=(99,))
    state, _ = step(partial(steps.decode_step, model=model.fn, window=16))(model.params, state)
    ended = index(0, 2), index(t.COMPLETED, t.COMPLETED), index(t.EOS, t.EOS)
    return model, step(steps.finish)(state, *ended)


def go_on(model, state, height, step=lambda function: function, count=6):
    decode = step(partial(steps.decode_step, model=model.fn, window=16, height=height))
    for _ in range(count):
        state, ended = decode(model.params, state)
        assert ended.shape == (4,)
    return state


def moved_records_go_on_as_they_went(step=lambda function: function):
    model, state = half_done(step)
    packed = step(pools.move)(state, index(3), index(0), window=16)
    assert packed.rows.record.tolist() == [3, 1, Rows.IDLE, Rows.IDLE]
    packed = go_on(model, packed, 2, step)
    stayed = go_on(*half_done(), None)
    assert tree_equal(*([leaf[:-1] for leaf in tree_leaves(s.records)] for s in (packed, stayed)))


@pytest.mark.parametrize("donated", [True, False])
def test_moved_records_go_on_as_they_went_in_half_of_the_rows(donated):
    moved_records_go_on_as_they_went(partial(donate, names=ALL) if donated else lambda function: function)


def test_padding_moves_nothing():
    _, state = half_done()
    assert tree_equal(unsunk(pools.move(state, index(4), index(4), window=16)), unsunk(state))
    both = pools.move(state, index(3, 4), index(0, 4), window=16)
    assert tree_equal(unsunk(both), unsunk(pools.move(state, index(3), index(0), window=16)))


def without_cache(state, source, row, *, window, move=pools.move):
    return replace(move(state, source, row, window=window), cache=state.cache)


def with_the_old_length(state, source, row, *, window, move=pools.move):
    new = move(state, source, row, window=window)
    return replace(new, rows=replace(new.rows, cached=state.rows.cached))


def leaving_it_behind(state, source, row, *, window, move=pools.move):
    new = move(state, source, row, window=window)
    return replace(new, rows=replace(new.rows, record=state.rows.record, cached=state.rows.cached))


def one_short(state, source, row, *, window, move=pools.move):
    return move(state, source, row, window=3)


@pytest.mark.parametrize("mistake", [without_cache, with_the_old_length, leaving_it_behind, one_short])
def test_a_planted_mistake_is_caught(mistake, monkeypatch):
    monkeypatch.setattr(pools, "move", mistake)
    with pytest.raises(AssertionError):
        moved_records_go_on_as_they_went()
