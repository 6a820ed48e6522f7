"""The `nrlre1` envelope, what commits to routes, and routes in a line of a file."""

import base64
import hashlib
import json
import struct

import pytest
import torch

from fnroll.routing import (
    AssembledRoutes,
    EnvelopeError,
    RouteSchema,
    decode_routed_experts,
    encode_routed_experts,
    from_json,
    from_tape,
    native_routes,
    routed_experts_tensor_metadata,
    routed_experts_token_count,
    to_json,
)
from tests.routing.helpers import SCHEMA, true_routes

DTYPES = [torch.int8, torch.int16, torch.int32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_dtype_survive_the_envelope(dtype):
    routes = torch.arange(5 * 3 * 2).reshape(5, 3, 2).to(dtype)
    routes[4] = -1
    routes[2, 0, 1] = torch.iinfo(dtype).max
    text = encode_routed_experts(routes)
    assert text.startswith(f"nrlre1:{str(dtype)[6:]}:5x3x2:")
    back = decode_routed_experts(text)
    assert back.dtype == dtype and torch.equal(back, routes)
    assert torch.equal(decode_routed_experts(text, torch.int32), routes.int())
    assert routed_experts_token_count(text) == 5
    back[0, 0, 0] = 3  # the memory is the tensor's own


def test_the_bytes_are_little_endian():
    data = base64.b64encode(struct.pack("<4h", 1, -1, 256, 2)).decode()
    assert encode_routed_experts(torch.tensor([[[1, -1]], [[256, 2]]], dtype=torch.int16)) == (
        f"nrlre1:int16:2x1x2:{data}"
    )


def test_nested_lists_of_older_writers_are_read():
    assert decode_routed_experts([[[1, 2]], [[3, -1]]], torch.int16).tolist() == [[[1, 2]], [[3, -1]]]
    assert decode_routed_experts([[[1, 2]]]).dtype == torch.int32
    assert routed_experts_token_count([[[1, 2]], [[3, 4]]]) == 2


def _text(shape="2x1x2", dtype="int16", data=None):
    return f"nrlre1:{dtype}:{shape}:" + (base64.b64encode(bytes(8)).decode() if data is None else data)


@pytest.mark.parametrize(
    ("payload", "match"),
    [
        ("not an envelope", "no envelope"),
        (_text().replace("nrlre1", "nrlre2"), "no envelope"),
        (_text(dtype="int64"), "dtype 'int64'"),
        (_text(dtype="float16"), "dtype"),
        (_text(shape="2x2"), "shape '2x2'"),
        (_text(shape="0x1x2", data=""), "shape"),
        (_text(shape="-1x-2x2"), "shape"),
        (_text(shape="2x1xa"), "shape"),
        (_text(shape="5x1x2"), "8 bytes; expected 20"),
        (_text(data="!!"), "base64"),
        (_text(data=""), "0 bytes; expected 8"),
        ([], "one token"),
        ({}, "nested lists"),
        (None, "nested lists"),
        ([[[1, 2]], [[3]]], "ragged"),
        ([[[1, 2]], []], "ragged"),
        ([[[1.5, 2]]], "integers"),
        ([[[True]]], "integers"),
        ([[1, 2]], "integers"),
        ([[[]]], "integers"),
    ],
)
def test_what_is_no_envelope_is_refused(payload, match):
    with pytest.raises(EnvelopeError, match=match):
        decode_routed_experts(payload)


@pytest.mark.parametrize(
    "payload", ["nrlre2:int16:1x1x1:AA==", _text(shape="0x1x1"), _text(dtype="uint8"), [], None]
)
def test_counting_tokens_refuses_what_reading_refuses(payload):
    with pytest.raises(EnvelopeError):
        routed_experts_token_count(payload)


def test_a_value_that_the_asked_dtype_cannot_hold_is_refused():
    for payload in (encode_routed_experts(torch.tensor([[[200]]], dtype=torch.int16)), [[[2**20]]]):
        with pytest.raises(EnvelopeError, match="cannot hold"):
            decode_routed_experts(payload, torch.int8)
    with pytest.raises(EnvelopeError, match="dtype"):
        decode_routed_experts([[[1]]], torch.int64)


@pytest.mark.parametrize(
    "routes",
    [torch.zeros(3, 2, dtype=torch.int16), torch.zeros(2, 3, 2), torch.zeros(2, 3, 2, dtype=torch.int64),
     torch.zeros(0, 3, 2, dtype=torch.int8), [[[1]]]],
)  # fmt: skip
def test_what_no_envelope_can_carry_is_refused(routes):
    for function in (encode_routed_experts, routed_experts_tensor_metadata):
        with pytest.raises(EnvelopeError, match=r"shape|dtype"):
            function(routes)


def test_metadata_commits_to_dtype_shape_and_bytes_and_not_to_strides():
    routes = torch.tensor([[[1, -1]], [[256, 2]]], dtype=torch.int16)
    metadata = routed_experts_tensor_metadata(routes)
    digest = hashlib.sha256(struct.pack("<4h", 1, -1, 256, 2)).hexdigest()
    assert metadata == {"dtype": "int16", "shape": [2, 1, 2], "sha256": digest}
    changed = routes.clone()
    changed[0, 0, 0] += 1
    for other in (routes.int(), routes.reshape(1, 2, 2), changed):
        assert routed_experts_tensor_metadata(other) != metadata
    strided = torch.arange(24, dtype=torch.int16).reshape(4, 3, 2).transpose(1, 2)
    assert routed_experts_tensor_metadata(strided) == routed_experts_tensor_metadata(strided.contiguous())


def test_routes_of_a_record_survive_a_line_of_json():
    routes = from_tape(torch.cat([true_routes((1, 2, 3)), SCHEMA.missing(1)]), SCHEMA)
    for one in (routes, native_routes(SCHEMA, 3, "missing_fragment"), native_routes(SCHEMA, 0, "no_spans")):
        back = from_json(json.loads(json.dumps(to_json(one))))
        assert torch.equal(back.routes, one.routes) and back.routes.dtype == one.routes.dtype
        assert torch.equal(back.provenance, one.provenance)
        assert (back.status, back.reason) == (one.status, one.reason)


@pytest.mark.parametrize("field", ["routes", "provenance"])
@pytest.mark.parametrize("damage", [lambda t: t[:-8], lambda t: t.replace("fnr1", "fnr2"), lambda t: t[:14],
                                    lambda t: t.replace("int8:", "int16:"), lambda t: None,
                                    lambda t: t.replace("4", "5", 1)])  # fmt: skip
def test_a_damaged_line_is_refused(field, damage):
    line = to_json(from_tape(true_routes((1, 2, 3, 4)), SCHEMA))
    with pytest.raises(EnvelopeError):
        from_json({**line, field: damage(line[field])})


def test_a_line_with_other_fields_or_provenance_is_refused():
    line = to_json(from_tape(true_routes((1, 2)), SCHEMA))
    with pytest.raises(EnvelopeError, match="fields"):
        from_json({**line, "more": 1})
    odd = AssembledRoutes(true_routes((1, 2)), torch.tensor([0, 9], dtype=torch.uint8))
    with pytest.raises(EnvelopeError, match="provenance has 9"):
        from_json(to_json(odd))


def test_a_record_of_a_large_model_stays_under_two_megabytes_as_text():
    """Its base64 alone is 2.1 MB; ids below 128 leave a bit a byte to be packed away."""
    schema = RouteSchema(num_experts=128, top_k=8, layer_ids=tuple(range(48)))
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand((64, 48, 128), generator=generator)
    some = scores.topk(8).indices.to(torch.int8)
    order = torch.randint(64, (4096,), generator=generator)
    # Worst case for a packer: experts drawn evenly, in no order.
    ids = torch.randint(128, (4096, 48, 8), generator=generator, dtype=torch.int8)
    for routes in (some[order], ids):
        line = json.dumps(to_json(AssembledRoutes(routes, torch.zeros(4096, dtype=torch.uint8))))
        assert len(line) < 2_000_000
    assert schema.missing(4096).nbytes == ids.nbytes
