"""Planted mistakes about routes, each of which a named law must catch."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fnroll.routing import Provenance, RouteValueError, assembly, capture, chain, collation, external, values
from property_tests.test_routes import (
    other_engines_routes_are_ours,
    padding_is_native,
    rollouts,
    routes_are_those_of_a_full_forward,
    schemas,
    valid_routes,
    valid_routes_pass_and_survive,
)


def off_by_one_token(rows, schema, one, *, start, sampled_at, whole=capture.with_routes):
    return whole(rows.roll(1, 0), schema, one, start=start, sampled_at=sampled_at)


def boundary_of_the_wrong_token(rows, schema, one, *, start, sampled_at, whole=capture.with_routes):
    found = whole(rows, schema, one, start=start, sampled_at=sampled_at)
    return found if found.boundary is None else replace(found, boundary=found.routes[:1])


def layers_from_the_first_one(where, routes, schema, **options):
    return routes[:, : len(schema.layer_ids)]


def layers_shifted_by_a_dense_one(where, routes, schema, **options):
    return routes[:, [layer - 1 for layer in schema.layer_ids]] if routes.shape[1] == 6 else routes


def parent_edited_in_place(routes, provenance, boundary, index):
    routes[index] = boundary[0]
    provenance[index] = int(Provenance.REPAIRED)
    return routes, provenance


def repair_left_out(routes, provenance, boundary, index):
    provenance = provenance.clone()
    provenance[index] = int(Provenance.REPAIRED)
    return routes, provenance


def first_retry_taken(retries, children):
    return retries[0] if retries else None


def compared_in_the_own_dtype(where, routes, schema):
    if (routes >= schema.num_experts).any():
        raise RouteValueError("too large")


MUTANTS = {
    "routes off by one token": (capture, "with_routes", off_by_one_token, "calls"),
    "the sidecar is of another token": (capture, "with_routes", boundary_of_the_wrong_token, "calls"),
    "layers shifted by a dense layer": (external, "select_layers", layers_shifted_by_a_dense_one, "layers"),
    "layers counted from the first": (external, "select_layers", layers_from_the_first_one, "layers"),
    "padding filled with zeros": (collation, "MISSING", 0, "padding"),
    "a parent edited in place": (assembly, "splice_boundary", parent_edited_in_place, "rollouts"),
    "the boundary not repaired": (assembly, "splice_boundary", repair_left_out, "rollouts"),
    "the first retry taken": (chain, "_choose", first_retry_taken, "rollouts"),
    "ids compared in int8": (values, "_check_values", compared_in_the_own_dtype, "values"),
}
LAWS = {
    "rollouts": (rollouts(), routes_are_those_of_a_full_forward),
    "layers": (rollouts(), lambda case: other_engines_routes_are_ours(case, True)),
    "padding": (
        st.lists(st.integers(1, 5), min_size=2, max_size=4),
        lambda lengths: padding_is_native(lengths, max(lengths), 1),
    ),
    "values": (
        schemas().flatmap(lambda s: st.tuples(st.just(s), valid_routes(s))),
        lambda case: valid_routes_pass_and_survive(*case),
    ),
    # Calls are captured while the case is drawn, so that a mistake in capture shows.
    "calls": (st.data(), lambda data: routes_are_those_of_a_full_forward(data.draw(rollouts()))),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_caught(name, monkeypatch):
    target, attribute, mutant, law = MUTANTS[name]
    monkeypatch.setattr(target, attribute, mutant)
    cases, check_case = LAWS[law]

    @settings(max_examples=60, phases=[Phase.generate], report_multiple_bugs=False)
    @given(cases)
    def check(case):
        check_case(case)

    with pytest.raises((AssertionError, ValueError)):
        check()
