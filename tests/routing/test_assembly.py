"""Turn boundaries repaired: directly and deferred, with retries, damage and older rows."""

import json
import warnings
from dataclasses import replace

import pytest
import torch

from fnroll.routing import (
    Provenance,
    RouteCorruptionError,
    RouteSchema,
    RouteShapeError,
    RouteSpan,
    RouteStore,
    RouteWarning,
    StagedRow,
    assemble,
    assemble_all,
    decode_route_plan,
    encode_route_plan,
    extend,
    from_tape,
    make_plan,
    native_plan,
    select_chain,
    splice_boundary,
    truncate,
)
from fnroll.routing.digest import extras_digest
from tests.routing.helpers import SCHEMA, call, expected_routes, staged, three_turns, true_route, true_routes

REAL, REPAIRED, PLACEHOLDER, MISSING, NATIVE = Provenance
# How a plan is used: at the end of the rollout, or as JSON in the trainer.
MODES = {"direct": "reject", "deferred": "native"}


class Reads:
    """A source that counts what is read."""

    def __init__(self, store):
        self.store, self.rows, self.boundaries = store, [], []

    def fetch_rows(self, keys):
        self.rows.append(list(keys))
        return self.store.fetch_rows(keys)

    def fetch_boundaries(self, keys):
        self.boundaries.append(list(keys))
        return self.store.fetch_boundaries(keys)


def put_together(store, plan, mode="direct", schema=SCHEMA, length=None, **options):
    if mode == "deferred":
        plan = decode_route_plan(json.loads(json.dumps(encode_route_plan(plan))))
    length = plan.expected_token_length if length is None else length
    return assemble(plan, store, schema, length=length, on_failure=MODES[mode], **options)


def rollout(*calls, terminal=None, schema=SCHEMA):
    store, receipts = staged(*calls, schema=schema)
    return store, make_plan(select_chain(receipts, terminal_call_id=terminal), receipts=receipts)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("silent", [False, True], ids=["known", "silent"])
@pytest.mark.parametrize("num_experts", [8, 128, 129, 32769])
def test_routing_01_the_last_token_of_a_turn_gets_the_route_of_the_next_call(
    mode, turns, silent, num_experts
):
    """I3, I4, I5; `silent` is a next call that does not know it either."""
    schema = replace(SCHEMA, num_experts=num_experts)
    calls = three_turns(schema)[:turns]
    if silent:
        calls = [c if c.boundary is None else replace(c, boundary=schema.missing(1)) for c in calls]
    store, plan = rollout(*calls, schema=schema)
    reads = Reads(store)
    found = put_together(reads, plan, mode, schema)
    expected = expected_routes(calls[-1].tokens, schema)
    marks = torch.full((len(expected),), int(REAL), dtype=torch.uint8)
    for one in calls[1:]:
        marks[one.boundary_index] = MISSING if silent else REPAIRED
        if silent:
            expected[one.boundary_index] = -1
    marks[-1] = PLACEHOLDER
    assert torch.equal(found.routes, expected) and found.routes.dtype == schema.dtype
    assert torch.equal(found.provenance, marks)
    assert (found.status, found.reason) == ("direct", None)
    assert reads.rows == [[c.key for c in calls]]
    assert reads.boundaries == ([[c.key for c in calls[1:]]] if turns > 1 else [])


@pytest.mark.parametrize("mode", MODES)
def test_only_the_retry_that_was_taken_repairs_its_parent(mode):
    """I1, I2."""
    root = call("root", [1, 2], [3, 4])
    # The engine chose otherwise for the same token in the retry that was given up.
    given_up = replace(call("given-up", [5], [6, 7], parent=root), boundary=true_route((9, 9)))
    taken = call("taken", [5], [1, 7], parent=root)
    for calls in ([root, given_up, taken], [root, taken, given_up]):
        store, plan = rollout(*calls, terminal="taken")
        kept = store.rows["r/root"].routes.clone()
        reads = Reads(store)
        found = put_together(reads, plan, mode)
        assert torch.equal(found.routes, expected_routes(taken.tokens))
        assert torch.equal(store.rows["r/root"].routes, kept) and torch.equal(kept, root.routes)
        assert reads.rows == [["r/root", "r/taken"]] and reads.boundaries == [["r/taken"]]
        assert "r/given-up" in plan.cleanup_staging_keys


def tampered(store, key, **changes):
    return replace(store, rows={**store.rows, key: replace(store.rows[key], **changes)})


def other_byte(tensor):
    changed = tensor.clone()
    changed[0, 0] = torch.tensor([5, 6]) if changed[0, 0].tolist() != [5, 6] else torch.tensor([6, 5])
    return changed


