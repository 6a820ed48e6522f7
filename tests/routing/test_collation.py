"""Routes in batches: left, right, packed; padding is native."""

import pytest
import torch

from fnroll.routing import RouteDtypeError, RouteShapeError, collate, from_tape, native_routes, separate
from tests.routing.helpers import SCHEMA, true_routes

RECORDS = [from_tape(true_routes(tokens), SCHEMA) for tokens in ((1, 2, 3), (4,), (5, 6))]
MASKS = {
    "right": torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]),
    "left": torch.tensor([[0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 1, 1]]),
    "both": torch.tensor([[1, 1, 1, 0], [0, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.bool),
}
ENDS = torch.tensor([0, 3, 4, 6])


@pytest.mark.parametrize("side", MASKS)
def test_rows_are_placed_where_the_tokens_are(side):
    """I13."""
    mask = MASKS[side]
    batch = collate(RECORDS, attention_mask=mask)
    assert batch.shape == (3, 4, 3, 2) and batch.dtype == torch.int8
    assert (batch[mask == 0] == -1).all()
    for row, (record, back) in enumerate(zip(RECORDS, separate(batch, attention_mask=mask), strict=True)):
        assert torch.equal(back, record.routes)
        assert torch.equal(batch[row][mask[row] != 0], record.routes)


@pytest.mark.parametrize("width", [None, 6, 8])
def test_packed_records_follow_one_another(width):
    """I13."""
    batch = collate(RECORDS, cu_seqlens=ENDS, width=width)
    assert batch.shape == (1, width or 6, 3, 2)
    assert torch.equal(batch[0, :6], torch.cat([record.routes for record in RECORDS]))
    assert (batch[0, 6:] == -1).all()
    for record, back in zip(RECORDS, separate(batch, cu_seqlens=ENDS), strict=True):
        assert torch.equal(back, record.routes)


def test_a_native_record_is_all_minus_one():
    batch = collate(
        [RECORDS[0], native_routes(SCHEMA, 1, "missing_fragment")], attention_mask=MASKS["left"][:2]
    )
    assert (batch[1] == -1).all() and (batch[0, 1:] != -1).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "either"),
        ({"attention_mask": MASKS["left"], "cu_seqlens": ENDS}, "either"),
        ({"attention_mask": MASKS["left"][:2]}, "3 records and places for 2"),
        ({"attention_mask": MASKS["left"].flip(0)}, "record 0 has routes of 3 tokens; the batch has 2"),
        ({"attention_mask": torch.ones(4)}, r"must be \[B, S\]"),
        ({"attention_mask": MASKS["left"], "width": 4}, "width"),
        ({"cu_seqlens": torch.tensor([0, 3, 4, 5])}, "record 2 has routes of 2 tokens; the batch has 1"),
        ({"cu_seqlens": torch.tensor([1, 3, 4, 6])}, "start at 0"),
        ({"cu_seqlens": torch.tensor([0, 4, 3, 6])}, "not fall"),
        ({"cu_seqlens": ENDS, "width": 5}, "width is 5; the records end at 6"),
    ],
)
def test_places_that_do_not_fit_are_refused(options, match):
    with pytest.raises(RouteShapeError, match=match):
        collate(RECORDS, **options)


def test_records_of_two_models_or_none_are_refused():
    other = from_tape(true_routes((1,)), SCHEMA)
    wide = type(other)(other.routes.to(torch.int16), other.provenance)
    with pytest.raises(RouteDtypeError, match="different schemas"):
        collate([RECORDS[1], wide], attention_mask=torch.ones(2, 1))
    with pytest.raises(RouteShapeError, match="one record"):
        collate([], attention_mask=torch.ones(0, 1))
    with pytest.raises(RouteShapeError, match="mask"):
        separate(collate(RECORDS, attention_mask=MASKS["left"]), attention_mask=MASKS["left"][:, 1:])
