"""Route plans, versions 2 and 3: strict in every field, lossless."""

import json
from dataclasses import replace

import pytest

from fnroll.routing import (
    ROUTE_PLAN_SCHEMA_VERSION,
    MissingRoutesError,
    RouteAssemblyPlan,
    RouteError,
    RouteLineageError,
    RoutePlanVersionError,
    RouteSpan,
    classify_route_span,
    decode_route_plan,
    encode_route_plan,
    encoded_route_plan_size_bytes,
    make_plan,
    native_plan,
    select_chain,
    validate_route_plan,
)
from tests.routing.helpers import call, staged, three_turns

DIGEST = "0123456789abcdef" * 4


def span(key, carry, generated, rows, **boundary):
    return RouteSpan(key, carry, generated, rows, 1, DIGEST, **boundary)


PLAN = RouteAssemblyPlan(
    schema_version=3,
    staging_partition="staging",
    spans=(
        span("r/c0", 2, 2, 4),
        span("r/c1", 3, 1, 1, boundary_token_index=3, repair_previous_token=True),
        span("r/c2", 0, 0, 0),
        span("r/c3", 1, 1, 0),
    ),
    cleanup_staging_keys=("r/c0", "r/c1", "r/c2", "r/c3", "r/given-up"),
    expected_token_length=10,
)
LEGACY = replace(
    PLAN,
    schema_version=2,
    spans=tuple(replace(s, boundary_token_index=None, repair_previous_token=False) for s in PLAN.spans),
)


def encoded(plan=PLAN, **changes):
    return {**json.loads(json.dumps(encode_route_plan(plan))), **changes}


def with_span(index, **changes):
    plan = encoded()
    plan["spans"][index].update(changes)
    return plan


@pytest.mark.parametrize("plan", [PLAN, LEGACY, native_plan(7, cleanup=("r/c0",)), native_plan(0)])
def test_plans_survive_json(plan):
    """I7."""
    assert decode_route_plan(encoded(plan)) == plan
    assert encoded_route_plan_size_bytes(plan) == len(json.dumps(encoded(plan), separators=(",", ":")))


def test_version_2_has_no_boundaries_and_is_read_without_any():
    """I7."""
    plan = encoded(LEGACY)
    fields = {"staging_key", "carry_len", "generation_len", "staged_route_len"}
    assert set(plan["spans"][1]) == {*fields, "extras_digest_version", "extras_digest"}
    read = decode_route_plan(plan)
    assert all(s.boundary_token_index is None and not s.repair_previous_token for s in read.spans)
    assert ROUTE_PLAN_SCHEMA_VERSION == 3


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (encoded(schema_version=1), "unsupported route plan schema version 1"),
        (encoded(schema_version=999), "unsupported route plan schema version 999"),
        (encoded(expected_token_length=-1), "must be non-negative"),
        (encoded(expected_token_length=9), "spans contribute 10 tokens, expected 9"),
        (encoded(more=1), "route_plan fields must be exactly"),
        ({k: v for k, v in encoded().items() if k != "spans"}, "fields must be exactly"),
        (encoded(cleanup_staging_keys=["r/c0", "r/c2", "r/c3"]), r"'r/c1' is outside cleanup_staging_keys"),
        (encoded(cleanup_staging_keys=["r/c0"] * 2), "contains duplicates"),
        (with_span(0, more=1), r"spans\[0\] fields must be exactly"),
        (with_span(0, carry_len=-1), r"spans\[0\].carry_len is -1; it must be non-negative"),
        (with_span(0, extras_digest_version=2), "must be 1"),
        (with_span(0, extras_digest_version=True), "must be 1"),
        (with_span(0, extras_digest=DIGEST.upper()), "lowercase SHA-256"),
        (with_span(0, extras_digest=DIGEST[:-1]), "lowercase SHA-256"),
        (with_span(0, extras_digest=None), "lowercase SHA-256"),
        (with_span(1, boundary_token_index=4), "invalid boundary token index"),
        (with_span(1, boundary_token_index=2), "invalid boundary token index"),
        (with_span(1, boundary_token_index=-1), "boundary_token_index is -1"),
        (with_span(1, staged_route_len=0), "invalid boundary token index"),
        (with_span(0, boundary_token_index=0), "invalid boundary token index"),
        (with_span(0, boundary_token_index=0, repair_previous_token=True), "boundary token index"),
        (with_span(1, boundary_token_index=None), "boundary repair requires adjacent generated spans"),
        (with_span(0, repair_previous_token=True), "boundary repair requires adjacent generated spans"),
        (with_span(3, boundary_token_index=7, repair_previous_token=True, staged_route_len=2), "adjacent"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(plan, match):
    with pytest.raises(RouteError, match=match):
        decode_route_plan(plan)


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (None, "route_plan is a NoneType"),
        ([], "route_plan is a list"),
        (encoded(schema_version="3"), "schema_version is '3'"),
        (encoded(schema_version=True), "schema_version is True"),
        (encoded(expected_token_length=True), "expected_token_length is True"),
        (encoded(expected_token_length=10.0), "must be an int"),
        (encoded(staging_partition=""), "non-empty string"),
        (encoded(spans={}), "spans is a dict"),
        (encoded(spans=[3]), r"spans\[0\] is a int"),
        (encoded(cleanup_staging_keys="r/c0"), "cleanup_staging_keys is a str"),
        (encoded(cleanup_staging_keys=[["r/c0"]]), r"cleanup_staging_keys\[0\]"),
        (with_span(0, generation_len=True), "generation_len is True"),
        (with_span(0, staging_key=None), "staging_key is None"),
        (with_span(1, boundary_token_index=True), "boundary_token_index is True"),
        (with_span(1, boundary_token_index="3"), "boundary_token_index is '3'"),
        (with_span(1, repair_previous_token=1), "repair_previous_token is 1"),
        (with_span(1, repair_previous_token=None), "repair_previous_token is None"),
    ],
)
def test_a_field_of_another_type_is_a_type_error_and_a_route_error(plan, match):
    for error in (TypeError, RouteError):
        with pytest.raises(error, match=match):
            decode_route_plan(plan)


