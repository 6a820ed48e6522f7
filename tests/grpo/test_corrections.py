"""Truncated records, rewards within a record, estimates of divergence, and measures of mismatch."""

import pytest
import torch

from fnroll.grpo import (
    Segments,
    importance_weights,
    mismatch_metrics,
    overlong_mask,
    overlong_penalty,
    policy_kl,
    token_returns,
)
from fnroll.grpo.mismatch import QUANTILES
from tests.grpo.helpers import f64, loss_and_grad, random_batch

OBSERVED = torch.tensor([[True, True, False, False, True, True]])


def test_overlong_mask_by_record():
    mask = torch.ones((1, 4), dtype=torch.bool)
    segments = Segments(record=torch.tensor([[0, 0, 1, 1]]), num_records=2)
    kept = overlong_mask(mask, torch.tensor([True, False]), segments=segments)
    assert kept.tolist() == [[False, False, True, True]]
    with pytest.raises(ValueError, match=r"shape \[1\], not \[2\]"):
        overlong_mask(mask, torch.tensor([True, False]))
    with pytest.raises(ValueError, match=r"is_truncated is torch\.int64"):
        overlong_mask(mask, torch.tensor([1]))


def test_overlong_penalty_is_the_three_part_line():
    lengths = torch.tensor([0, 80, 81, 90, 100, 120])
    found = overlong_penalty(lengths, max_length=100, buffer=20)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, -0.05, -0.5, -1.0, -1.0]))
    torch.testing.assert_close(overlong_penalty(lengths, max_length=100, buffer=20, factor=2.0), 2 * found)
    for buffer in (0, 101):
        with pytest.raises(ValueError, match=f"buffer is {buffer}"):
            overlong_penalty(lengths, max_length=100, buffer=buffer)


