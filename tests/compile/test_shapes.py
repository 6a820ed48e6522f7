"""The shapes of compiled steps: few, known beforehand, and with little padding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fnroll.compile.shapes import LEAST_COLUMNS, Buckets, DecodeShape, PrefillShape

buckets = st.builds(Buckets, st.integers(1, 300), st.integers(2, 9000))


def test_sixteen_rows_of_512_tokens_are_seventeen_graphs():
    found = Buckets(16, 512)
    assert found.decodes() == [
        *(DecodeShape(rows, window) for rows in (4, 8) for window in (128, 512)),
        *(DecodeShape(16, window) for window in (64, 128, 256, 512)),
    ]
    assert found.prefills() == [
        *(PrefillShape(rows, 16, 512) for rows in (1, 4, 16)),
        *(PrefillShape(rows, 64, 512) for rows in (1, 4, 16)),
        *(PrefillShape(rows, 256, 512) for rows in (1, 4, 16)),
    ]


def plan(found, count, tokens):
    """Return the `(rows fed, rows computed, width)` of every forward of one prefill."""
    forwards, done = [], 0
    while done < tokens:
        width = found.width(count, tokens - done)
        forwards += [(part, height, width) for part, height in found.split(range(count), width)]
        done += width
    return forwards


@given(buckets, st.data())
def test_every_shape_that_is_used_is_in_the_list(found, data):
    count = data.draw(st.integers(1, found.num_rows))
    tokens = data.draw(st.integers(1, found.max_length - 1))
    known, done = set(found.prefills()), 0
    for _, height, width in plan(found, count, tokens):
        assert PrefillShape(height, width, found.prefill_window(max(tokens, width))) in known
        assert height <= found.num_rows
        done += width
    shape = found.decode(count, tokens + 1)
    assert shape in found.decodes()
    assert count <= shape.rows <= found.num_rows
    assert tokens < shape.window <= found.max_length


@given(buckets, st.data())
def test_a_prefill_feeds_every_row_once_and_pads_little(found, data):
    count = data.draw(st.integers(1, found.num_rows))
    tokens = data.draw(st.integers(1, found.max_length - 1))
    forwards = plan(found, count, tokens)
    widths = dict.fromkeys(range(count), 0)
    for rows, _, width in forwards:
        for row in rows:
            widths[row] += width
    assert all(width >= tokens for width in widths.values())
    # Either the shapes fit, or more forwards would cost more: the bound is that of a row alone.
    spent = sum(max(LEAST_COLUMNS, height * width) for _, height, width in forwards)
    alone = sum(max(LEAST_COLUMNS, width) for _, _, width in plan(found, 1, tokens))
    assert spent <= count * alone
    assert alone <= max(LEAST_COLUMNS, 4 * tokens)


@given(buckets)
def test_the_number_of_graphs_grows_with_logarithms(found):
    rows, length = found.num_rows.bit_length(), found.max_length.bit_length()
    assert len(found.decodes()) <= max(len(found.decode_rows), 2 * (length - 4))
    assert len(found.prefills()) <= 4 * (rows // 2 + 2) * (length // 2 + 2)
    assert len(set(found.prefills())) == len(found.prefills())


@pytest.mark.parametrize(
    ("count", "tokens", "expected"),
    [
        (1, 5, [(1, 16)]),  # as quick as five columns
        (1, 300, [(1, 256), (1, 64)]),  # not 256 twice
        (5, 60, [(4, 64), (1, 64)]),  # not sixteen rows for five
        (16, 63, [(16, 64)]),
        (5, 10, [(16, 16)]),  # of ways that cost the same, the largest
    ],
)
def test_examples(count, tokens, expected):
    assert [(height, width) for _, height, width in plan(Buckets(16, 512), count, tokens)] == expected
