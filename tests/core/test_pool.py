"""Keys and values that wait for a row: parked, brought back, shared; copies in place where donated."""

from functools import partial

import pytest
import torch

from fnroll.compile.lower import donate
from fnroll.core import pool as pools
from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.tree import replace, tree_equal, tree_leaves
from fnroll.core.types import Pool, Rows
from tests.core.helpers import enqueue, prefill_all, running, toy_state, unsunk

W = 16


def index(*values):
    return torch.tensor(values)


def decode(model, state, count=1):
    for _ in range(count):
        state, _ = steps.decode_step(model.params, state, model=model.fn, window=W)
    return state


def waiting(slots=2):
    """Two records whose turns have just ended, their rows free, and a third that is queued."""
    model, state = running(prompts=((1, 2, 3), (4,), (5, 6)), slots=slots)
    state = decode(model, state, 2)
    lines = index(0, 1)
    state = steps.finish(state, lines, index(t.WAITING, t.WAITING), index(t.EOS, t.EOS))
    return model, state


def answer(state, line, ids):
    return steps.append_tool(state, index(line), torch.tensor([ids]), index(len(ids)), index(W))


def test_a_parked_turn_comes_back_and_only_the_rest_is_fed():
    model, state = waiting()
    expected = state.records.length[0] + 1
    state = pools.park(state, index(0), index(1), index(0), window=W)
    assert state.pool.owner.tolist() == [-1, 0, -1] and state.pool.length.tolist() == [0, 4, 0]
    state, _ = steps.admit(state)  # record 2 takes the row that record 0 had
    state = decode(model, prefill_all(model, state))
    state = answer(state, 0, [7, 8])
    state, admitted = steps.admit(state)
    row = int((admitted == 0).nonzero())
    state = pools.unpark(state, index(1), index(row), window=W)
    assert state.rows.cached[row] == 4
    assert state.pool.owner.tolist() == [-1] * 3 and state.pool.length.tolist() == [0] * 3
    fed = steps.prefill(model.params, state, index(row), model=model.fn, width=2, window=W)
    assert fed.rows.cached[row] == state.records.length[0] - 1 == expected
    again = replace(state, rows=replace(state.rows, cached=torch.zeros_like(state.rows.cached)))
    again = prefill_all(model, again)
    end = int(expected)
    for one, other in zip(tree_leaves(fed.cache), tree_leaves(again.cache), strict=True):
        assert torch.equal(one[row, :end], other[row, :end])


def test_a_prefix_is_shared_between_rows_and_from_the_pool():
    model, state = waiting()
    state = pools.park(state, index(0), index(0), index(0), window=W)
    state = enqueue(state, [3], [(1, 2, 3, 9, 9)], W)
    state, admitted = steps.admit(state)
    row = int((admitted == 3).nonzero())
    assert row == 1  # record 2 has the other row; the prefix is in the pool only
    state = pools.share(state, index(0), index(row), index(3), window=8, pooled=True)
    assert state.rows.cached.tolist() == [0, 3]
    state = prefill_all(model, state)
    state = decode(model, state, 2)
    _, alone = running(prompts=((8,), (5, 6), (8,), (1, 2, 3, 9, 9)), rows=4)
    alone = decode(model, alone, 2)
    assert torch.equal(state.records.tokens[3], alone.records.tokens[3])
    state = steps.finish(state, index(2), index(t.COMPLETED), index(t.EOS))
    state = enqueue(state, [2], [(1, 2, 3, 9, 9)], W)
    state, _ = steps.admit(state)
    state = pools.share(state, index(1), index(0), index(4), window=4)
    assert state.rows.cached.tolist()[0] == 4
    for leaf in tree_leaves(state.cache):
        assert torch.equal(leaf[0, :4], leaf[1, :4])


def test_padding_entries_change_nothing():
    _, state = waiting()
    state = pools.park(state, index(0), index(1), index(0), window=W)
    sink = index(2)
    for new in (
        pools.park(state, sink, sink, index(state.num_records), window=W),
        pools.unpark(state, sink, sink, window=W),
        pools.share(state, index(0), sink, index(0), window=W),
        pools.share(state, sink, sink, index(0), window=W, pooled=True),
        pools.release(state, sink),
    ):
        assert tree_equal(unsunk(state), unsunk(new))
        assert new.pool.owner[-1] == Pool.FREE and new.pool.length[-1] == 0


