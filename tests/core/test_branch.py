"""Forks live on by themselves; a rewound record is the one that never went further."""

from functools import partial

import pytest
import torch

from fnroll.compile.lower import donate
from fnroll.core import pool as pools
from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.branch import fork, rewind
from fnroll.core.rng import init_keys
from fnroll.core.tree import replace, tree_equal, tree_leaves
from tests.core.helpers import prefill_all, running, unsunk
from tests.core.test_pool import W, decode, index, waiting

EVERYTHING = ("records", "rows", "queue", "cache", "pool")


def lines(state, *places):
    """Every field of some record lines but their tickets."""
    return [leaf[list(places)] for leaf in tree_leaves(state.records)]


def go_on(model, state, count, step=None):
    """Admit, and decode some steps, with the pool's help."""
    state, admitted = steps.admit(state)
    for row, line in enumerate(admitted.tolist()):
        slots = [] if state.pool is None else (state.pool.owner == line).nonzero().flatten().tolist()
        if line >= 0 and slots:
            state = pools.unpark(state, index(slots[0]), index(row), window=W)
    state = prefill_all(model, prefill_all(model, state))
    for _ in range(count):
        if step is None:
            state = decode(model, state)
        else:
            state, _ = step(model.params, state)
    return state


def test_a_fork_is_the_record_and_goes_on_as_it_does_with_its_key():
    model, state = running(prompts=((1, 2, 3),), lines=4, rows=3)
    state = decode(model, state, 2)
    state = fork(state, index(0, 0), index(1, 2))
    assert state.records.status[:3].tolist() == [t.RUNNING, t.PENDING, t.PENDING]
    assert state.records.length[:3].tolist() == [5, 5, 5]
    state = go_on(model, state, 4)
    assert state.records.tokens[0].tolist() == state.records.tokens[2].tolist()
    assert torch.equal(state.records.log_probs[0], state.records.log_probs[1])


def test_a_fork_with_a_key_of_its_own_draws_its_own_noise():
    model, state = running(prompts=((1, 2, 3),), lines=4, rows=3)
    state = decode(model, state, 2)
    keys = init_keys(9, 0, index(0, 1), index(0, 0))
    state = go_on(model, fork(state, index(0, 0), index(1, 2), key=keys), 8)
    assert torch.equal(state.records.key[1:3], keys)
    assert len({tuple(line) for line in state.records.tokens[:3].tolist()}) == 3
    assert state.records.tokens[:3, :5].unique(dim=0).shape[0] == 1


@pytest.mark.parametrize("where", ["row", "pool"])
def test_a_fork_takes_what_is_cached_along(where):
    if where == "row":
        model, state = running(prompts=((1, 2, 3), (4,)), lines=4, slots=2)
        state = decode(model, state, 2)
    else:
        model, state = waiting()
        state = pools.park(state, index(0), index(1), index(0), window=W)
    state = fork(state, index(0), index(3), slot=index(0), window=8)
    assert state.pool.owner[0] == 3 and state.pool.length[0] == 4
    held = state.cache if where == "row" else state.pool
    place = 0 if where == "row" else 1
    copies = (state.pool.keys, state.pool.values)
    for one, two in zip(tree_leaves((held.keys, held.values)), tree_leaves(copies), strict=True):
        assert torch.equal(one[place, :4], two[0, :4])
    assert state.records.status[3] == (t.PENDING if where == "row" else t.WAITING)


def test_a_fork_of_what_is_cached_nowhere_takes_no_slot():
    _, state = waiting()
    state = fork(state, index(0), index(3), slot=index(1))
    assert state.pool.owner.tolist() == [-1] * 3


@pytest.mark.parametrize("donated", [False, True])
def test_forks_share_no_storage_that_a_later_step_writes(donated):
    model, state = running(prompts=((1, 2, 3), (4,)), lines=4, slots=1)
    state = decode(model, state, 2)
    state = fork(state, index(0), index(3), slot=index(0), window=8)
    before = [leaf.clone() for leaf in lines(state, 3)]
    held = [leaf[0, :4].clone() for leaf in tree_leaves((state.pool.keys, state.pool.values))]
    step = partial(steps.decode_step, model=model.fn, window=W)
    for _ in range(5):
        state, _ = (donate(step, EVERYTHING) if donated else step)(model.params, state)
    assert tree_equal(before, lines(state, 3))
    assert tree_equal(held, [leaf[0, :4] for leaf in tree_leaves((state.pool.keys, state.pool.values))])


