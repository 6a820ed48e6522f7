"""Laws of routes, over rollouts with retries that Hypothesis invents."""

import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fnroll.routing import (
    Provenance,
    RouteCorruptionError,
    RouteSchema,
    RouteStore,
    RouteValueError,
    RouteWarning,
    assemble,
    capture,
    check_routes,
    collate,
    decode_route_plan,
    decode_routed_experts,
    encode_route_plan,
    encode_routed_experts,
    from_json,
    from_tape,
    import_routes,
    load_routes,
    make_plan,
    narrow_routes,
    save_routes,
    select_chain,
    separate,
    splice_boundary,
    stage,
    to_json,
    write_routes,
)
from tests.routing.helpers import SCHEMA, call, expected_routes, true_routes
from tests.routing.test_external import arguments, full_layers

TOKENS = st.integers(0, 9)


@st.composite
def rollouts(draw, legacy=False):
    """Calls in an order in which they may be staged, the calls that count, and whether a name is needed."""
    calls, taken, parent = [], [], None
    for turn in range(draw(st.integers(1, 4))):
        retries = []
        for number in range(draw(st.integers(1, 3))):
            prompt = draw(st.lists(TOKENS, min_size=0 if turn else 1, max_size=3))
            generated = draw(st.lists(TOKENS, min_size=1, max_size=3))
            old = legacy and draw(st.booleans())
            retries.append(
                call(f"{turn}-{number}", prompt, generated, parent=parent, legacy=old, version=turn)
            )
        calls.append(draw(st.permutations(retries)))
        parent = draw(st.sampled_from(retries))
        taken.append(parent)
    named = len(calls[-1]) > 1
    return [one for turn in calls for one in turn], taken, named


def put_together(calls, taken, named, *, order=None, on_failure="reject", harm=None, **options):
    """Stage, select, plan and assemble; `order` permutes the receipts, `harm` damages what is staged."""
    store = RouteStore(SCHEMA)
    for one in calls:
        store, _ = stage(store, one)
    receipts = list(store.receipts.values())
    receipts = receipts if order is None else [receipts[i] for i in order]
    selected = select_chain(receipts, terminal_call_id=taken[-1].call_id if named else None)
    plan = make_plan(selected, receipts=receipts)
    assert sum(s.carry_len + s.generation_len for s in plan.spans) == len(taken[-1].tokens)
    before = {key: row.routes.clone() for key, row in store.rows.items()}
    found = assemble(
        decode_route_plan(encode_route_plan(plan)), harm(store) if harm else store, SCHEMA,
        length=len(taken[-1].tokens), on_failure=on_failure, **options,
    )  # fmt: skip
    for key, row in store.rows.items():
        assert torch.equal(row.routes, before[key]), f"{key} was edited"
    return found


def routes_are_those_of_a_full_forward(case):
    """I1 to I5, I12: all rows true but the last, whatever retries there were; what is staged stays."""
    calls, taken, named = case
    found = put_together(calls, taken, named)
    assert torch.equal(found.routes, expected_routes(taken[-1].tokens))
    marks = found.provenance.tolist()
    ends = {one.boundary_index for one in taken[1:]}
    assert [i for i, kind in enumerate(marks) if kind == Provenance.REPAIRED] == sorted(ends)
    assert [i for i, kind in enumerate(marks) if kind == Provenance.PLACEHOLDER] == [len(marks) - 1]


@given(rollouts())
def test_routes_are_those_of_a_full_forward(case):
    routes_are_those_of_a_full_forward(case)


@given(rollouts(), st.randoms(use_true_random=False))
def test_neither_retries_nor_the_order_of_receipts_count(case, random):
    """I1."""
    calls, taken, named = case
    order = list(range(len(calls)))
    random.shuffle(order)
    alone, all_of_them = put_together(taken, taken, False), put_together(calls, taken, named, order=order)
    assert torch.equal(alone.routes, all_of_them.routes)
    assert torch.equal(alone.provenance, all_of_them.provenance)


@given(rollouts(legacy=True), st.sampled_from(["placeholder", "native"]))
def test_older_calls_change_boundaries_only_and_are_named_once(case, legacy_boundary):
    """I5, I7."""
    calls, taken, named = case
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = put_together(calls, taken, named, legacy_boundary=legacy_boundary)
    older = [one for one in taken[1:] if one.boundary is None]
    assert len(caught) == bool(older)
    assert all(issubclass(w.category, RouteWarning) and older[0].key in str(w.message) for w in caught)
    expected = expected_routes(taken[-1].tokens)
    fill = SCHEMA.placeholder(1) if legacy_boundary == "placeholder" else SCHEMA.missing(1)
    for one in older:
        expected[one.prev_len - 1] = fill[0]
    assert torch.equal(found.routes, expected)


