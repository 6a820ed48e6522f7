"""Which calls made a rollout: retries, forks, calls that sampled nothing."""

from dataclasses import replace
from itertools import permutations

import pytest

from fnroll.routing import RouteCorruptionError, RouteLineageError, select_chain, version_changes
from fnroll.routing.staging import receipt_digest
from tests.routing.helpers import call, staged, three_turns

ROOT = call("root", [1, 2], [3, 4])
GIVEN_UP = call("given-up", [5], [6, 7], parent=ROOT)
TAKEN = call("taken", [5], [1, 7], parent=ROOT)
LEAF = call("leaf", [2], [2], parent=TAKEN)


def ids(chain):
    return [receipt.call_id for receipt in chain]


def receipts(*calls):
    return staged(*calls)[1]


def test_calls_are_ordered_by_their_parents():
    found = receipts(*three_turns())
    for order in permutations(found):
        assert ids(select_chain(order)) == ["c0", "c1", "c2"]


def test_of_retries_the_one_that_a_later_call_goes_on_from_is_taken():
    for order in permutations(receipts(ROOT, GIVEN_UP, TAKEN, LEAF)):
        assert ids(select_chain(order)) == ["root", "taken", "leaf"]


def test_retries_of_the_last_turn_need_a_name():
    found = receipts(ROOT, GIVEN_UP, TAKEN)
    with pytest.raises(RouteLineageError, match=r"\['r/given-up', 'r/taken'\] are retries of one turn"):
        select_chain(found)
    assert ids(select_chain(found, terminal_call_id="taken")) == ["root", "taken"]
    assert ids(select_chain(found, terminal_call_id="given-up")) == ["root", "given-up"]
    assert ids(select_chain(found, terminal_call_id="root")) == ["root"]


def test_retries_of_the_first_turn_are_treated_alike():
    other = call("other", [1, 2], [9])
    with pytest.raises(RouteLineageError, match="retries"):
        select_chain(receipts(ROOT, other))
    assert ids(select_chain(receipts(ROOT, other, TAKEN))) == ["root", "taken"]


def test_a_fork_needs_a_name():
    fork = call("fork", [2], [2], parent=GIVEN_UP)
    found = receipts(ROOT, GIVEN_UP, TAKEN, LEAF, fork)
    with pytest.raises(RouteLineageError, match="retries"):
        select_chain(found)
    assert ids(select_chain(found, terminal_call_id="fork")) == ["root", "given-up", "fork"]


def test_a_call_that_sampled_nothing_is_left_out():
    empty = call("empty", [5], [], parent=ROOT)
    assert ids(select_chain(receipts(ROOT, empty))) == ["root"]
    assert ids(select_chain(receipts(ROOT, empty, TAKEN))) == ["root", "taken"]


def test_a_call_that_goes_on_from_one_that_sampled_nothing_is_refused():
    empty = call("empty", [5], [], parent=ROOT)
    child = call("child", [5], [6], parent=empty)
    for terminal in (None, "child", "empty"):
        with pytest.raises(RouteLineageError, match="empty_generation"):
            select_chain(receipts(ROOT, empty, child), terminal_call_id=terminal)
    with pytest.raises(RouteLineageError, match="no call sampled"):
        select_chain(receipts(call("empty", [5], [])))


def resealed(receipt, **changes):
    changed = replace(receipt, **changes)
    return replace(changed, digest=receipt_digest(changed))


@pytest.mark.parametrize("parent", ["nobody", "taken", "leaf"], ids=["missing", "self", "future"])
@pytest.mark.parametrize("terminal", [None, "leaf"])
def test_parents_that_cannot_be_are_refused(parent, terminal):
    root, taken, leaf = receipts(ROOT, TAKEN, LEAF)
    with pytest.raises(RouteLineageError):
        select_chain([root, resealed(taken, parent_call_id=parent), leaf], terminal_call_id=terminal)


def test_a_receipt_that_is_missing_in_between_is_refused():
    root, _, leaf = receipts(ROOT, TAKEN, LEAF)
    with pytest.raises(RouteLineageError, match=r"r/leaf.*missing"):
        select_chain([root, leaf])
    with pytest.raises(RouteLineageError, match=r"call taken, which r/leaf names, has no receipt"):
        select_chain([root, leaf], terminal_call_id="leaf")
    with pytest.raises(RouteLineageError, match="call nobody, which the caller names"):
        select_chain([root], terminal_call_id="nobody")


def test_a_receipt_that_was_changed_is_refused():
    root, taken = receipts(ROOT, TAKEN)
    with pytest.raises(RouteCorruptionError, match="r/taken was changed") as error:
        select_chain([root, replace(taken, gen_n=3)])
    assert error.value.reason == "receipt_integrity"


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"prefix_digest": "0" * 64}, "other tokens"), ({"parent_digest": "0" * 64}, "other tokens"),
     ({"prev_len": 5}, "prev_len 5; its parent r/root ends at 4")],
)  # fmt: skip
def test_a_receipt_that_goes_on_from_another_past_is_refused(changes, match):
    root, taken = receipts(ROOT, TAKEN)
    with pytest.raises(RouteLineageError, match=match):
        select_chain([root, resealed(taken, **changes)])


def test_receipts_of_two_rollouts_or_two_calls_of_one_name_are_refused():
    root = receipts(ROOT)[0]
    with pytest.raises(RouteLineageError, match="one call"):
        select_chain([root, receipts(call("root", [1, 2], [9]))[0]])
    with pytest.raises(RouteLineageError, match="must be of one"):
        select_chain([root, receipts(call("other", [1], [9], rollout="q"))[0]])
    with pytest.raises(RouteLineageError, match="must be of one"):
        select_chain([])
    assert select_chain([root, root]) == (root,)


def test_changes_of_weights_between_turns_are_counted():
    first = call("c0", [1], [2], version=1)
    second = call("c1", [3], [4], parent=first, version=2)
    third = call("c2", [3], [4], parent=second, version=2)
    assert version_changes(select_chain(receipts(first, second, third))) == 1