def test_a_kept_state_is_a_fork_as_long_as_no_step_is_donated_it():
    model, state = running(prompts=((1, 2, 3), (4,)))
    kept = [leaf.clone() for leaf in tree_leaves(state)]
    decode(model, state, 4)
    assert tree_equal(kept, tree_leaves(state))


@pytest.mark.parametrize("support", [0, 3])
@pytest.mark.parametrize("length", [3, 4, 6, 9])
def test_a_rewound_record_is_the_one_that_never_went_further(length, support):
    options = {"prompts": ((1, 2, 3), (4,)), "stop_ids": (99,), "slots": 1, "support_size": support}
    model, state = running(**options)
    state = replace(state, records=replace(state.records, key=state.records.key + 3))
    never = decode(model, state, length - 3)
    state = rewind(decode(model, state, 7), index(0), index(length))
    assert state.rows.record.tolist() == [-1, 1] and state.rows.cached[0] == 0
    assert state.records.status[0] == t.PENDING and state.queue.ticket[0] < 0
    again = replace(state.records, status=never.records.status)
    assert tree_equal(lines(replace(state, records=again), 0), lines(never, 0))
    assert tree_equal(
        lines(go_on(model, state, 5), 0), lines(decode(model, never, 5), 0)
    )  # the noise is that of the position


def test_a_record_rewound_to_the_end_of_a_turn_waits_for_its_tools_again():
    _, state = running(prompts=((1, 2, 3),), lines=2, slots=1)
    records = state.records
    tokens = records.tokens.clone()
    tokens[0, 3:8] = index(9, 0, 5, 6, 7)
    mask = records.loss_mask.clone()
    mask[0, [3, 4, 7]] = True
    grown = replace(records, tokens=tokens, loss_mask=mask, length=index(8, 0, 0), turn=index(1, 0, 0))
    state = replace(state, records=grown)
    for length, status, turn, reason in [
        (8, t.PENDING, 1, t.NO_REASON),
        (6, t.PENDING, 1, t.NO_REASON),
        (5, t.WAITING, 1, t.EOS),
        (4, t.PENDING, 0, t.NO_REASON),
        (3, t.PENDING, 0, t.NO_REASON),
    ]:
        new = rewind(state, index(0), index(length), index(14))
        assert new.records.status[0] == status and new.records.turn[0] == turn
        assert new.records.reason[0] == reason and new.records.limit[0] == 14
        assert (new.queue.ticket[0] < t.Queue.NO_TICKET) == (status == t.PENDING)


def test_what_the_pool_holds_of_a_rewound_record_ends_before_its_last_token():
    model, state = waiting()
    state = pools.park(state, index(0), index(1), index(0), window=W)
    shorter = rewind(state, index(0), index(4))
    assert shorter.pool.length.tolist() == [0, 3, 0]
    assert rewind(state, index(0), index(5)).pool.length.tolist() == [0, 4, 0]
    never = decode(*running(prompts=((1, 2, 3), (4,))), 1)
    new = go_on(model, shorter, 3)
    assert torch.equal(new.records.tokens[0], decode(model, never, 3).records.tokens[0])


def test_padding_entries_change_nothing():
    _, state = waiting()
    state = pools.park(state, index(0), index(1), index(0), window=W)
    sink = index(state.num_records)
    for new in (
        rewind(state, sink, index(3)),
        fork(state, index(0), sink, slot=index(2)),
        fork(state, index(0), sink, key=torch.ones(1, 2, dtype=torch.int64)),
    ):
        assert tree_equal(unsunk(state), unsunk(new))
        assert new.records.length[-1] == 0 and new.records.status[-1] == t.FREE


STEPS = {
    "fork": lambda s: fork(s, index(0, 1), index(3, 4), slot=index(0, 2), window=8),
    "rewind": lambda s: rewind(s, index(1, 4), index(2, 0), index(9, 0)),
}


@pytest.mark.parametrize("name", STEPS)
def test_pure_and_donated_give_the_same(name):
    _, state = waiting()
    leaves = tree_leaves(state)
    versions = [leaf._version for leaf in leaves]
    pure = STEPS[name](state)
    assert [leaf._version for leaf in leaves] == versions
    assert tree_equal(unsunk(pure), unsunk(donate(STEPS[name], EVERYTHING)(state)))
