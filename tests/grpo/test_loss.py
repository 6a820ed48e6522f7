import itertools
import math

import pytest
import torch

from fnroll.grpo import Segments, combine_metrics, grpo_policy_loss, loss_denominator
from tests.grpo.helpers import f64, loss_and_grad, random_batch, reference

AGGREGATIONS = [("token_mean", None), ("sample_mean", None), ("sequence_sum", 11)]


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("objective", ["ppo", "cispo"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize(("aggregation", "horizon"), AGGREGATIONS)
def test_value_and_gradient_equal_the_formula(aggregation, horizon, ratio, objective):
    for seed, kl, dual in itertools.product(range(3), ["k1", "k2", "k3", None], [None, 1.5]):
        if objective == "cispo" and dual:
            continue
        new, old, ref, advantages, mask = random_batch(seed)
        coef = 0.3 if kl else 0.0
        common = {"aggregation": aggregation, "horizon": horizon, "ratio": ratio, "objective": objective}
        lists = (new.tolist(), old.tolist(), advantages.tolist(), mask.tolist())
        expected = reference(
            *lists, low=0.1, high=0.3, dual=dual, kl_coef=coef, ref=ref.tolist(), kl=kl or "k3", **common
        )
        loss, grad, _ = loss_and_grad(
            new, old, advantages, mask, clip_low=0.1, clip_high=0.3, dual_clip=dual, kl_coef=coef,
            ref_log_probs=ref, kl=kl or "k3", **common,
        )  # fmt: skip
        same(loss, f64(expected[0]))
        same(grad, f64(expected[1]))


def test_weights_scale_the_policy_term_and_not_the_kl_term():
    new, old, ref, advantages, mask = random_batch(3)
    weights = torch.rand(mask.shape, dtype=torch.float64) * 2
    options = {"kl_coef": 0.5, "ref": ref.tolist(), "weights": weights.tolist()}
    expected = reference(new.tolist(), old.tolist(), advantages.tolist(), mask.tolist(), **options)
    loss, grad, metrics = loss_and_grad(
        new, old, advantages, mask, kl_coef=0.5, ref_log_probs=ref, weights=weights
    )
    same(loss, f64(expected[0]))
    same(grad, f64(expected[1]))
    same(metrics.policy_loss + metrics.kl_loss, loss)


# ratio, advantage, value of the loss, gradient by the log-prob: clip_low 0.2, clip_high 0.28.
CLIPPING = [
    (3.0, -1.0, 3.0, 3.0),  # min before the product would say 1.28
    (3.0, 1.0, -1.28, 0.0),
    (0.1, 1.0, -0.1, -0.1),
    (0.1, -1.0, 0.8, 0.0),  # the low bound, not 1 - clip_high
    (1.2, 1.0, -1.2, -1.2),
    (0.9, -1.0, 0.9, 0.9),
    (1.0, 2.0, -2.0, -2.0),
    (1.0, -2.0, 2.0, 2.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "value", "slope"), CLIPPING)
def test_clipping_by_sign(ratio, advantage, value, slope):
    """Case grpo-loss-04: the minimum is of the products; no gradient exactly where a bound is in force."""
    mask = torch.ones((1, 1), dtype=torch.bool)
    loss, grad, metrics = loss_and_grad(
        f64([[math.log(ratio) - 2.0]]), f64([[-2.0]]), f64([advantage]), mask, clip_low=0.2, clip_high=0.28
    )
    same(loss, f64(value))
    same(grad, f64([[slope]]))
    assert metrics.clip_high == (slope == 0 and ratio > 1) and metrics.clip_low == (slope == 0 and ratio < 1)


def test_a_ratio_exactly_on_the_bound_is_not_clipped():
    """Case grpo-loss-04."""
    # 1.25 and its logarithm's exponential are one number in float32.
    log = torch.tensor([[1.25]]).log()
    assert log.exp() == 1.25
    mask = torch.ones((1, 1), dtype=torch.bool)
    loss, grad, metrics = loss_and_grad(log, torch.zeros(1, 1), torch.ones(1), mask, clip_high=0.25)
    assert (loss, grad, metrics.clip_high) == (-1.25, -1.25, 0)


def test_the_high_bound_may_be_the_nearer_one():
    """Case grpo-loss-04: clip_high below clip_low."""
    mask = torch.ones((1, 2), dtype=torch.bool)
    new = f64([[0.5, 1.2]]).log()
    loss, _, _ = loss_and_grad(
        new, torch.zeros_like(new), f64([[-1.0, 1.0]]), mask, clip_low=0.3, clip_high=0.1
    )
    same(loss, f64((0.7 - 1.1) / 2))


def test_dual_clip_bounds_the_loss_of_bad_tokens_only():
    """Case grpo-loss-04."""
    mask = torch.ones((1, 3), dtype=torch.bool)
    new = f64([[5.0, 5.0, 2.0]]).log()
    loss, grad, metrics = loss_and_grad(
        new, torch.zeros_like(new), f64([[-1.0, 1.0, -1.0]]), mask, dual_clip=3.0
    )
    same(loss, f64((3.0 - 1.2 + 2.0) / 3))
    same(grad, f64([[0.0, 0.0, 2.0 / 3]]))
    same(metrics.clip_dual, torch.tensor(1 / 3))


@pytest.mark.parametrize("objective", ["ppo", "cispo"])
@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1e6])
def test_extreme_ratios_stay_finite(objective, advantage, log_ratio):
    """Case grpo-loss-04: a log-ratio of 100 on a token that counts."""
    mask = torch.ones((1, 1), dtype=torch.bool)
    new = torch.tensor([[-3.0]])
    loss, grad, metrics = loss_and_grad(
        new, new - log_ratio, torch.tensor([advantage]), mask, objective=objective
    )
    assert torch.isfinite(loss) and torch.isfinite(grad).all() and metrics.share_bounded == 1
    if objective == "ppo" and advantage < 0 and log_ratio > 0:
        torch.testing.assert_close(loss, torch.tensor(math.exp(20.0)))
        assert grad == 0


