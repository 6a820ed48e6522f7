"""From single forwards to the routes of a call."""

import pytest
import torch

from fnroll.routing import (
    CallRoutes,
    RouteBoundaryError,
    RouteDtypeError,
    RouteError,
    RouteLineageError,
    RouteShapeError,
    capture_call,
    write_routes,
)
from tests.routing.helpers import SCHEMA, call, true_route, true_routes


def test_a_first_call_has_real_rows_and_a_placeholder_for_its_last_token():
    first = call("c0", [1, 2, 3], [4, 5])
    assert torch.equal(first.routes[:-1], true_routes((1, 2, 3, 4)))
    assert torch.equal(first.routes[-1:], SCHEMA.placeholder(1))
    assert (first.boundary, first.boundary_index, first.boundary_schema_version) == (None, None, None)


def test_a_later_call_has_its_own_rows_only_and_the_route_of_the_token_before():
    first = call("c0", [1, 2, 3], [4, 5])
    second = call("c1", [6], [7, 1], parent=first)
    assert torch.equal(second.routes[:-1], true_routes(second.tokens)[5:7])
    assert torch.equal(second.boundary, true_route(first.tokens))
    assert (second.boundary_index, second.boundary_schema_version) == (4, 1)


def test_a_call_that_sampled_nothing_has_a_real_last_row_and_no_sidecar():
    first = call("c0", [1, 2, 3], [])
    assert torch.equal(first.routes, true_routes((1, 2, 3)))
    second = call("c1", [6, 2], [], parent=first)
    assert torch.equal(second.routes, true_routes((1, 2, 3, 6, 2))[3:])
    assert second.boundary is None


def test_the_row_of_the_last_token_is_a_placeholder_whatever_the_buffer_holds():
    """A static batch feeds the end token of rows that finish early, and pads after it."""
    buffer = torch.cat([true_routes((1, 2, 3, 4, 5)), true_routes((9, 9))])
    captured = call("c0", [1, 2, 3], [4, 5], buffer=buffer)
    assert torch.equal(captured.routes[-1:], SCHEMA.placeholder(1))
    assert len(captured.routes) == 5


def test_rows_that_were_not_computed_are_missing_and_not_zeros():
    first = call("c0", [1, 2, 3], [4, 5])
    buffer = true_routes((1, 2, 3, 4, 5, 6, 7, 1))
    buffer[:6] = -1  # a prefix cache that keeps no routes
    second = call("c1", [6], [7, 1], parent=first, buffer=buffer)
    assert (second.routes[0] == -1).all() and (second.boundary == -1).all()
    assert second.boundary_index == 4


@pytest.mark.parametrize("cuts", [[], [1], [3], [1, 2, 3, 4], [2, 5]])
@pytest.mark.parametrize("padded", [False, True])
def test_any_pieces_of_a_prefill_give_the_same_call(cuts, padded):
    """I14."""
    tokens = (1, 2, 3, 4, 5, 6, 7)
    truth = true_routes(tokens).long()
    buffer = SCHEMA.missing(9)
    for start, end in zip([0, *cuts], [*cuts, 6], strict=True):
        positions, rows, valid = torch.arange(start, end), truth[start:end], None
        if padded:
            positions = torch.cat([torch.tensor([8, 8]), positions])
            rows = torch.cat([torch.zeros(2, 3, 2, dtype=torch.int64), rows])
            valid = torch.tensor([False] * 2 + [True] * (end - start))
        buffer = write_routes(buffer, positions, rows, valid)
    captured = call("c0", tokens[:5], tokens[5:], buffer=buffer)
    assert torch.equal(captured.routes, call("c0", tokens[:5], tokens[5:]).routes)


def test_a_write_leaves_the_buffer_it_was_given_and_may_be_repeated():
    buffer = SCHEMA.missing(4)
    first = write_routes(buffer, torch.tensor([1]), true_route((9,)))
    again = write_routes(first, torch.tensor([1]), true_route((1, 2)))
    assert (buffer == -1).all()
    assert torch.equal(first[1:2], true_route((9,))) and torch.equal(again[1:2], true_route((1, 2)))


@pytest.mark.parametrize(
    ("positions", "rows", "error", "match"),
    [
        ([0, 4], torch.zeros(2, 3, 2), RouteShapeError, "0 to 3"),
        ([-1], torch.zeros(1, 3, 2), RouteShapeError, "0 to 3"),
        ([1, 1], torch.zeros(2, 3, 2), RouteShapeError, "twice"),
        ([1], torch.zeros(2, 3, 2), RouteShapeError, "shape"),
        ([1], torch.zeros(1, 2, 2), RouteShapeError, "shape"),
        ([1], torch.full((1, 3, 2), 200), RouteDtypeError, "int8"),
    ],
)
def test_a_write_that_does_not_fit_is_refused(positions, rows, error, match):
    with pytest.raises(error, match=match):
        write_routes(SCHEMA.missing(4), torch.tensor(positions), rows.long())


def test_a_buffer_shorter_than_the_call_is_refused():
    with pytest.raises(RouteShapeError, match="fed 4 tokens; its buffer has 3"):
        call("c0", [1, 2, 3], [4, 5], buffer=true_routes((1, 2, 3)))


def fields(**changes):
    plain = {
        "rollout_id": "r", "call_id": "c1", "parent_call_id": "c0", "tokens": (1, 2, 3, 4, 5), "prev_len": 2,
        "prompt_n": 1, "gen_n": 2, "weight_version": 0, "routes": true_routes((3, 4, 5)),
        "boundary": true_route((2,)), "boundary_index": 1, "boundary_schema_version": 1,
    }  # fmt: skip
    return {**plain, **changes}


def test_these_fields_are_a_call():
    assert CallRoutes(**fields()).num_tokens == 3


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"rollout_id": ""}, ValueError, "rollout_id"),
        ({"call_id": "a/b"}, ValueError, "slash"),
        ({"parent_call_id": 3}, ValueError, "parent_call_id"),
        ({"prompt_n": -1}, ValueError, "prompt_n"),
        ({"gen_n": True}, ValueError, "gen_n"),
        ({"weight_version": None}, ValueError, "weight_version"),
        ({"tokens": (1, 2, 3, 4)}, RouteLineageError, "4 tokens"),
        ({"tokens": (1, 2), "prompt_n": 0, "gen_n": 0}, RouteLineageError, "one token must be new"),
        ({"prev_len": 0, "prompt_n": 3}, RouteLineageError, "no parent and prev_len 0"),
        ({"parent_call_id": None}, RouteLineageError, "no parent and prev_len 0"),
        ({"boundary_index": 2}, RouteBoundaryError, "boundary_index is 2; it must be prev_len - 1 = 1"),
        ({"boundary_index": True}, RouteBoundaryError, "boundary_index is True"),
        ({"boundary_index": None}, RouteBoundaryError, "all be given"),
        ({"boundary": None}, RouteBoundaryError, "all be given"),
        ({"boundary_schema_version": None}, RouteBoundaryError, "all be given"),
        ({"boundary_schema_version": 2}, RouteBoundaryError, "it must be 1"),
        ({"routes": None}, RouteBoundaryError, "no routes"),
        ({"parent_call_id": None, "prev_len": 0, "prompt_n": 3}, RouteBoundaryError, "parent None"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(changes, error, match):
    with pytest.raises(error, match=match):
        CallRoutes(**fields(**changes))


def test_a_capture_checks_its_fields_first():
    with pytest.raises(RouteError):
        capture_call(
            true_routes((1,)), SCHEMA, rollout_id="r", call_id="c", tokens=(1, 2), prompt_n=1, gen_n=0
        )
