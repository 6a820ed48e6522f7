"""Routes that vLLM and SGLang captured, with and without a sidecar."""

import numpy as np
import pytest
import torch

from fnroll.routing import (
    RouteBoundaryError,
    RouteDtypeError,
    RouteShapeError,
    RouteValueError,
    encode_routed_experts,
    import_routes,
    select_layers,
)
from tests.routing.helpers import SCHEMA, call, true_route, true_routes

FIRST = call("c0", [1, 2, 3], [4, 5])
SECOND = call("c1", [6], [7, 1], parent=FIRST)
TRUTH = true_routes(SECOND.tokens)


def arguments(one):
    names = (
        "rollout_id",
        "call_id",
        "parent_call_id",
        "tokens",
        "prev_len",
        "prompt_n",
        "gen_n",
        "weight_version",
    )
    return {name: getattr(one, name) for name in names}


def imported(payload, one=SECOND, schema=SCHEMA, **options):
    return import_routes(payload, schema, **arguments(one), **options)


def same(a, b):
    assert torch.equal(a.routes, b.routes) and a.routes.dtype == b.routes.dtype
    assert (a.boundary is None) == (b.boundary is None)
    assert a.boundary is None or torch.equal(a.boundary, b.boundary)
    assert (a.boundary_index, a.boundary_schema_version) == (b.boundary_index, b.boundary_schema_version)