def test_gradient_equals_finite_differences():
    """Case grpo-loss-04."""
    new, old, ref, advantages, mask = random_batch(5)
    options = {"kl_coef": 0.2, "ref_log_probs": ref, "dual_clip": 2.0, "clip_high": 0.28}
    _, grad, _ = loss_and_grad(new, old, advantages, mask, **options)
    for i, t in itertools.product(range(2), range(4)):
        step = torch.zeros_like(new)
        step[i, t] = 1e-6
        up, _ = grpo_policy_loss(new + step, old, advantages, mask, **options)
        down, _ = grpo_policy_loss(new - step, old, advantages, mask, **options)
        torch.testing.assert_close(grad[i, t], (up - down) / 2e-6, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("objective", ["ppo", "cispo"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_without_old_log_probs_every_ratio_is_one(ratio, objective):
    new, _, _, advantages, mask = random_batch(6)
    loss, grad, metrics = loss_and_grad(new, None, advantages, mask, ratio=ratio, objective=objective)
    assert metrics.ratio_mean == 1 and metrics.kl_old == 0
    expected = loss_and_grad(new, new, advantages, mask, ratio=ratio, objective=objective)
    same(loss, expected[0])
    same(grad, expected[1])
    same(grad, -advantages[:, None] * mask / mask.sum())


def test_token_advantages_with_the_ratio_of_the_record():
    new, old, _, _, mask = random_batch(7, spread=0.05)
    advantages = torch.randn(mask.shape, dtype=torch.float64)
    _, grad, _ = loss_and_grad(new, old, advantages, mask, ratio="sequence")
    mean = ((new - old) * mask).sum(1) / mask.sum(1).clamp(min=1)
    same(grad, -mean.exp()[:, None] * advantages * mask / mask.sum())


def test_nothing_is_changed_and_nothing_but_the_policy_gets_a_gradient():
    new, old, ref, advantages, mask = random_batch(8)
    weights = torch.ones_like(new)
    before = [x.clone() for x in (new, old, ref, advantages, mask, weights)]
    with torch.enable_grad():
        leaves = [x.requires_grad_() for x in (new, old, ref, advantages, weights)]
        loss, metrics = grpo_policy_loss(
            new, old, advantages, mask, kl_coef=0.1, ref_log_probs=ref, weights=weights
        )
        loss.backward()
    assert leaves[0].grad is not None and all(leaf.grad is None for leaf in leaves[1:])
    assert not metrics.policy_loss.requires_grad and not metrics.ratio_mean.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(before, (new, old, ref, advantages, mask, weights)))  # noqa: B905


def test_half_precision_is_computed_in_float32():
    new, old, _, advantages, mask = random_batch(9)
    loss, _, _ = loss_and_grad(new.bfloat16(), old.bfloat16(), advantages, mask)
    expected, _, _ = loss_and_grad(new.bfloat16().float(), old.bfloat16().float(), advantages, mask)
    assert loss.dtype == torch.float32 and loss == expected


def test_metrics_by_hand():
    new = f64([[3.0, 0.1, 1.0, 1.1]]).log()
    mask = torch.tensor([[True, True, True, True]])
    _, _, metrics = loss_and_grad(
        new, torch.zeros_like(new), f64([[1.0, -1.0, 1.0, 1.0]]), mask, ref_log_probs=new - 0.5, kl="k1"
    )
    assert metrics.clip_high == 0.25 and metrics.clip_low == 0.25 and metrics.clip_dual == 0
    same(metrics.ratio_mean, f64(5.2 / 4))
    same(metrics.ratio_max, f64(3.0))
    same(metrics.kl_old, -new.mean())
    same(metrics.kl_ref, f64(0.5))
    assert metrics.kl_loss == 0 and metrics.num_tokens == 4 and metrics.num_records == 1


def test_metrics_of_microbatches_combine_to_those_of_the_step():
    new, old, ref, advantages, mask = random_batch(10)
    denominator = loss_denominator(mask)
    options = {"kl_coef": 0.1, "denominator": denominator}
    _, whole = grpo_policy_loss(new, old, advantages, mask, ref_log_probs=ref, **options)
    parts = [
        grpo_policy_loss(new[s], old[s], advantages[s], mask[s], ref_log_probs=ref[s], **options)[1]
        for s in (slice(0, 1), slice(1, 4))
    ]
    combined = combine_metrics(parts)
    for name in ("policy_loss", "kl_loss", "clip_low", "clip_high", "ratio_mean", "ratio_max", "kl_ref"):
        torch.testing.assert_close(getattr(combined, name), getattr(whole, name), rtol=1e-6, atol=1e-7)
    assert combined.num_tokens == whole.num_tokens and combined.num_records == whole.num_records
    with pytest.raises(ValueError, match="one microbatch"):
        combine_metrics([])


def test_the_loss_is_one_graph():
    new, old, ref, advantages, mask = random_batch(11)
    segments = Segments(record=torch.arange(4)[:, None].expand(4, 6).contiguous(), num_records=4)

    def step(new, old, advantages, mask, ref, segments, denominator):
        return grpo_policy_loss(
            new, old, advantages, mask, ref_log_probs=ref, kl_coef=0.1, ratio="sequence",
            segments=segments, denominator=denominator,
        )[0]  # fmt: skip

    args = (new, old, advantages, mask, ref, segments, loss_denominator(mask))
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    same(compiled(*args), step(*args))


BAD = [
    ({"old_log_probs": torch.zeros(4, 5)}, r"old_log_probs has shape \[4, 5\] and loss_mask \[4, 6\]"),
    ({"log_probs": torch.zeros(4, 7)}, r"log_probs has shape \[4, 7\]"),
    ({"advantages": torch.zeros(6)}, r"advantages has shape \[6\] .*advantages must be \[4\]"),
    ({"ref_log_probs": torch.zeros(1, 6)}, "ref_log_probs has shape"),
    ({"weights": torch.zeros(4, 1)}, r"weights has shape \[4, 1\]"),
    ({"loss_mask": torch.ones(4, 6)}, "loss_mask is torch.float32 .*must be torch.bool"),
    ({"loss_mask": torch.ones(6, dtype=torch.bool)}, r"loss_mask is torch.bool of shape \[6\]"),
    ({"clip_low": -0.1}, "clip_low is -0.1; it must be a finite number at least 0 and at most 1"),
    ({"clip_low": 1.5}, "clip_low is 1.5"),
    ({"clip_high": math.nan}, "clip_high is nan"),
    ({"dual_clip": 1.0}, "dual_clip is 1.0; it must be above 1"),
    ({"dual_clip": 3.0, "objective": "cispo"}, "dual_clip is 3.0"),
    ({"kl_coef": 0.1}, "ref_log_probs is None"),
    ({"kl_coef": -0.1, "ref_log_probs": torch.zeros(4, 6)}, "kl_coef is -0.1"),
    ({"kl": "k4", "ref_log_probs": torch.zeros(4, 6)}, "kl is 'k4'; it must be one of 'k1', 'k2', 'k3'"),
    ({"ratio": "record"}, "ratio is 'record'"),
    ({"objective": "ppg"}, "objective is 'ppg'"),
    ({"aggregation": "mean"}, "aggregation is 'mean'"),
    ({"aggregation": "sequence_sum"}, "horizon is None"),
    ({"denominator": -1.0}, "denominator is -1.0"),
    ({"segments": Segments(record=torch.zeros(4, 5).long(), num_records=1)}, "segments.record is"),
    ({"segments": Segments(record=torch.zeros(4, 6), num_records=1)}, "segments.record is torch.float32"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_named(change, message):
    new, old, _, advantages, mask = random_batch(0)
    arguments = {"log_probs": new, "old_log_probs": old, "advantages": advantages, "loss_mask": mask}
    with pytest.raises(ValueError, match=message):
        grpo_policy_loss(**{**arguments, **change})