STEPS = {
    "park": lambda s: pools.park(s, index(1, 0), index(0, 2), index(1, 4), window=W),
    "unpark": lambda s: pools.unpark(s, index(1, 2), index(1, 2), window=W),
    "share": lambda s: pools.share(s, index(0, 0), index(1, 2), index(2, 0), window=W),
    "share from the pool": lambda s: pools.share(s, index(1), index(0), index(2), window=W, pooled=True),
    "release": lambda s: pools.release(s, index(1)),
}


def parked():
    return pools.park(waiting()[1], index(0), index(1), index(0), window=W)


@pytest.mark.parametrize("name", STEPS)
def test_no_step_writes_to_its_input(name):
    state = parked()
    leaves = tree_leaves(state)
    versions = [leaf._version for leaf in leaves]
    STEPS[name](state)
    assert [leaf._version for leaf in leaves] == versions


@pytest.mark.parametrize("name", STEPS)
def test_a_donated_step_gives_the_values_of_the_pure_one_in_the_old_memory(name):
    donated = ("cache", "rows", "pool")
    pure, given = STEPS[name](parked()), parked()
    addresses = [leaf.data_ptr() for leaf in tree_leaves((given.cache, given.rows, given.pool))]
    given = donate(STEPS[name], donated)(given)
    assert tree_equal(unsunk(pure), unsunk(given))
    assert [leaf.data_ptr() for leaf in tree_leaves((given.cache, given.rows, given.pool))] == addresses


def test_steps_that_do_not_know_of_the_pool_carry_it_along():
    model, state = running(slots=2)
    step = donate(partial(steps.decode_step, model=model.fn, window=W), ("cache", "records", "rows", "pool"))
    after, _ = step(model.params, state)
    assert after.pool.owner.tolist() == [-1] * 3


def test_a_state_without_a_pool_says_so():
    _, state = running()
    assert state.pool is None
    with pytest.raises(ValueError, match=r"no pool: give `init_state` one"):
        pools.release(state, index(0))
    assert pools.init_pool(state.cache, 0) is None


def test_a_freed_row_keeps_its_cache_until_it_is_admitted_again():
    model, state = waiting()
    _, other = waiting()
    other = decode(model, other, 3)  # nobody runs; what idle rows write goes to the sink
    assert other.rows.record.tolist() == [Rows.IDLE] * 2
    for one, two in zip(tree_leaves(state.cache), tree_leaves(other.cache), strict=True):
        assert torch.equal(one[:, :-1], two[:, :-1])


def test_forgetting_leaves_nothing_cached_and_no_owner():
    state = pools.forget(parked())
    assert state.rows.cached.tolist() == [0, 0]
    assert state.pool.owner.tolist() == [-1] * 3 and state.pool.length.tolist() == [0] * 3
    _, bare = running()
    model, state = running()
    again = prefill_all(model, pools.forget(state))
    assert tree_equal(unsunk(again), unsunk(state)) and pools.forget(bare).pool is None


def test_rows_may_swap_what_they_hold():
    _, state = waiting()
    new = pools.share(state, index(0, 1), index(1, 0), index(3, 1), window=W)
    for old, leaf in zip(tree_leaves(state.cache), tree_leaves(new.cache), strict=True):
        assert torch.equal(leaf[1, :3], old[0, :3]) and torch.equal(leaf[0, :1], old[1, :1])
    assert tree_equal(
        unsunk(
            donate(partial(pools.share, window=W), ("cache", "rows"))(
                state, index(0, 1), index(1, 0), index(3, 1)
            )
        ),
        unsunk(new),
    )


def test_the_pool_takes_no_memory_but_its_slots():
    _, state = toy_state(slots=3)
    assert [leaf.shape[0] for leaf in tree_leaves((state.pool.keys, state.pool.values))] == [3, 3]