@given(rollouts(), st.data())
def test_any_changed_byte_of_what_is_committed_to_is_seen(case, data):
    """I8; also a changed index, and never native in part."""
    calls, taken, named = case
    one = data.draw(st.sampled_from(taken))
    columns = ["routes", *(["boundary", "index"] if one.boundary is not None else [])]
    column = data.draw(st.sampled_from(columns))

    def flip(tensor):
        changed = tensor.clone()
        flat = changed.view(-1)
        place = data.draw(st.integers(0, len(flat) - 1))
        flat[place] = flat[place] ^ (1 << data.draw(st.integers(0, 6)))
        return changed

    damaged = {}

    def harm(store):
        if not damaged:
            row = store.rows[one.key]
            changes = {"routes": flip(row.routes)} if column == "routes" else {}
            changes |= {"boundary_index": row.boundary_index + 1} if column == "index" else {}
            sidecar = {one.key: flip(store.boundaries[one.key])} if column == "boundary" else {}
            damaged["rows"] = {**store.rows, one.key: replace(row, **changes)}
            damaged["boundaries"] = {**store.boundaries, **sidecar}
        return replace(store, **damaged)

    with pytest.raises(RouteCorruptionError, match=one.key):
        put_together(calls, taken, named, harm=harm)
    with pytest.warns(RouteWarning, match="natively"):
        found = put_together(calls, taken, named, harm=harm, on_failure="native")
    assert (found.routes == -1).all() and (found.provenance == Provenance.NATIVE).all()


@given(rollouts(legacy=True), st.integers(1, 4))
def test_a_file_in_between_changes_nothing(case, cut):
    """I20; staged in part, saved, loaded, staged to the end."""
    calls, taken, _ = case
    whole = RouteStore(SCHEMA)
    for one in calls:
        whole, _ = stage(whole, one)
    parts = RouteStore(SCHEMA)
    for number, one in enumerate(calls):
        if number == cut:
            parts, _ = load_routes(save_routes(parts), schema=SCHEMA)
        parts, _ = stage(parts, one)
    assert parts.receipts == whole.receipts
    plan = make_plan(select_chain(whole.receipts.values(), terminal_call_id=taken[-1].call_id))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RouteWarning)
        found = [
            assemble(plan, s, SCHEMA, length=plan.expected_token_length, on_failure="reject")
            for s in (whole, parts, load_routes(save_routes(parts))[0])
        ]
    for other in found[1:]:
        assert torch.equal(other.routes, found[0].routes)
        assert torch.equal(other.provenance, found[0].provenance)


@given(st.lists(TOKENS, min_size=2, max_size=8), st.lists(st.integers(0, 9), max_size=4))
def test_splices_change_one_row_each_commute_and_repeat(tokens, places):
    """I9."""
    routes, marks = true_routes(tokens), torch.zeros(len(tokens), dtype=torch.uint8)
    repairs = {place % len(tokens): true_routes((place, 77))[1:] for place in places}

    def apply(order):
        state = routes, marks
        for index in order:
            state = splice_boundary(*state, repairs[index], index)
        return state

    new, provenance = apply(repairs)
    for order in (reversed(list(repairs)), [*repairs, *repairs]):
        other = apply(order)
        assert torch.equal(other[0], new) and torch.equal(other[1], provenance)
    for index in range(len(tokens)):
        expected = repairs.get(index, routes[index : index + 1])
        assert torch.equal(new[index : index + 1], expected)
        assert provenance[index] == (Provenance.REPAIRED if index in repairs else Provenance.REAL)


@st.composite
def schemas(draw):
    num_experts = draw(st.sampled_from([1, 2, 8, 127, 128, 129, 256, 32768, 32769]))
    top_k = draw(st.integers(1, min(num_experts, 8)))
    layers = draw(st.sets(st.integers(0, 9), min_size=1, max_size=3))
    return RouteSchema(num_experts=num_experts, top_k=top_k, layer_ids=tuple(sorted(layers)))


@st.composite
def valid_routes(draw, schema, max_tokens=5):
    """`[T, L, K]` int64: different experts, the last ones too, and rows of -1."""
    low = st.integers(0, schema.num_experts - 1)
    high = st.integers(max(0, schema.num_experts - 3), schema.num_experts - 1)
    row = st.one_of(
        st.just([-1] * schema.top_k),
        st.lists(st.one_of(low, high) if schema.num_experts > schema.top_k else low,
                 min_size=schema.top_k, max_size=schema.top_k, unique=True),
    )  # fmt: skip
    token = st.lists(row, min_size=len(schema.layer_ids), max_size=len(schema.layer_ids))
    return torch.tensor(draw(st.lists(token, min_size=1, max_size=max_tokens)))