def test_an_unknown_version_says_what_is_read():
    with pytest.raises(RoutePlanVersionError, match=r"4; this fnroll reads \(2, 3\)"):
        decode_route_plan(encoded(schema_version=4))


def test_version_2_cannot_hide_a_repair():
    for spans in (PLAN.spans, tuple(replace(s, boundary_token_index=None) for s in PLAN.spans)):
        with pytest.raises(RouteError, match="boundary"):
            validate_route_plan(replace(PLAN, schema_version=2, spans=spans))


@pytest.mark.parametrize(
    ("carry", "generated", "rows", "mode"),
    [(2, 2, 4, "full"), (2, 3, 5, "full"), (0, 3, 3, "full"), (2, 0, 2, "full"), (3, 1, 1, "tail"),
     (2, 3, 3, "tail"), (2, 3, 4, "tail"), (0, 1, 2, "tail"), (0, 0, 0, "sentinel"), (1, 1, 0, "sentinel"),
     (2, 0, 1, "sentinel"), (2, 3, 2, "sentinel"), (2, 3, 0, "sentinel")],
)  # fmt: skip
def test_how_staged_rows_cover_a_span(carry, generated, rows, mode):
    assert classify_route_span(carry, generated, rows) == mode
    assert classify_route_span(carry_len=carry, generation_len=generated, staged_route_len=rows) == mode


@pytest.mark.parametrize("counts", [(-1, 0, 0), (0, -1, 0), (0, 0, -1), (0.5, 0, 0), (True, 0, 0)])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(ValueError, match="_len is"):
        classify_route_span(*counts)


def test_a_plan_of_a_chain_repairs_between_turns_that_sampled():
    """I12: spans follow one another and add up."""
    given_up = call("given-up", [6], [8], parent=three_turns()[0])
    store, receipts = staged(*three_turns(), given_up)
    chain = select_chain(receipts, terminal_call_id="c2")
    plan = make_plan(chain, partition="p", receipts=store.receipts_of("r"))
    assert [s.staging_key for s in plan.spans] == ["r/c0", "r/c1", "r/c2"]
    assert [s.boundary_token_index for s in plan.spans] == [None, 4, 7]
    assert [s.repair_previous_token for s in plan.spans] == [False, True, True]
    assert [s.extras_digest for s in plan.spans] == [r.extras_digest for r in receipts[:3]]
    assert plan.cleanup_staging_keys == ("r/c0", "r/c1", "r/c2", "r/given-up")
    assert plan.expected_token_length == len(three_turns()[2].tokens) == 12
    assert sum(s.carry_len + s.generation_len for s in plan.spans) == 12


def test_calls_without_sidecars_repair_nothing():
    plan = make_plan(staged(*three_turns(legacy=True))[1])
    assert all(s.boundary_token_index is None and not s.repair_previous_token for s in plan.spans)


def test_calls_that_do_not_follow_one_another_make_no_plan():
    first, _, third = staged(*three_turns())[1]
    with pytest.raises(RouteLineageError, match="r/c2 has prev_len 8; it must be 5"):
        make_plan([first, third])


def test_routes_can_be_required():
    receipts = staged(replace(call("c0", [1], [2]), routes=None))[1]
    assert make_plan(receipts).spans[0].staged_route_len == 0
    with pytest.raises(MissingRoutesError, match="r/c0 was staged without routes"):
        make_plan(receipts, require_routes=True)
