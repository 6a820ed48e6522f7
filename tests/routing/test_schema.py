"""Types: the schema of a model, its dtype, and which tensors are routes."""

import pytest
import torch

from fnroll.routing import (
    RouteDtypeError,
    RouteSchema,
    RouteShapeError,
    RouteValueError,
    check_routes,
    narrow_routes,
    route_dtype,
)
from tests.routing.helpers import SCHEMA

SIZES = [1, 8, 127, 128, 129, 256, 32768, 32769]


def wide_schema(num_experts, top_k=2):
    return RouteSchema(num_experts=num_experts, top_k=min(top_k, num_experts), layer_ids=(0,))


@pytest.mark.parametrize(
    ("num_experts", "dtype"),
    [(1, torch.int8), (127, torch.int8), (128, torch.int8), (129, torch.int16), (256, torch.int16),
     (32768, torch.int16), (32769, torch.int32)],
)  # fmt: skip
def test_the_dtype_is_the_smallest_that_holds_all_experts_and_minus_one(num_experts, dtype):
    assert route_dtype(num_experts) == dtype
    assert torch.iinfo(dtype).max >= num_experts - 1


@pytest.mark.parametrize("num_experts", SIZES)
def test_every_id_and_minus_one_survive_the_narrow_dtype(num_experts):
    """I10."""
    schema = wide_schema(num_experts, top_k=1)
    ids = torch.arange(-1, num_experts)[:, None, None]
    narrow = narrow_routes("routes", ids, schema)
    assert narrow.dtype == schema.dtype
    assert torch.equal(narrow.long(), ids)


@pytest.mark.parametrize("num_experts", SIZES[1:])
def test_the_last_expert_is_valid_and_the_one_behind_it_is_not(num_experts):
    """I11; compared in int8, 128 would be -128, and every id of 128 experts would be too large."""
    schema = wide_schema(num_experts)
    check_routes("routes", torch.tensor([[[num_experts - 1, 0]]], dtype=schema.dtype), schema)
    for wide in (torch.int64, torch.int32):
        with pytest.raises(RouteValueError, match=f"0 to {num_experts - 1}"):
            narrow_routes("routes", torch.tensor([[[num_experts, 0]]], dtype=wide), schema)


@pytest.mark.parametrize("num_experts", SIZES)
def test_whatever_topk_returns_is_valid(num_experts):
    """I11."""
    schema = wide_schema(num_experts, top_k=8)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.rand((50, num_experts), generator=generator).topk(schema.top_k).indices
    narrow = narrow_routes("routes", chosen[:, None], schema)
    check_routes("routes", narrow, schema, 50)
    assert torch.equal(narrow.long()[:, 0], chosen)


@pytest.mark.parametrize("row", [[-1, 3], [3, -1], [2, 2], [0, 8], [-2, 0], [-2, -2]])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_a_row_that_is_no_choice_is_refused_by_token_layer_and_row(row, dtype):
    routes = torch.tensor([[0, 1]]).repeat(4, 3, 1).to(dtype)
    routes[2, 1] = torch.tensor(row)
    with pytest.raises(RouteValueError) as error:
        narrow_routes("routes of r/c1", routes, SCHEMA)
    message = str(error.value)
    assert message.startswith("routes of r/c1: token 2, layer 3 has " + str(row)), message
    assert "2 different experts from 0 to 7, or -1" in message


def test_ids_beyond_the_dtype_are_refused_before_they_wrap():
    """200 in int8 is -56, and 255 in int8 is -1, which would mean native."""
    for value in (200, 255, 256):
        with pytest.raises(RouteValueError):
            narrow_routes("routes", torch.tensor([[[value, value]] * 3]), SCHEMA)


def test_rows_of_minus_one_are_native_and_experts_0_to_k_can_be_real():
    routes = torch.cat([SCHEMA.missing(2), SCHEMA.placeholder(2)])
    check_routes("routes", routes, SCHEMA, 4)
    routes[3, 1] = -1
    check_routes("routes", routes, SCHEMA, 4)


@pytest.mark.parametrize(
    ("routes", "error", "match"),
    [
        (torch.zeros(4, 2, 2, dtype=torch.int8), RouteShapeError, r"\[4, 2, 2\].*3 layers with a router"),
        (torch.zeros(4, 3, 3, dtype=torch.int8), RouteShapeError, "2 experts a token"),
        (torch.zeros(3, 2, dtype=torch.int8), RouteShapeError, "shape"),
        ([[[0, 1]]], RouteShapeError, "list"),
        (SCHEMA.placeholder(4).to(torch.int16), RouteDtypeError, "int16; it must be torch.int8.*8 experts"),
        (SCHEMA.placeholder(4).to(torch.uint8), RouteDtypeError, "uint8"),
        (SCHEMA.placeholder(5), RouteShapeError, r"must be \[4,"),
    ],
)
def test_other_shapes_and_dtypes_are_refused(routes, error, match):
    with pytest.raises(error, match=match):
        check_routes("routes", routes, SCHEMA, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint64])
def test_numbers_that_are_no_ids_are_refused(dtype):
    with pytest.raises(RouteDtypeError, match="integers"):
        narrow_routes("routes", SCHEMA.placeholder(1).to(dtype), SCHEMA)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_experts", 0), ("num_experts", True), ("top_k", 0), ("top_k", 9), ("layer_ids", ()),
     ("layer_ids", [1]), ("layer_ids", (3, 1)), ("layer_ids", (1, 1)), ("layer_ids", (-1,)),
     ("model_id", None)],
)  # fmt: skip
def test_a_schema_that_no_model_has_is_refused_by_field(field, value):
    fields = {"num_experts": 8, "top_k": 2, "layer_ids": (1, 3), "model_id": ""}
    with pytest.raises(ValueError, match=f"RouteSchema.{field}"):
        RouteSchema(**{**fields, field: value})


def test_a_schema_survives_json():
    assert RouteSchema.from_json(SCHEMA.to_json()) == SCHEMA


def test_placeholders_are_different_experts_and_never_zeros():
    rows = RouteSchema(num_experts=128, top_k=8, layer_ids=tuple(range(48))).placeholder(2)
    assert rows.shape == (2, 48, 8) and rows.dtype == torch.int8
    assert rows[1, 47].tolist() == list(range(8))


def test_a_record_of_a_large_model_takes_under_two_megabytes():
    """128 experts, 48 layers, 8 a token, 4096 tokens: a byte an id."""
    schema = RouteSchema(num_experts=128, top_k=8, layer_ids=tuple(range(48)))
    assert schema.missing(4096).nbytes == 4096 * schema.bytes_per_token < 2_000_000
    assert schema.bytes_per_token == 48 * 8
