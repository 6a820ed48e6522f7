"""Forks and rewinds: a record that was copied or taken back is the one that nothing happened to."""

import dataclasses

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fnroll.compile.lower import donate
from fnroll.core import branch, steps
from fnroll.core import pool as pools
from fnroll.core import types as t
from fnroll.core.tree import replace, tree_equal, tree_leaves
from tests.core.helpers import running

T, ROWS, LINES = 24, 3, 6
EVERYTHING = ("records", "rows", "queue", "cache", "pool")


def line(*values):
    return torch.tensor(values)


@dataclasses.dataclass
class World:
    """A state, how its steps are run, and how often it has moved."""

    model: object
    state: object
    donated: bool

    def do(self, step, *args, **options):
        """Take a step, pure or donated."""
        run = donate(step, EVERYTHING) if self.donated else step
        result = run(*args, **options)
        self.state, *rest = result if isinstance(result, tuple) else (result,)
        return rest

    def admit(self):
        """Admit what is queued: from the pool where it is parked, the rest fed."""
        (admitted,) = self.do(steps.admit, self.state)
        for row, record in enumerate(admitted.tolist()):
            slots = (self.state.pool.owner == record).nonzero().flatten().tolist()
            if record >= 0 and slots:
                self.do(pools.unpark, self.state, line(slots[0]), line(row), window=T)
        self.do(steps.prefill, self.model.params, self.state, None, model=self.model.fn, width=T, window=T)

    def decode(self, count):
        for _ in range(count):
            self.do(
                steps.decode_step, self.model.params, self.state, model=self.model.fn, window=T,
                multi_turn=True,
            )  # fmt: skip

    def record(self, number):
        return [leaf[number].clone() for leaf in tree_leaves(self.state.records)]


def start(case):
    model, state = running(
        prompts=case["prompts"], rows=ROWS, lines=LINES, max_length=T, limit=T, stop_ids=(99,), slots=2,
        support_size=case["support"],
    )  # fmt: skip
    records = replace(state.records, key=state.records.key + case["seed"])
    return World(model, replace(state, records=records), case["donated"])


@st.composite
def cases(draw):
    prompt = st.lists(st.integers(0, 12), min_size=1, max_size=4)
    return {
        "prompts": draw(st.lists(prompt, min_size=1, max_size=2)),
        "seed": draw(st.integers(0, 1000)),
        "support": draw(st.sampled_from([0, 3])),
        "donated": draw(st.booleans()),
        "first": draw(st.integers(0, 4)),
        "more": draw(st.integers(1, 6)),
        "last": draw(st.integers(1, 6)),
        "slot": draw(st.sampled_from([None, 0, 1])),
    }


def rewound_is_never_gone_further(case):
    """Decode, go further, rewind, go on: the record of a rollout that never went further, in every field."""
    never, gone = start(case), start(case)
    never.decode(case["first"])
    gone.decode(case["first"] + case["more"])
    length = int(never.state.records.length[0])
    gone.do(branch.rewind, gone.state, line(0), line(length))
    running_ = replace(gone.state.records, status=never.state.records.status)
    assert tree_equal(
        [leaf[0] for leaf in tree_leaves(running_)], [leaf[0] for leaf in tree_leaves(never.state.records)]
    )
    never.decode(case["last"])
    gone.admit()
    gone.decode(case["last"])
    assert tree_equal(never.record(0), gone.record(0))


def a_fork_is_its_source(case):
    """Fork a running record, go on with the source: the fork stays as it is, and then says what it said."""
    world = start(case)
    world.decode(case["first"])
    length = int(world.state.records.length[0])
    slot = None if case["slot"] is None else line(case["slot"])
    kept = [] if case["donated"] else tree_leaves(world.state)
    values = [leaf.clone() for leaf in kept]
    world.do(branch.fork, world.state, line(0), line(5), slot=slot, window=T)
    if slot is not None and length > 1:
        assert world.state.pool.owner[slot] == 5 and world.state.pool.length[slot] == length - 1
    before = world.record(5)
    world.decode(case["last"])
    expected = world.record(0)
    assert tree_equal(world.record(5), before) and tree_equal(kept, values)
    world.do(steps.finish, world.state, line(0), line(t.COMPLETED), line(t.EOS))
    world.admit()
    world.decode(case["last"])
    status = [field.name for field in dataclasses.fields(world.state.records)].index("status")
    assert world.state.records.status[5] == t.RUNNING
    expected[status] = world.state.records.status[5]
    assert tree_equal(world.record(5), expected)


@given(cases())
def test_rewind_and_go_on_equals_never_having_gone_further(case):
    rewound_is_never_gone_further(case)


@given(cases())
def test_a_fork_shares_nothing_and_goes_on_as_its_source(case):
    a_fork_is_its_source(case)


def old_log_probs_kept(records, lines, length, cut=branch._cut):
    kept = records.log_probs.clone()
    return replace(cut(records, lines, length), log_probs=kept)


def support_kept(records, lines, length, cut=branch._cut):
    kept = None if records.support is None else records.support.clone()
    return replace(cut(records, lines, length), support=kept)


def slot_of_another(state, source, target, slot, window, copy=branch._copy_cached):
    # The slot is the copy's in name; what it holds is whatever was there.
    pool = state.pool
    new = copy(state, source, target, slot, window).pool
    return replace(state, pool=replace(new, keys=pool.keys, values=pool.values))


def one_key_for_all(state, source, target, *, key=None, slot=None, window=None, fork=branch.fork):
    return fork(state, source, target, key=state.records.key[source] + 1, slot=slot, window=window)


def written_in_place(buffer, indices, values):
    # The copy's line and what was there before are one memory.
    return buffer.index_put_(indices, values)


MUTANTS = {
    "a rewound record keeps its old log-probs": (rewound_is_never_gone_further, "_cut", old_log_probs_kept),
    "a rewound record keeps its support": (rewound_is_never_gone_further, "_cut", support_kept),
    "a fork's slot holds something else": (a_fork_is_its_source, "_copy_cached", slot_of_another),
    "a fork draws other noise than its source": (a_fork_is_its_source, "fork", one_key_for_all),
    "a fork shares its source's storage": (a_fork_is_its_source, "put", written_in_place),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(name, monkeypatch):
    law, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(branch, attribute, mutant)

    @settings(max_examples=40, phases=[Phase.generate], report_multiple_bugs=False)
    @given(cases())
    def check(case):
        law(case)

    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        check()
