"""Checkpoints of staged calls, and the gates before a rollout."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fnroll.routing import (
    BoundarySupportError,
    CheckpointSchemaError,
    RouteCorruptionError,
    RouteSchema,
    RouteStore,
    assemble,
    check_route_versions,
    load_routes,
    make_plan,
    require_boundary_support,
    route_versions,
    save_routes,
    select_chain,
    stage,
)
from tests.routing.helpers import SCHEMA, call, staged, three_turns


def saved(*calls):
    store, receipts = staged(*(calls or three_turns()))
    plan = make_plan(select_chain(receipts))
    return store, plan, save_routes(store, [plan])


def test_a_rollout_goes_on_from_its_file_as_if_nothing_had_happened():
    """I20; staged before, assembled after, and with a turn that came in between."""
    store, plan, data = saved(*three_turns()[:2])
    loaded, plans = load_routes(data, schema=SCHEMA)
    assert plans == [plan] and loaded.receipts == store.receipts and loaded.schema == store.schema
    for key, row in store.rows.items():
        assert (
            torch.equal(loaded.rows[key].routes, row.routes) and loaded.rows[key].routes.dtype == torch.int8
        )
        assert torch.equal(loaded.rows[key].tokens, row.tokens)
        assert loaded.rows[key].boundary_index == row.boundary_index
    both = [assemble(plan, s, SCHEMA, length=8, on_failure="reject") for s in (store, loaded)]
    assert torch.equal(both[0].routes, both[1].routes)
    assert torch.equal(both[0].provenance, both[1].provenance)
    assert stage(loaded, three_turns()[2])[1] == stage(store, three_turns()[2])[1]
    assert save_routes(loaded, plans) == data


def test_calls_without_routes_and_an_empty_store_survive():
    bare = replace(call("c0", [1], [2]), routes=None)
    loaded, _ = load_routes(saved(bare)[2])
    assert loaded.rows["r/c0"].routes is None
    assert not load_routes(save_routes(RouteStore(SCHEMA)))[0].rows


def rewritten(data, **changes):
    with np.load(io.BytesIO(data)) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    for key, value in changes.items():
        if value is None:
            header.pop(key)
        else:
            header[key] = value
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


BOUNDARY, PLAN = "routed_experts_boundary_schema_version", "route_plan_schema_version"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({BOUNDARY: None}, f"ckpt/7 has {BOUNDARY} None; it must be 1. nothing migrates"),
        ({BOUNDARY: 2}, f"{BOUNDARY} 2"),
        ({BOUNDARY: True}, f"{BOUNDARY} True"),
        ({PLAN: 4}, f"{PLAN} 4"),
        ({PLAN: None}, f"{PLAN} None"),
        ({"format": "else"}, "no routes"),
        ({"schema": {}}, "header does not fit"),
        ({"receipts": None}, "header does not fit"),
        ({"receipts": [{}]}, "header does not fit"),
    ],
)
def test_a_checkpoint_of_another_schema_is_refused(changes, match):
    with pytest.raises(CheckpointSchemaError, match=match):
        load_routes(rewritten(saved()[2], **changes), where="ckpt/7")


def test_a_checkpoint_without_boundaries_is_read_where_that_is_allowed():
    older = rewritten(saved()[2], **{BOUNDARY: None})
    assert len(load_routes(older, require_boundary=False)[0].rows) == 3
    with pytest.raises(CheckpointSchemaError):
        load_routes(rewritten(saved()[2], **{BOUNDARY: 2}), require_boundary=False)


def test_a_checkpoint_of_another_model_is_refused():
    with pytest.raises(CheckpointSchemaError, match=r"num_experts=8.*num_experts=9"):
        load_routes(saved()[2], schema=RouteSchema(9, 2, (1, 3, 4), "toy"))


@pytest.mark.parametrize("cut", [0, 10, 400, -1])
def test_a_half_written_file_is_refused(cut):
    with pytest.raises(CheckpointSchemaError, match="damaged or half written"):
        load_routes(saved()[2][:cut])


@pytest.mark.parametrize("name", ["routes_1", "boundary_1"])
def test_routes_that_changed_in_the_file_are_refused_by_call(name):
    with np.load(io.BytesIO(saved()[2])) as file:
        arrays = dict(file)
    arrays[name] = (arrays[name] + 1) % 8
    file = io.BytesIO()
    np.savez(file, **arrays)
    with pytest.raises(RouteCorruptionError, match="r/c1 were changed"):
        load_routes(file.getvalue())


@pytest.mark.parametrize("field", ["weight_version", "gen_n", "extras_digest"])
def test_receipts_that_changed_in_the_file_are_refused_by_call(field):
    store, _, data = saved()
    receipts = [receipt.to_json() for receipt in store.receipts.values()]
    receipts[1][field] = "0" * 64 if field == "extras_digest" else 9
    with pytest.raises(RouteCorruptionError, match="r/c1"):
        load_routes(rewritten(data, receipts=receipts))


def test_a_byte_changed_anywhere_in_the_file_is_seen():
    data = saved(call("c0", [1], [2]))[2]
    place = data.index(b"routes_0.npy") + 12 + 128  # in the routes
    changed = bytearray(data)
    changed[place] ^= 1
    with pytest.raises((CheckpointSchemaError, RouteCorruptionError)):
        load_routes(bytes(changed))


class Engine:
    routed_experts_boundary_schema_version = 1


def test_an_engine_with_boundaries_may_start():
    require_boundary_support(Engine())
    require_boundary_support(Engine)


@pytest.mark.parametrize("version", [None, 0, 2, True, "1"])
def test_an_engine_without_boundaries_is_refused_at_the_start(version):
    class Older:
        routed_experts_boundary_schema_version = version

    for engine in (Older(), Older):
        with pytest.raises(BoundarySupportError, match=rf"Older\.{BOUNDARY} is {version!r}; it must be 1"):
            require_boundary_support(engine)
    with pytest.raises(BoundarySupportError, match="object"):
        require_boundary_support(object())


def test_the_metadata_of_a_checkpoint_says_its_versions():
    assert route_versions() == {BOUNDARY: 1, PLAN: 3}
    check_route_versions("ckpt", {"step": 3, **route_versions()})
    check_route_versions("ckpt", {BOUNDARY: 1, PLAN: 2})
    with pytest.raises(CheckpointSchemaError, match="ckpt"):
        check_route_versions("ckpt", {"step": 3})