@pytest.mark.parametrize("one", [FIRST, SECOND], ids=["root", "continuation"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_routes_of_all_fed_tokens_give_what_an_own_capture_gives(one, dtype):
    """`[len - 1, layers, k]`, as vLLM (int16) and SGLang (int32) return it."""
    same(imported(true_routes(one.tokens)[:-1].to(dtype), one), one)


@pytest.mark.parametrize(
    "form", [lambda t: t.tolist(), lambda t: t.numpy().astype(">i4"), encode_routed_experts, np.asarray]
)
def test_a_payload_may_be_lists_an_array_or_an_envelope(form):
    same(imported(form(TRUTH[:-1])), SECOND)


def test_one_row_too_many_is_of_the_token_that_nobody_fed():
    same(imported(TRUTH), SECOND)


@pytest.mark.parametrize("start", [0, 2, 4])
def test_a_payload_may_start_later_while_it_holds_the_boundary(start):
    same(imported(TRUTH[start:-1], start=start), SECOND)


def test_a_payload_of_new_tokens_only_has_no_boundary():
    """SGLang's deltas, `routed_experts_start_len`: what an engine without the sidecar returns."""
    legacy = imported(TRUTH[5:-1], start=5)
    assert torch.equal(legacy.routes, SECOND.routes)
    assert (legacy.boundary, legacy.boundary_index, legacy.boundary_schema_version) == (None, None, None)


def test_a_payload_of_new_tokens_with_the_sidecar_has_it():
    same(imported(TRUTH[5:-1], start=5, boundary=TRUTH[4:5], boundary_index=4), SECOND)
    same(imported(TRUTH[:-1], boundary=TRUTH[4:5].tolist(), boundary_index=4), SECOND)


def test_a_sidecar_that_says_nothing_is_kept():
    silent = imported(TRUTH[5:-1], start=5, boundary=SCHEMA.missing(1), boundary_index=4)
    assert (silent.boundary == -1).all() and silent.boundary_index == 4


@pytest.mark.parametrize(
    ("boundary", "index", "match"),
    [
        (TRUTH[4:5], 5, "prev_len - 1 = 4"),
        (TRUTH[4:5], 3, "prev_len - 1 = 4"),
        (TRUTH[4:5], None, "both"),
        (None, 4, "both"),
        (TRUTH[3:5], 4, r"\[1, 3 layers"),
        (true_route((9, 9, 9)), 4, "one of them is wrong"),
    ],
)
def test_a_sidecar_that_does_not_fit_is_refused(boundary, index, match):
    with pytest.raises(RouteBoundaryError, match=match):
        imported(TRUTH[:-1], boundary=boundary, boundary_index=index)


def test_a_first_call_has_no_sidecar():
    with pytest.raises(RouteBoundaryError, match="parent None"):
        imported(true_routes(FIRST.tokens)[:-1], FIRST, boundary=TRUTH[4:5], boundary_index=-1)


@pytest.mark.parametrize(("rows", "allowed"), [(9, False), (6, False), (0, False), (7, True), (8, True)])
def test_rows_must_be_as_many_as_tokens_were_fed(rows, allowed):
    payload = torch.cat([TRUTH, TRUTH[-1:]])[:rows]
    if allowed:
        same(imported(payload), SECOND)
    else:
        with pytest.raises(RouteShapeError, match=f"{rows} rows; 7 tokens were fed"):
            imported(payload)


def test_missing_rows_are_native_where_that_is_asked_for():
    """vLLM omits some with chunked prefill and a prefix cache."""
    lacking = imported(TRUTH[:5], missing="native")
    assert (lacking.routes[:2] == -1).all() and torch.equal(lacking.boundary, SECOND.boundary)
    assert torch.equal(lacking.routes[-1:], SCHEMA.placeholder(1))
    with pytest.raises(RouteShapeError, match="9 rows"):
        imported(torch.cat([TRUTH, TRUTH[-1:]]), missing="native")


def test_a_call_that_only_fed_its_prompt_may_lack_the_last_row():
    prompt = call("c0", [1, 2, 3], [])
    same(imported(true_routes((1, 2, 3)), prompt), prompt)
    lacking = imported(true_routes((1, 2, 3))[:-1], prompt)
    assert torch.equal(lacking.routes[:2], prompt.routes[:2]) and (lacking.routes[2] == -1).all()
    with pytest.raises(RouteShapeError):
        imported(true_routes((1, 2, 3, 4)), prompt)


def test_zeros_of_a_prefix_cache_are_no_routes():
    with pytest.raises(RouteValueError, match=r"token 0, layer 1 has \[0, 0\]"):
        imported(torch.zeros(7, 3, 2, dtype=torch.int32))


def test_ids_that_the_model_has_not_are_refused():
    """Ids of physical experts, behind a load balancer, can be larger than E."""
    with pytest.raises(RouteValueError, match="0 to 7"):
        imported(TRUTH[:-1].long() + 6)
    with pytest.raises(RouteDtypeError, match="integers"):
        imported(TRUTH[:-1].float())
    with pytest.raises(RouteShapeError, match="float"):
        imported(TRUTH[:-1].float().numpy())


def full_layers(routes, num_layers=6):
    """Routes of all layers of a model, with rows for the dense ones that look like any other."""
    whole = torch.arange(routes.shape[2], dtype=routes.dtype).repeat(len(routes), num_layers, 1)
    whole[:, list(SCHEMA.layer_ids)] = routes
    return whole


def test_routes_of_all_layers_are_taken_by_the_numbers_of_the_layers():
    same(imported(full_layers(TRUTH[:-1]), num_hidden_layers=6), SECOND)


def test_routes_of_named_layers_are_taken_by_name():
    shuffled = TRUTH[:-1][:, [2, 0, 1]]
    same(imported(shuffled, layer_ids=[4, 1, 3]), SECOND)
    more = full_layers(TRUTH[:-1])[:, [0, 4, 3, 1]]
    same(imported(more, layer_ids=[0, 4, 3, 1]), SECOND)


@pytest.mark.parametrize(
    ("layers", "options"),
    [(6, {}), (4, {"num_hidden_layers": 6}), (7, {"num_hidden_layers": 6}), (2, {"num_hidden_layers": 6}),
     (4, {"num_hidden_layers": 4}), (3, {"layer_ids": [1, 3]}), (3, {"layer_ids": [1, 3, 3]}),
     (3, {"layer_ids": [0, 1, 3]})],
)  # fmt: skip
def test_layers_that_could_be_others_are_refused(layers, options):
    with pytest.raises(RouteShapeError, match="layers"):
        select_layers("routes", torch.zeros(2, layers, 2), SCHEMA, **options)


def test_another_number_of_experts_a_token_is_refused():
    with pytest.raises(RouteShapeError, match="2 experts a token"):
        imported(torch.cat([TRUTH, TRUTH], dim=2)[:-1])
    with pytest.raises(RouteShapeError, match="layers, experts"):
        imported(TRUTH[:-1, 0])


def test_other_options_are_refused_by_name():
    with pytest.raises(ValueError, match="missing"):
        imported(TRUTH[:-1], missing="zeros")
    with pytest.raises(ValueError, match="start"):
        imported(TRUTH[:-1], start=6)