def valid_routes_pass_and_survive(schema, routes):
    """I10, I11."""
    narrow = narrow_routes("routes", routes, schema)
    assert narrow.dtype == schema.dtype and torch.equal(narrow.long(), routes)
    check_routes("routes", narrow, schema, len(routes))
    assert torch.equal(decode_routed_experts(encode_routed_experts(narrow)), narrow)
    tape = from_tape(routes, schema)
    assert torch.equal(from_json(to_json(tape)).routes, narrow)


@given(schemas().flatmap(lambda s: st.tuples(st.just(s), valid_routes(s))))
def test_valid_routes_pass_in_every_dtype_and_survive(case):
    valid_routes_pass_and_survive(*case)


@given(schemas().flatmap(lambda s: st.tuples(st.just(s), valid_routes(s))), st.data())
def test_a_row_that_is_no_choice_is_refused_in_every_dtype(case, data):
    """I11: partly -1, an expert twice, out of range."""
    schema, routes = case
    row = routes.view(-1, schema.top_k)[data.draw(st.integers(0, routes.numel() // schema.top_k - 1))]
    kinds = ["large", "low"] + (["twice", "partly"] if schema.top_k > 1 else [])
    kind = data.draw(st.sampled_from(kinds))
    row[:] = torch.arange(schema.top_k)
    place = data.draw(st.integers(0, schema.top_k - 1))
    row[place] = {
        "large": schema.num_experts + data.draw(st.integers(0, 300)),
        "low": -2 - data.draw(st.integers(0, 300)),
        "twice": int(row[place - 1]),
        "partly": -1,
    }[kind]
    with pytest.raises(RouteValueError):
        narrow_routes("routes", routes, schema)
    if int(row[place]) <= torch.iinfo(schema.dtype).max and int(row[place]) >= torch.iinfo(schema.dtype).min:
        with pytest.raises(RouteValueError):
            check_routes("routes", routes.to(schema.dtype), schema)


def padding_is_native(lengths, width, shift):
    """I13, for any padding, packed and not."""
    records = [from_tape(true_routes(range(n)), SCHEMA) for n in lengths]
    mask = torch.zeros(len(lengths), width + 5, dtype=torch.int64)
    for row, n in enumerate(lengths):
        start = min(shift + row, width + 5 - n)
        mask[row, start : start + n] = 1
    batch = collate(records, attention_mask=mask)
    assert (batch[mask == 0] == -1).all()
    ends = torch.tensor([0, *lengths]).cumsum(0)
    packed = collate(records, cu_seqlens=ends, width=int(ends[-1]) + shift)
    assert (packed[0, int(ends[-1]) :] == -1).all()
    for record, a, b in zip(
        records, separate(batch, attention_mask=mask), separate(packed, cu_seqlens=ends), strict=True
    ):
        assert torch.equal(a, record.routes) and torch.equal(b, record.routes)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 4))
def test_padding_is_native_and_records_come_back(lengths, shift):
    padding_is_native(lengths, max(lengths), shift)


@given(rollouts(), st.lists(st.integers(0, 40), max_size=5), st.booleans())
def test_any_pieces_of_a_prefill_give_the_same_calls(case, cuts, again):
    """I14; with a piece fed twice."""
    for one in case[1]:
        truth = true_routes(one.tokens).long()
        fed = len(one.tokens) - 1
        edges = [0, *sorted({cut % fed for cut in cuts if fed} - {0}), fed]
        buffer = SCHEMA.missing(fed)
        for start, end in [*pairwise(edges), *([(0, fed)] if again else [])]:
            buffer = write_routes(buffer, torch.arange(start, end), truth[start:end])
        found = capture.capture_call(buffer, SCHEMA, **arguments(one))
        assert torch.equal(found.routes, one.routes)
        assert one.boundary is None or torch.equal(found.boundary, one.boundary)


def other_engines_routes_are_ours(case, all_layers):
    """A payload of another engine gives the call that an own capture gives."""
    for one in case[1]:
        payload = true_routes(one.tokens)[:-1]
        payload = full_layers(payload) if all_layers else payload
        found = import_routes(payload, SCHEMA, num_hidden_layers=6, **arguments(one))
        assert torch.equal(found.routes, one.routes)
        assert one.boundary is None or torch.equal(found.boundary, one.boundary)


@given(rollouts(), st.booleans())
def test_routes_of_another_engine_are_those_of_an_own_capture(case, all_layers):
    other_engines_routes_are_ours(case, all_layers)