def test_credit_reaches_across_tool_output():
    rewards = f64([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    assert token_returns(rewards, OBSERVED).tolist() == [[1, 1, 0, 0, 1, 1]]
    # A record's advantage reaches every turn too.
    _, grad, _ = loss_and_grad(torch.zeros(1, 6), None, torch.ones(1), OBSERVED, denominator=1)
    assert (-grad).tolist() == [[1, 1, 0, 0, 1, 1]]


def test_time_passes_with_sampled_tokens_only():
    rewards = f64([[0.0, 2.0, 7.0, float("nan"), 0.0, 1.0]])
    found = token_returns(rewards, OBSERVED, gamma=0.5)
    assert found.tolist() == [[1.125, 2.25, 0.0, 0.0, 0.5, 1.0]]
    assert token_returns(torch.zeros(2, 0), torch.zeros((2, 0), dtype=torch.bool)).shape == (2, 0)
    with pytest.raises(ValueError, match=r"gamma is 1\.1"):
        token_returns(rewards, OBSERVED, gamma=1.1)
    with pytest.raises(ValueError, match="rewards has shape"):
        token_returns(rewards[:, 1:], OBSERVED)


@pytest.mark.parametrize("bounded", [False, True])
def test_kl_estimators_far_apart(bounded):
    new, ref = torch.tensor([[-1.0, -300.0, -1.0]]), torch.tensor([[-1.0, -1.0, -300.0]])
    mask = torch.ones((1, 3), dtype=torch.bool)
    k3 = policy_kl(new, ref, mask, output_bound=10.0 if bounded else None)
    assert torch.isfinite(k3).all() and (k3 >= 0).all() and k3[0, 0] == 0
    assert (k3.max() == 10) == bounded
    assert policy_kl(new, ref, mask, kl="k1").tolist() == [[0.0, -299.0, 299.0]]


def test_k3_keeps_its_digits_near_zero():
    new, ref = torch.tensor([[-0.5]]), torch.tensor([[-0.5 - 2**-13]])
    found = policy_kl(new, ref, torch.ones((1, 1), dtype=torch.bool))
    torch.testing.assert_close(found, torch.tensor([[2**-27]]), rtol=1e-2, atol=0)


def test_estimators_agree_with_the_divergence_in_expectation():
    # p is the policy; each estimate is averaged over its tokens with their probabilities.
    p, q = f64([0.5, 0.3, 0.2]), f64([0.4, 0.4, 0.2])
    divergence = (p * (p / q).log()).sum()
    mask = torch.ones((1, 3), dtype=torch.bool)
    for kl in ("k1", "k3"):
        mean = (p * policy_kl(p.log()[None], q.log()[None], mask, kl=kl)[0]).sum()
        torch.testing.assert_close(mean, divergence)


def test_what_the_gradient_of_each_estimator_is_in_expectation():
    # Over the policy's own tokens: k1 nothing, k2 the divergence, k3 the divergence the other way round.
    logits, q = f64([0.3, -0.2, 0.1]), f64([0.4, 0.4, 0.2])
    mask = torch.ones((1, 3), dtype=torch.bool)

    def gradient(loss):
        with torch.enable_grad():
            leaf = logits.clone().requires_grad_()
            loss(leaf.log_softmax(0)).backward()
        return leaf.grad

    p = logits.softmax(0)
    estimates = {
        kl: gradient(lambda log_p, kl=kl: (p * policy_kl(log_p[None], q.log()[None], mask, kl=kl)[0]).sum())
        for kl in ("k1", "k2", "k3")
    }
    torch.testing.assert_close(estimates["k1"], torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(
        estimates["k2"], gradient(lambda log_p: (log_p.exp() * (log_p - q.log())).sum())
    )
    torch.testing.assert_close(estimates["k3"], gradient(lambda log_p: (q * (q.log() - log_p)).sum()))


@pytest.mark.parametrize("level", ["token", "sequence", "sequence_mean"])
def test_mismatch_metrics_by_formula(level):
    new, old, _, _, mask = random_batch(30)
    mask[1] = False
    log_ratio = torch.where(mask, new - old, 0.0)
    d = log_ratio[mask]
    if level == "sequence":
        ratio = log_ratio.sum(1, keepdim=True).exp().expand(mask.shape)[mask]
    elif level == "sequence_mean":
        ratio = (log_ratio.sum(1) / mask.sum(1).clamp(min=1)).exp()[:, None].expand(mask.shape)[mask]
    else:
        ratio = d.exp()
    found = mismatch_metrics(new, old, mask, level=level, lower=0.8, upper=1.3)
    torch.testing.assert_close(found.ratio_quantiles, torch.quantile(ratio, f64(QUANTILES)))
    torch.testing.assert_close(found.kl_k1, -d.mean())
    torch.testing.assert_close(found.kl_k3, (d.exp() - 1 - d).mean())
    torch.testing.assert_close(found.effective_sample_size, ratio.sum() ** 2 / (ratio**2).sum() / len(ratio))
    assert found.share_above.item() == pytest.approx((ratio > 1.3).double().mean().item())
    assert found.share_below.item() == pytest.approx((ratio < 0.8).double().mean().item())
    assert found.num_tokens == len(ratio)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)])
def test_mismatch_of_nothing_is_zero(shape):
    mask, junk = torch.zeros(shape, dtype=torch.bool), torch.full(shape, float("nan"))
    found = mismatch_metrics(junk, junk, mask)
    assert not found.ratio_quantiles.any()
    assert found.kl_k1 == found.kl_k3 == found.effective_sample_size == found.share_above == 0
    assert importance_weights(junk, junk, mask).tolist() == torch.zeros(shape).tolist()


def test_an_unchanged_policy_has_weights_of_one():
    _, old, _, _, mask = random_batch(31)
    for level in ("token", "sequence", "sequence_mean"):
        assert torch.equal(importance_weights(old, old, mask, level=level), mask.double())
        assert mismatch_metrics(old, old, mask, level=level).effective_sample_size == 1


def test_a_token_outside_the_support_has_no_weight():
    new, old = torch.tensor([[float("-inf"), -1.0]]), torch.tensor([[-2.0, -1.0]])
    mask = torch.ones((1, 2), dtype=torch.bool)
    assert importance_weights(new, old, mask, mode="mask", lower=0.5).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "geometric"}, "level is 'geometric'"),
        ({"mode": "clip"}, "mode is 'clip'"),
        ({"upper": -1.0}, "upper is -1.0"),
        ({"lower": 3.0}, "lower is 3.0; it must be a number at least 0 and at most 2"),
    ],
)
def test_bad_corrections_are_named(options, message):
    new, old, _, _, mask = random_batch(0)
    with pytest.raises(ValueError, match=message):
        importance_weights(new, old, mask, **options)
    with pytest.raises(ValueError, match="rollout_log_probs has shape"):
        importance_weights(new, old[:, 1:], mask)
