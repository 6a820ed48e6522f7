"""Wrong places are named before anything moves."""

import pytest
import torch

from fnroll.core import steps
from fnroll.core import types as t
from fnroll.rollout.branch import fork, rewind
from tests.core.helpers import running
from tests.core.test_pool import decode


@pytest.fixture
def state():
    """Lines 0 and 1 run, 2 is queued, 3 has ended, 4 is free; slot 1 of 2 holds line 0."""
    model, state = running(prompts=((1, 2, 3), (4,), (5, 6), (7,)), lines=5, slots=2, stop_ids=(99,))
    state = decode(model, state, 2)
    state = steps.finish(state, torch.tensor([3]), torch.tensor([t.COMPLETED]), torch.tensor([t.EOS]))
    owner = torch.tensor([-1, 0, -1])
    return steps.replace(state, pool=steps.replace(state.pool, owner=owner))


def test_fork_and_rewind_by_line(state):
    new = rewind(fork(state, [0, 1], [4, 3], slots=None), [0], [4])
    assert new.records.status[:5].tolist() == [t.PENDING, t.RUNNING, t.PENDING, t.PENDING, t.PENDING]
    assert new.records.length[:5].tolist() == [4, 3, 2, 3, 5]
    assert fork(state, [0], [4], slots=[0]).pool.owner.tolist() == [4, 0, -1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: fork(s, [0], [1]), "fork onto line 1, whose record is RUNNING"),
        (lambda s: fork(s, [0], [2]), "fork onto line 2, whose record is PENDING"),
        (lambda s: fork(s, [4], [3]), "fork from line 4, which holds no record"),
        (lambda s: fork(s, [0, 1], [4, 4]), "fork onto line 4 twice"),
        (lambda s: fork(s, [0], [5]), "a target of fork is 5; the state has lines 0 to 4"),
        (lambda s: fork(s, [-1], [4]), "a source of fork is -1; the state has lines 0 to 4"),
        (lambda s: fork(s, [0, 1], [4]), "2 sources and 1 targets"),
        (lambda s: fork(s, [0], [4], slots=[1]), "fork into slot 1, which holds line 0"),
        (lambda s: fork(s, [0], [4], slots=[2]), "fork into slot 2; the pool has 2 slots"),
        (lambda s: fork(s, [0], [4], slots=[]), r"slots \[\] for 1 targets"),
        (lambda s: rewind(s, [0], [2]), "rewind line 0 to 2 tokens; its prompt has 3 and the record 5"),
        (lambda s: rewind(s, [0], [6]), "rewind line 0 to 6 tokens; its prompt has 3 and the record 5"),
        (lambda s: rewind(s, [2], [1]), "rewind line 2 to 1 tokens; its prompt has 2 and the record 2"),
        (lambda s: rewind(s, [4], [1]), "rewind line 4, which holds no record"),
        (lambda s: rewind(s, [True], [1]), "a record of rewind is True"),
        (lambda s: rewind(s, [0, 1], [4]), r"records \[0, 1\], 1 lengths and no limits"),
        (lambda s: rewind(s, [0, 0], [4, 4]), "no record twice"),
        (lambda s: rewind(s, [0], [4], [9, 9]), "1 lengths and 2 limits"),
    ],
)
def test_what_differs_is_named(state, call, message):
    with pytest.raises(ValueError, match=message):
        call(state)


def test_a_rewound_turn_may_be_given_its_own_limit(state):
    new = rewind(state, [0], [4], [6])
    assert int(new.records.limit[0]) == 6 and int(rewind(state, [0], [4]).records.limit[0]) > 6


def test_a_slot_is_free_once_its_line_holds_another_record(state):
    """Else the record that takes the line would be given keys and values of the one before."""
    ended = steps.finish(state, torch.tensor([0]), torch.tensor([t.COMPLETED]), torch.tensor([t.EOS]))
    assert ended.pool.owner.tolist() == [-1, -1, -1]
    held = steps.replace(ended, pool=state.pool)
    assert fork(held, [1], [0]).pool.owner.tolist() == [-1, -1, -1]
    prompt = (
        torch.tensor([[5, 6]]),
        torch.tensor([2]),
        torch.tensor([9]),
        torch.zeros(1, 2, dtype=torch.int64),
    )
    assert steps.enqueue(held, torch.tensor([0]), *prompt).pool.owner.tolist() == [-1, -1, -1]
