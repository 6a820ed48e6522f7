"""What a recorded log-prob means for the ratio, in numbers."""

import math

import pytest
import torch

from fnroll import RolloutRecord
from fnroll.grpo import loss_denominator, old_log_probs_from_rollout
from tests.grpo.helpers import loss_and_grad


def ratio_of(new, old):
    mask = torch.ones((1, 1), dtype=torch.bool)
    tensors = (torch.tensor([[float(x)]]) for x in (new, old))
    return loss_and_grad(*tensors, torch.ones(1), mask)[2].ratio_mean.item()


def test_the_temperature_belongs_to_both_sides():
    logits = torch.tensor([1.0, 2.0, 4.0])
    right = (logits / 0.6).log_softmax(-1)[0].item()
    raw = logits.log_softmax(-1)[0].item()
    assert (right, raw, raw / 0.6) == pytest.approx((-5.0415, -3.1698, -5.2831), abs=1e-4)
    assert ratio_of(right, right) == 1
    assert ratio_of(raw, right) > 2 and ratio_of(raw / 0.6, right) < 0.8


def test_a_truncated_support_is_normalised_over_on_both_sides():
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    recorded = (p[1] / p[:2].sum()).log().item()
    assert recorded == pytest.approx(-0.847, abs=1e-3)
    assert ratio_of(p[1].log(), recorded) == pytest.approx(0.7)
    assert ratio_of(recorded, recorded) == 1


def test_a_sampled_stop_token_keeps_its_own_log_prob():
    # p(stop) = 0.01: with the 0.0 of a synthetic one, an unchanged policy would have a ratio of 0.01.
    stop = math.log(0.01)
    sampled = record(log_probs=(0.0, -1.0, stop))
    old, mask = old_log_probs_from_rollout([sampled])
    assert mask.tolist() == [[False, True, True]]
    for level in ("token", "sequence"):
        assert loss_and_grad(old, old, torch.ones(1), mask, ratio=level)[2].ratio_mean == 1
    synthetic = record(log_probs=(0.0, -1.0, 0.0), loss_mask=(False, True, False))
    assert old_log_probs_from_rollout([synthetic])[1].sum() == 1


def record(**fields):
    defaults = {"tokens": (5, 6, 2), "loss_mask": (False, True, True), "log_probs": (0.0, -1.0, -2.0)}
    return RolloutRecord(prompt_ids=[5], prompt_length=1, prompt_id="p7", sample=2, **{**defaults, **fields})


def test_padding_is_on_the_right_and_told_by_length_not_by_id():
    # The stop id, 2, is the padding id too, and stands in the tool output.
    long = record(
        tokens=(5, 6, 2, 2, 2),
        loss_mask=(False, True, True, False, True),
        log_probs=(0.0, -1.0, -2.0, 0.0, -3.0),
    )
    old, mask = old_log_probs_from_rollout([record(), long], width=6)
    assert old.dtype == torch.float32 and old.tolist() == [
        [0.0, -1.0, -2.0, 0.0, 0.0, 0.0],
        [0.0, -1.0, -2.0, 0.0, -3.0, 0.0],
    ]
    assert mask.int().tolist() == [[0, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 0]]
    assert loss_denominator(mask) == 5


def test_what_was_not_sampled_is_not_read():
    old, _ = old_log_probs_from_rollout([record(log_probs=(math.nan, -1.0, -2.0))])
    assert old.tolist() == [[0.0, -1.0, -2.0]]


def test_no_records_and_records_without_a_sampled_token():
    assert old_log_probs_from_rollout([])[0].shape == (0, 0)
    old, mask = old_log_probs_from_rollout([record(loss_mask=(False,) * 3, log_probs=(0.0,) * 3)])
    assert not mask.any() and not old.any()


class Loose:
    """A record of another library, whose constructor checks nothing."""

    label = "record q/1"

    def __init__(self, tokens, loss_mask, log_probs):
        self.tokens, self.loss_mask, self.log_probs = tokens, loss_mask, log_probs


BAD = [
    (record(log_probs=None), "record p7/2 has no log_probs; roll it out, with return_log_probs on"),
    (RolloutRecord(prompt_ids=[1]), r"record \?/0 has no tokens, no loss_mask, no log_probs"),
    (Loose([1, 2], [False, True], [0.0]), "record q/1: .*tokens 2, loss_mask 2, log_probs 1"),
    (Loose([1, 2], [False], [0.0, -1.0]), "record q/1: .*loss_mask 1"),
    (Loose([1, 2], [False, True], [0.0, None]), r"record q/1: log_probs\[1\] is None"),
    (record(log_probs=(0.0, math.nan, -1.0)), r"record p7/2: log_probs\[1\] is nan"),
    (record(log_probs=(0.0, -1.0, -math.inf)), r"record p7/2: log_probs\[2\] is -inf"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_record_that_cannot_be_trained_on_is_named(bad, message):
    """Case logprob-03: nothing is filled up with 0, which is probability 1, and no list is cut to another."""
    with pytest.raises(ValueError, match=message):
        old_log_probs_from_rollout([record(), bad])


def test_lists_out_of_step_are_no_record():
    with pytest.raises(ValueError, match=r"record p7/2: .*tokens 3, loss_mask 3, log_probs 2"):
        record(log_probs=(0.0, -1.0))


def test_too_narrow():
    with pytest.raises(ValueError, match="record p7/2 has 3 tokens; width is 2"):
        old_log_probs_from_rollout([record()], width=2)
