"""Staged calls never change, and their receipts commit to them."""

from dataclasses import replace

import pytest
import torch

from fnroll.routing import (
    CallRoutes,
    RouteDtypeError,
    RouteError,
    RouteLineageError,
    RouteShapeError,
    RouteStore,
    RouteValueError,
    discard,
    stage,
)
from fnroll.routing.digest import extras_digest
from tests.routing.helpers import SCHEMA, call, staged, three_turns, true_routes


def test_what_is_staged_is_a_copy():
    first = call("c0", [1, 2, 3], [4, 5])
    store, _ = staged(first)
    kept = store.rows["r/c0"].routes.clone()
    first.routes.fill_(3)
    assert torch.equal(store.rows["r/c0"].routes, kept)


def test_the_sidecar_has_its_own_column_which_only_some_calls_have():
    store, receipts = staged(*three_turns())
    assert list(store.rows) == ["r/c0", "r/c1", "r/c2"] and list(store.boundaries) == ["r/c1", "r/c2"]
    assert [r.boundary_index for r in receipts] == [None, 4, 7]
    assert [store.rows[r.key].boundary_index for r in receipts] == [None, 4, 7]


def test_staging_gives_a_new_store_and_leaves_the_old_one():
    empty = RouteStore(SCHEMA)
    store, receipt = stage(empty, call("c0", [1], [2]))
    assert not empty.rows and not empty.receipts
    with pytest.raises(TypeError):
        store.rows["r/c0"] = None
    assert store.receipts_of("r") == (receipt,) and store.receipts_of("other") == ()


def test_the_same_call_may_be_staged_twice_and_another_one_of_its_id_may_not():
    first = call("c0", [1, 2, 3], [4, 5])
    store, receipt = staged(first)[0], staged(first)[1][0]
    again, other = stage(store, call("c0", [1, 2, 3], [4, 5]))
    assert again is store and other == receipt
    for changed in (
        call("c0", [1, 2, 3], [4, 6]),
        call("c0", [1, 2, 3], [4, 5], version=2),
        call("c0", [1, 2, 3], [4, 5], buffer=true_routes((9, 9, 9, 9))),
        CallRoutes(**{**vars(first), "routes": None}),
    ):
        with pytest.raises(RouteLineageError, match="r/c0 is staged already, with other content"):
            stage(store, changed)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", (1, 2, 3, 4, 6)),
        ("weight_version", 9),
        ("routes", true_routes((3, 3, 3, 3, 3))),
        ("gen_n", 1),
    ],
)
def test_a_receipt_changes_with_what_it_commits_to(field, value):
    first = call("c0", [1, 2, 3], [4, 5])
    more = {"prompt_n": 4} if field == "gen_n" else {}
    changed = replace(first, **{field: value}, **more)
    assert staged(first)[1][0].digest != staged(changed)[1][0].digest


def test_the_digest_of_a_call_is_of_routes_sidecar_and_index():
    routes, boundary = true_routes((1, 2)), true_routes((3,))
    digests = [
        extras_digest(*parts)
        for parts in (
            (routes, boundary, 3),
            (routes, boundary, 4),
            (routes, None, None),
            (routes, routes[:1], 3),
            (routes.flip(0), boundary, 3),
            (routes.int(), boundary, 3),
            (routes, boundary.int(), 3),
            (None, None, None),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert extras_digest(routes.clone(), boundary, 3) == digests[0]


def test_a_receipt_commits_to_all_calls_before_it():
    receipts = staged(*three_turns())[1]
    first = call("c0", [1, 2, 3], [4, 5], version=2)
    other = staged(first, call("c1", [6], [7, 1], parent=first))[1]
    assert receipts[1].extras_digest == other[1].extras_digest
    assert receipts[1].digest != other[1].digest


def test_a_call_must_follow_its_parent():
    first, second, _ = three_turns()
    with pytest.raises(RouteLineageError, match="r/c1 goes on from r/c0, which is not staged"):
        staged(second)
    longer = call("c0", [1, 2, 3, 4], [5, 6])
    with pytest.raises(RouteLineageError, match="r/c1 has prev_len 5; its parent r/c0 ends at 6"):
        staged(longer, second)
    other = call("c0", [1, 9, 3], [4, 5])
    with pytest.raises(RouteLineageError, match="token 1 is 2, there it is 9"):
        staged(other, second)
    with pytest.raises(RouteLineageError, match="not staged before it"):
        stage(staged(first, second)[0], replace(second, parent_call_id="c1"))


def test_the_first_token_that_differs_is_named_in_later_turns_too():
    first, second, third = three_turns()
    tokens = list(third.tokens)
    tokens[6] = 9
    with pytest.raises(RouteLineageError, match="token 6 is 9, there it is 7"):
        staged(first, second, replace(third, tokens=tuple(tokens)))
    tokens[1] = 9
    with pytest.raises(RouteLineageError, match="token 1 is 9, there it is 2"):
        staged(first, second, replace(third, tokens=tuple(tokens)))


@pytest.mark.parametrize(
    ("routes", "error"),
    [
        (true_routes((1, 2, 3, 4)), RouteShapeError),
        (true_routes((1, 2, 3, 4, 5, 6)), RouteShapeError),
        (true_routes((1, 2, 3, 4, 5))[:, :2], RouteShapeError),
        (true_routes((1, 2, 3, 4, 5)).to(torch.int16), RouteDtypeError),
        (torch.zeros(5, 3, 2, dtype=torch.int8), RouteValueError),
    ],
)
def test_routes_that_are_wrong_when_staged_are_always_refused(routes, error):
    with pytest.raises(error, match="r/c0"):
        staged(replace(call("c0", [1, 2, 3], [4, 5]), routes=routes))


@pytest.mark.parametrize(
    "boundary",
    [torch.zeros(1, 3, 2, dtype=torch.int8), SCHEMA.placeholder(2), SCHEMA.placeholder(1).to(torch.int16),
     SCHEMA.placeholder(1)[:, :2]],
)  # fmt: skip
def test_a_sidecar_must_be_one_row_of_the_same_kind(boundary):
    first, second, _ = three_turns()
    with pytest.raises(RouteError, match="boundary of r/c1"):
        staged(first, replace(second, boundary=boundary))


def test_calls_can_be_discarded():
    store, receipts = staged(*three_turns())
    left = discard(store, [receipts[2].key, "r/unknown"])
    assert list(left.rows) == ["r/c0", "r/c1"] and list(left.boundaries) == ["r/c1"]
    assert len(store.rows) == 3