DAMAGE = {
    "routes changed": (
        lambda s: tampered(s, "r/c1", routes=other_byte(s.rows["r/c1"].routes)),
        "fragment_integrity",
    ),
    "routes of the parent changed": (
        lambda s: tampered(s, "r/c0", routes=other_byte(s.rows["r/c0"].routes)),
        "fragment_integrity",
    ),
    "dtype changed": (
        lambda s: tampered(s, "r/c1", routes=s.rows["r/c1"].routes.int()),
        "fragment_integrity",
    ),
    "shape changed": (
        lambda s: tampered(s, "r/c1", routes=s.rows["r/c1"].routes.reshape(3, 2, 3)),
        "fragment_integrity",
    ),
    "routes gone": (lambda s: tampered(s, "r/c1", routes=None), "missing_fragment"),
    "row gone": (lambda s: replace(s, rows={"r/c0": s.rows["r/c0"]}), "missing_fragment"),
    "sidecar changed": (
        lambda s: replace(s, boundaries={"r/c1": other_byte(s.boundaries["r/c1"])}),
        "fragment_integrity",
    ),
    "sidecar gone": (lambda s: replace(s, boundaries={}), "fragment_integrity"),
    "sidecar of no integers": (
        lambda s: replace(s, boundaries={"r/c1": s.boundaries["r/c1"].float()}),
        "fragment_integrity",
    ),
    "index changed": (lambda s: tampered(s, "r/c1", boundary_index=3), "fragment_boundary"),
    "index gone": (lambda s: tampered(s, "r/c1", boundary_index=None), "fragment_boundary"),
    "all gone": (lambda s: RouteStore(SCHEMA), "missing_fragment"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_rejects_a_rollout_directly_and_makes_it_native_when_deferred(damage):
    """I8; never native in part."""
    harm, reason = DAMAGE[damage]
    store, plan = rollout(*three_turns()[:2])
    store = harm(store)
    with pytest.raises(RouteCorruptionError, match="r/c") as error:
        put_together(store, plan, "direct")
    assert error.value.reason == reason
    with pytest.warns(RouteWarning, match="routed natively") as caught:
        found = put_together(store, plan, "deferred")
    assert len(caught) == 1
    assert (found.routes == -1).all() and len(found) == 8
    assert (found.provenance == NATIVE).all()
    assert (found.status, found.reason) == ("native", reason)


def test_a_plan_of_another_index_or_digest_is_damage_too():
    store, plan = rollout(*three_turns()[:2])
    span = plan.spans[1]
    for changed in (
        replace(span, extras_digest="0" * 64),
        replace(span, boundary_token_index=None, repair_previous_token=False),
    ):
        with pytest.raises(RouteCorruptionError):
            put_together(store, replace(plan, spans=(plan.spans[0], changed)))


@pytest.mark.parametrize("mode", MODES)
def test_an_older_row_keeps_its_placeholder_and_says_so_once(mode):
    """I7."""
    calls = three_turns(legacy=True)
    store, plan = rollout(*calls)
    with pytest.warns(RouteWarning, match=r"r/c1, r/c2: .* keeps its placeholder") as caught:
        found = put_together(store, plan, mode)
    assert len(caught) == 1
    assert torch.equal(found.routes, torch.cat([c.routes for c in calls]))
    assert [i for i, kind in enumerate(found.provenance) if kind == PLACEHOLDER] == [4, 7, 11]


def test_an_older_boundary_can_be_native_instead():
    calls = three_turns(legacy=True)
    store, plan = rollout(*calls)
    with pytest.warns(RouteWarning, match="is routed natively"):
        found = put_together(store, plan, legacy_boundary="native")
    assert [i for i, kind in enumerate(found.provenance) if kind == MISSING] == [4, 7]
    assert (found.routes[[4, 7]] == -1).all()
    assert torch.equal(found.routes[-1:], SCHEMA.placeholder(1))
    rest = [i for i in range(12) if i not in (4, 7)]
    assert torch.equal(found.routes[rest], torch.cat([c.routes for c in calls])[rest])


def test_one_older_call_among_newer_ones_leaves_the_others_repaired():
    first, second, third = three_turns()
    second = three_turns(legacy=True)[1]
    store, plan = rollout(first, second, third)
    with pytest.warns(RouteWarning, match="with r/c1: "):
        found = put_together(store, plan)
    assert found.provenance[4] == PLACEHOLDER and found.provenance[7] == REPAIRED


def test_a_plan_of_version_2_repairs_nothing():
    """I7."""
    store, plan = rollout(*three_turns(legacy=True))
    with pytest.warns(RouteWarning, match="keeps its placeholder"):
        found = put_together(store, replace(plan, schema_version=2), "deferred")
    assert found.count(PLACEHOLDER) == 3 and found.count(REPAIRED) == 0


def test_the_last_token_can_be_native_too():
    store, plan = rollout(*three_turns())
    found = put_together(store, plan, last_token="native")
    assert (found.routes[-1] == -1).all() and found.provenance[-1] == MISSING
    assert torch.equal(found.routes[:-1], true_routes(three_turns()[2].tokens)[:-1])


def test_a_real_route_that_looks_like_a_placeholder_is_put_in_and_is_real():
    """I22."""
    first, second, _ = three_turns()
    second = replace(second, boundary=SCHEMA.placeholder(1))
    store, plan = rollout(first, second)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = put_together(store, plan)
    assert torch.equal(found.routes[4:5], SCHEMA.placeholder(1))
    assert found.provenance[4] == REPAIRED and found.count(PLACEHOLDER) == 1


def test_a_sidecar_that_no_repair_was_planned_for_is_verified_and_not_put_in():
    store, plan = rollout(*three_turns()[:2])
    unused = replace(plan, spans=(plan.spans[0], replace(plan.spans[1], repair_previous_token=False)))
    with pytest.warns(RouteWarning, match="r/c1"):
        found = put_together(store, unused)
    assert found.provenance[4] == PLACEHOLDER
    with pytest.raises(RouteCorruptionError):
        put_together(replace(store, boundaries={"r/c1": SCHEMA.placeholder(1)}), unused)


def test_a_call_without_routes_is_missing_and_its_last_token_still_gets_the_route_of_the_next_call():
    first, second, _ = three_turns()
    first = replace(first, routes=None)
    store, plan = rollout(first, second)
    found = put_together(store, plan)
    assert (found.routes[:4] == -1).all() and torch.equal(found.routes[4:5], true_route(first.tokens))
    assert found.provenance.tolist() == [MISSING] * 4 + [REPAIRED, REAL, REAL, PLACEHOLDER]


@pytest.mark.parametrize("turns", [1, 3])
def test_both_modes_make_one_plan_and_one_result(turns):
    store, plan = rollout(*three_turns()[:turns])
    a, b = (put_together(store, plan, mode) for mode in MODES)
    assert torch.equal(a.routes, b.routes) and torch.equal(a.provenance, b.provenance)


def handmade(key, carry, generated, routes):
    digest = extras_digest(routes, None, None)
    rows = 0 if routes is None else len(routes)
    return RouteSpan(key, carry, generated, rows, 1, digest), {key: StagedRow(routes)}


def test_many_rollouts_are_read_at_once_with_whole_tail_and_absent_rows():
    whole, rows = handmade("r/c0", 0, 2, true_routes((1, 2)))
    tail, more = handmade("r/c1", 1, 1, true_routes((3,)))
    absent = replace(tail, staging_key="r/c2", staged_route_len=0)
    plan = replace(native_plan(6, cleanup=("r/c0", "r/c1", "r/c2", "r/off")), spans=(whole, tail, absent))
    reads = Reads(RouteStore(SCHEMA, rows={**rows, **more}))
    with pytest.warns(RouteWarning, match="r/c1, r/c2"):
        found = assemble_all([plan, native_plan(1)], reads, SCHEMA, lengths=[6, 1], on_failure="native")
    assert reads.rows == [["r/c0", "r/c1"]] and reads.boundaries == []
    missing = SCHEMA.missing(1)
    expected = [true_routes((1, 2)), missing, true_routes((3,)), missing, missing]
    assert torch.equal(found[0].routes, torch.cat(expected))
    assert found[0].provenance.tolist() == [REAL, PLACEHOLDER, MISSING, PLACEHOLDER, MISSING, MISSING]
    assert (found[1].routes == -1).all() and found[1].status == "native"


@pytest.mark.parametrize(
    ("routes", "length", "reason"),
    [
        (true_routes((1, 2))[:, :2], 2, "fragment_model_shape"),
        (true_routes((1, 2))[:, :, :1], 2, "fragment_model_shape"),
        (torch.full((2, 3, 2), 3, dtype=torch.int8), 2, "fragment_values"),
        (torch.full((2, 3, 2), 300, dtype=torch.int16), 2, "fragment_values"),
        (true_routes((1, 2)), 3, "canonical_length_mismatch"),
    ],
)
def test_rows_that_do_not_fit_the_model_or_the_record_fall_back_as_a_whole(routes, length, reason):
    span, rows = handmade("r/c0", 0, 2, routes)
    plan = replace(native_plan(2, cleanup=("r/c0",)), spans=(span,))
    with pytest.warns(RouteWarning):
        found = put_together(RouteStore(SCHEMA, rows=rows), plan, "deferred", length=length)
    assert (found.routes == -1).all() and len(found) == length and found.reason == reason


def test_fewer_rows_than_the_plan_says_are_damage():
    span, rows = handmade("r/c0", 0, 2, true_routes((1, 2)))
    short = replace(span, staged_route_len=3)
    plan = replace(native_plan(2, cleanup=("r/c0",)), spans=(short,))
    with pytest.raises(RouteCorruptionError, match="2 rows, the plan says 3"):
        put_together(RouteStore(SCHEMA, rows=rows), plan)


def test_rows_staged_in_a_wider_dtype_come_out_in_the_schemas():
    span, rows = handmade("r/c0", 0, 2, true_routes((1, 2)).to(torch.int32))
    plan = replace(native_plan(2, cleanup=("r/c0",)), spans=(span,))
    assert put_together(RouteStore(SCHEMA, rows=rows), plan).routes.dtype == torch.int8


def test_a_read_that_fails_for_another_reason_is_not_damage():
    class Down(Reads):
        def fetch_rows(self, keys):
            raise ConnectionError("down")

    store, plan = rollout(*three_turns())
    with pytest.raises(ConnectionError):
        put_together(Down(store), plan, "deferred")


def test_a_splice_changes_one_row_of_a_copy():
    """I9."""
    routes, marks = true_routes((1, 2, 3, 4)), torch.zeros(4, dtype=torch.uint8)
    kept = routes.clone()
    new, provenance = splice_boundary(routes, marks, true_route((9,)), 2)
    assert torch.equal(routes, kept) and marks.tolist() == [0] * 4
    assert torch.equal(new[[0, 1, 3]], routes[[0, 1, 3]]) and torch.equal(new[2:3], true_route((9,)))
    assert provenance.tolist() == [REAL, REAL, REPAIRED, REAL]
    for index, boundary in [(4, true_route((9,))), (-1, true_route((9,)))]:
        with pytest.raises(ValueError, match="index"):
            splice_boundary(routes, marks, boundary, index)
    for boundary in (true_routes((9, 9)), true_route((9,)).to(torch.int16), true_route((9,))[:, :2]):
        with pytest.raises(RouteShapeError):
            splice_boundary(routes, marks, boundary, 1)


def test_a_cut_cuts_routes_and_provenance_and_keeps_the_last_route():
    store, plan = rollout(*three_turns())
    whole = put_together(store, plan)
    cut = truncate(whole, 7)
    assert torch.equal(cut.routes, whole.routes[:7]) and torch.equal(cut.provenance, whole.provenance[:7])
    assert cut.count(PLACEHOLDER) == 0 and len(truncate(whole, 0)) == 0
    cut.routes.fill_(1)
    assert not torch.equal(cut.routes, whole.routes[:7])
    with pytest.raises(ValueError, match="length is 13"):
        truncate(whole, 13)


def test_routes_of_one_cache_need_no_repair():
    tape = torch.cat([true_routes((1, 2, 3)), SCHEMA.missing(1)])
    tape[1, 0] = -1
    found = from_tape(tape.long(), SCHEMA)
    assert torch.equal(found.routes, tape) and found.routes.dtype == torch.int8
    assert found.provenance.tolist() == [REAL, REAL, REAL, MISSING]


def test_a_record_that_goes_on_keeps_its_routes_and_repairs_its_last_token():
    """Fed again under newer weights, earlier tokens are routed otherwise; their log-probs are the older."""
    before = from_tape(torch.cat([true_routes((1, 2, 3)), SCHEMA.missing(1)]), SCHEMA)
    newer = torch.cat([true_routes((9, 9, 9, 9, 8, 8)), SCHEMA.missing(1)])
    found = extend(before, newer, SCHEMA)
    assert torch.equal(found.routes, torch.cat([true_routes((1, 2, 3)), newer[3:]]))
    assert found.provenance.tolist() == [REAL, REAL, REAL, REPAIRED, REAL, REAL, MISSING]
    whole = from_tape(true_routes((1, 2, 3, 4)), SCHEMA)
    assert torch.equal(extend(whole, newer, SCHEMA).routes[:4], whole.routes)
    with pytest.raises(RouteShapeError, match="3 tokens; the record had 4"):
        extend(before, newer[:3], SCHEMA)


def test_a_schema_of_another_model_falls_back_as_a_whole():
    store, plan = rollout(*three_turns())
    other = RouteSchema(num_experts=8, top_k=2, layer_ids=(1, 3))
    with pytest.raises(RouteCorruptionError, match="fragment_model_shape"):
        put_together(store, plan, schema=other)


@pytest.mark.parametrize("option", ["on_failure", "legacy_boundary", "last_token"])
def test_other_options_are_refused_by_name(option):
    options = {"on_failure": "reject", option: "maybe"}
    with pytest.raises(ValueError, match=option):
        assemble(native_plan(1), RouteStore(SCHEMA), SCHEMA, length=1, **options)
