"""How far a replay was from the model's own choice."""

import pytest
import torch

from fnroll.core.tree import tree_equal
from fnroll.routing import (
    ScoreFunction,
    combine_replay_metrics,
    count_provenance,
    from_tape,
    native_routes,
    replay_metrics,
    select_experts,
)
from tests.routing.helpers import SCHEMA, true_routes

SCORE = ScoreFunction("softmax_norm")
# Two layers; the first prefers experts 0, 1, 2, 3 in that order, the second 3, 2, 1, 0.
UP = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log().repeat(5, 1)
LOGITS = [UP, UP.flip(1)]
NATIVE = torch.stack([select_experts(one, 2, SCORE) for one in LOGITS], dim=1)
#          layer 0, layer 1
WANTED = torch.tensor(
    [
        [[0, 1], [3, 2]],  # the model's own choice
        [[1, 0], [2, 3]],  # the same in another order
        [[0, 2], [3, 2]],  # differs in the first layer
        [[-1, -1], [0, 1]],  # unknown in the first, both others in the second
        [[-1, -1], [-1, -1]],
    ],
    dtype=torch.int8,
)


def test_shares_are_those_counted_by_hand():
    found = replay_metrics(LOGITS, WANTED, NATIVE, SCORE)
    assert found.num_tokens == 5 and found.num_flipped_tokens == 2
    assert found.num_forced.tolist() == [3, 4] and found.num_missing.tolist() == [2, 1]
    assert found.num_flipped.tolist() == [1, 1]
    torch.testing.assert_close(found.flip_share, torch.tensor([1 / 3, 1 / 4]))
    torch.testing.assert_close(found.missing_share, torch.tensor([2 / 5, 1 / 5]))
    assert found.token_flip_share.item() == pytest.approx(2 / 5)


def test_weight_below_the_models_own_minimum_is_counted_by_layer():
    """Layer 0: expert 2, of weight 0.2 / 0.6. Layer 1: experts 0 and 1, all of the weight."""
    found = replay_metrics(LOGITS, WANTED, NATIVE, SCORE)
    torch.testing.assert_close(found.weight_below, torch.tensor([1 / 3, 1.0]))
    torch.testing.assert_close(found.weight_below_share, torch.tensor([1 / 9, 1 / 4]))
    torch.testing.assert_close(found.min_forced_score, torch.tensor([0.2 / 0.3, 0.1 / 0.3]))


def test_what_does_not_count_is_left_out():
    found = replay_metrics(
        LOGITS, WANTED, NATIVE, SCORE, counted=torch.tensor([True, True, False, False, False])
    )
    assert found.num_tokens == 2 and found.num_flipped.sum() == 0 and found.num_missing.sum() == 0
    assert found.weight_below.sum() == 0
    none = replay_metrics(LOGITS, WANTED, NATIVE, SCORE, counted=torch.zeros(5, dtype=torch.bool))
    assert none.flip_share.tolist() == [0, 0] and none.token_flip_share == 0
    assert none.min_forced_score.tolist() == [torch.inf] * 2


def test_a_replay_of_the_own_choice_differs_nowhere():
    found = replay_metrics(LOGITS, NATIVE, NATIVE, SCORE)
    assert found.num_flipped.sum() == 0 and found.weight_below.sum() == 0
    assert found.min_forced_score.tolist() == [1, 1]


@pytest.mark.parametrize("cut", [0, 2, 5])
def test_microbatches_add_up(cut):
    whole = replay_metrics(LOGITS, WANTED, NATIVE, SCORE)
    parts = [
        replay_metrics([one[rows] for one in LOGITS], WANTED[rows], NATIVE[rows], SCORE)
        for rows in (slice(0, cut), slice(cut, 5))
    ]
    assert tree_equal(combine_replay_metrics(parts), whole, close=torch.allclose)
    with pytest.raises(ValueError, match="one microbatch"):
        combine_replay_metrics([])


def test_metrics_have_no_gradient():
    with torch.enable_grad():
        live = [one.clone().requires_grad_() for one in LOGITS]
        found = replay_metrics(live, WANTED, NATIVE, SCORE)
    assert not found.weight_below.requires_grad and not found.min_forced_score.requires_grad


def test_where_routes_come_from_is_counted():
    tape = torch.cat([true_routes((1, 2)), SCHEMA.missing(1)])
    counts = count_provenance([from_tape(tape, SCHEMA), native_routes(SCHEMA, 4, "missing_fragment")])
    assert counts == {
        "real": 2, "repaired": 0, "placeholder": 0, "missing": 1, "native": 4, "native_rollouts": 1,
    }  # fmt: skip
