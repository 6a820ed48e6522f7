"""What the mask hides never matters, and what is left when it hides everything."""

import pytest
import torch

from fnroll.core.tree import tree_equal
from fnroll.grpo import (
    aggregate,
    grpo_policy_loss,
    importance_weights,
    mismatch_metrics,
    overlong_mask,
    policy_kl,
    rejection_mask,
)
from tests.grpo.helpers import f64, loss_and_grad, random_batch

JUNK = [float("nan"), float("inf"), float("-inf"), 200.0, -200.0, 1e38]
OPTIONS = [
    {"kl_coef": 0.1, "kl": "k3"},
    {"kl_coef": 0.0, "kl": "k3"},
    {"kl_coef": 0.1, "kl": "k2", "ratio": "sequence"},
    {"kl_coef": 0.0, "kl": "k1", "objective": "cispo"},
    {"kl_coef": 0.1, "dual_clip": 2.0, "aggregation": "sample_mean"},
    {"kl_coef": 0.1, "aggregation": "sequence_sum", "horizon": 8},
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("junk", JUNK)
def test_hidden_positions_touch_neither_loss_nor_metrics_nor_gradient(options, junk, dtype):
    new, old, ref, row_advantages, mask = (
        x.to(dtype) if x.is_floating_point() else x for x in random_batch(1)
    )
    mask[2] = False
    advantages, weights = row_advantages[:, None].repeat(1, 6), torch.ones_like(new)
    clean = loss_and_grad(new, old, advantages, mask, ref_log_probs=ref, weights=weights, **options)
    tensors = [new, old, advantages, ref, weights]
    for chosen in [[0], [1], [2], [3], [4], range(5)]:
        dirty = [torch.where(mask, x, junk) if k in chosen else x for k, x in enumerate(tensors)]
        found = loss_and_grad(*dirty[:3], mask, ref_log_probs=dirty[3], weights=dirty[4], **options)
        assert found[0] == clean[0] and torch.isfinite(found[0])
        assert torch.equal(found[1], clean[1])
        assert tree_equal(found[2], clean[2])


def test_masking_after_exp_would_be_caught():
    # The numbers of the known mistake: a hidden log-ratio of 200 in float32.
    new, ref = torch.tensor([[-1.1, -200.0]]), torch.tensor([[-1.0, 0.0]])
    mask = torch.tensor([[True, False]])
    late = ((ref - new).exp() - (ref - new) - 1) * mask
    assert late.isnan().any()
    loss, grad, _ = loss_and_grad(new, new, torch.zeros(1), mask, ref_log_probs=ref, kl_coef=1.0)
    torch.testing.assert_close(loss, torch.tensor(0.00517), atol=1e-5, rtol=0)
    assert grad[0, 1] == 0 and torch.isfinite(grad).all()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0), (0, 0)])
def test_nothing_left_to_train(options, shape):
    """Case grpo-loss-02: all masked, no record, no token; 0 with a gradient of zeros, never 0/0."""
    junk = torch.full(shape, float("nan"))
    advantages = torch.full(shape[:1], float("nan"))
    mask = torch.zeros(shape, dtype=torch.bool)
    loss, grad, metrics = loss_and_grad(junk, junk, advantages, mask, ref_log_probs=junk, **options)
    assert loss == 0 and torch.equal(grad, torch.zeros(shape))
    for name in ("clip_low", "clip_high", "ratio_mean", "ratio_max", "kl_old", "kl_ref", "num_tokens"):
        assert getattr(metrics, name) == 0, name


@pytest.mark.parametrize("denominator", [0, 0.0, torch.tensor(0)])
def test_a_denominator_of_zero_gives_zero(denominator):
    new = torch.zeros(2, 3)
    loss, grad, _ = loss_and_grad(
        new, new, torch.ones(2), torch.zeros(2, 3, dtype=torch.bool), denominator=denominator
    )
    assert loss == 0 and not grad.any()


def test_a_denominator_below_one_counts_as_it_is():
    # One token on the first of eight ranks, whose gradients a trainer averages.
    mask = torch.tensor([[True, False]])
    loss, _, _ = loss_and_grad(torch.zeros(1, 2), None, torch.ones(1), mask, denominator=torch.tensor(1 / 8))
    assert loss == -8


def test_an_empty_row_counts_nowhere_in_a_sample_mean():
    """Case grpo-loss-02: neither above nor below the line."""
    values = f64([[1.0, 3.0], [5.0, 7.0], [9.0, 9.0]])
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    assert aggregate(values, mask, aggregation="sample_mean") == (2.0 + 5.0) / 2
    assert aggregate(values, mask, aggregation="sequence_sum", horizon=4) == (4.0 + 5.0) / (2 * 4)
    assert aggregate(values, mask) == 3.0


def test_filtered_tokens_leave_the_denominator_with_the_numerator():
    """Case grpo-loss-02: numerator and denominator are of one mask."""
    new, old, _, advantages, mask = random_batch(2)
    kept = overlong_mask(mask, torch.tensor([False, True, False, True]))
    loss, grad, metrics = loss_and_grad(new, old, advantages, kept)
    rows = torch.tensor([0, 2])
    alone, _, _ = loss_and_grad(new[rows], old[rows], advantages[rows], mask[rows])
    torch.testing.assert_close(loss, alone)
    assert not grad[1].any() and metrics.num_tokens == mask[rows].sum()


def test_a_token_that_counts_and_is_nan_is_not_hidden():
    new = torch.tensor([[0.0, float("nan")]])
    loss, _ = grpo_policy_loss(new, torch.zeros(1, 2), torch.ones(1), torch.ones(1, 2, dtype=torch.bool))
    assert loss.isnan()


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_mean"])
def test_hidden_positions_touch_no_correction(junk, level):
    new, old, ref, _, mask = (x.float() if x.is_floating_point() else x for x in random_batch(4))
    mask[3] = False
    dirty_new, dirty_old = torch.where(mask, new, junk), torch.where(mask, old, junk)
    for call in (importance_weights, rejection_mask, mismatch_metrics):
        clean = call(new, old, mask, level=level)
        for pair in [(dirty_new, old), (new, dirty_old), (dirty_new, dirty_old)]:
            assert tree_equal(call(*pair, mask, level=level), clean)
    for kl in ("k1", "k2", "k3"):
        clean = policy_kl(new, ref, mask, kl=kl)
        assert torch.equal(policy_kl(dirty_new, dirty_old, mask, kl=kl), policy_kl(new, old, mask, kl=kl))
        assert not clean[3].any()


@pytest.mark.parametrize("kl", ["k1", "k2", "k3"])
def test_an_infinite_estimate_with_coefficient_zero_is_left_out(kl):
    new, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, float("-inf")]])
    mask = torch.ones((1, 2), dtype=torch.bool)
    loss, grad, metrics = loss_and_grad(new, new, torch.ones(1), mask, ref_log_probs=ref, kl=kl)
    assert loss == -1 and torch.equal(grad, torch.full((1, 2), -0.5)) and metrics.kl_loss == 0


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean", "sequence_sum"])
def test_hidden_values_are_not_aggregated(aggregation, junk):
    values, mask = torch.tensor([[1.0, junk], [junk, junk]]), torch.tensor([[True, False], [False, False]])
    with torch.enable_grad():
        leaf = values.requires_grad_()
        total = aggregate(leaf, mask, aggregation=aggregation, horizon=1)
        total.backward()
    assert total == 1 and leaf.grad.tolist() == [[1.0, 0.0], [0.0, 0.0]]
