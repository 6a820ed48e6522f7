import pytest
import torch

from fnroll.grpo import Segments, aggregate, loss_denominator
from tests.grpo.helpers import f64


def ragged(*lengths):
    width = max(lengths)
    return torch.tensor([[t < length for t in range(width)] for length in lengths])


def test_a_mean_of_means_is_not_the_mean():
    short, long = torch.full((1, 100), 2.0), torch.full((1, 900), 0.5)
    masks = [torch.ones_like(x, dtype=torch.bool) for x in (short, long)]
    denominator = loss_denominator(*masks)
    parts = [aggregate(x, m, denominator=denominator) for x, m in zip((short, long), masks, strict=True)]
    assert sum(parts).item() == pytest.approx(0.65)
    means = [aggregate(x, m) for x, m in zip((short, long), masks, strict=True)]
    assert (sum(means) / 2).item() == pytest.approx(1.25)


def test_counts():
    masks = [ragged(3, 1), ragged(0, 2)]
    assert loss_denominator(*masks) == 6
    assert loss_denominator(*masks, aggregation="sample_mean") == 3
    assert loss_denominator(*masks, aggregation="sequence_sum", horizon=10) == 30
    assert loss_denominator() == 0 and loss_denominator(*masks).dtype == torch.int64


def test_counts_of_packed_batches():
    mask = torch.tensor([[True, True, False, True, False]])
    segments = Segments(record=torch.tensor([[0, 0, 1, 2, 0]]), num_records=4)
    options = {"aggregation": "sample_mean"}
    assert loss_denominator(mask, segments=[segments], **options) == 2
    assert loss_denominator(mask, mask, segments=[segments, None], **options) == 3
    with pytest.raises(ValueError, match="zip"):
        loss_denominator(mask, mask, segments=[segments], **options)


def test_each_aggregation_by_hand():
    values, mask = f64([[1.0, 2.0, 3.0], [10.0, 0.0, 0.0]]), ragged(3, 1)
    assert aggregate(values, mask) == 4.0
    assert aggregate(values, mask, aggregation="sample_mean") == 6.0
    assert aggregate(values, mask, aggregation="sequence_sum", horizon=8) == 1.0
    assert aggregate(values, mask, aggregation="sequence_sum", denominator=4) == 4.0
    assert aggregate(values, mask, denominator=torch.tensor([8])) == 2.0


@pytest.mark.parametrize("horizon", [None, 0, -3])
def test_a_horizon_is_a_constant_that_the_caller_knows(horizon):
    with pytest.raises(ValueError, match=f"horizon is {horizon}"):
        loss_denominator(ragged(2), aggregation="sequence_sum", horizon=horizon)
