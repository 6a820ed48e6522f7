"""The documented conventions of other trainers, written as their formulas, and how to get them here."""

import math

import pytest
import torch

from fnroll.grpo import group_advantages, importance_weights, loss_denominator, policy_kl, rejection_mask
from tests.grpo.helpers import f64, loss_and_grad, random_batch


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def with_grad(formula, new):
    with torch.enable_grad():
        leaf = new.clone().requires_grad_()
        loss = formula(leaf)
        loss.backward()
    return loss.detach(), leaf.grad


def check(formula, new, *args, **options):
    loss, grad, _ = loss_and_grad(new, *args, **options)
    expected = with_grad(formula, new)
    close(loss, expected[0])
    close(grad, expected[1])


# TRL: loss_type decides the normaliser; kl is k3; std eps 1e-4, ddof 1.
TRL = {
    "grpo": (lambda x, m: ((x * m).sum(-1) / m.sum(-1).clamp(min=1.0)).mean(), "sample_mean", None),
    "bnpo": (lambda x, m: (x * m).sum() / m.sum().clamp(min=1.0), "token_mean", None),
    "dapo": (lambda x, m: (x * m).sum() / 50, "token_mean", 50),
    "dr_grpo": (lambda x, m: (x * m).sum() / (x.shape[0] * 16), "sequence_sum", None),
}


@pytest.mark.parametrize("loss_type", TRL)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_trl_loss_types(loss_type, level):
    new, old, ref, advantages, mask = random_batch(20)
    reduce, aggregation, denominator = TRL[loss_type]

    def formula(log_probs):
        log_ratio = log_probs - old
        if level == "sequence":
            log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
        r = log_ratio.exp()
        a = advantages.unsqueeze(1)
        loss = -torch.min(r * a, torch.clamp(r, 1 - 0.2, 1 + 0.28) * a)
        kl = torch.exp(ref - log_probs) - (ref - log_probs) - 1
        return reduce(loss + 0.04 * kl, mask)

    check(
        formula, new, old, advantages, mask, clip_low=0.2, clip_high=0.28, kl_coef=0.04, ref_log_probs=ref,
        ratio=level, aggregation=aggregation, denominator=denominator,
        horizon=16 if loss_type == "dr_grpo" else None,
    )  # fmt: skip


def test_trl_counts_rows_without_a_token_in_grpo():
    new, old, _, advantages, mask = random_batch(21)
    mask[2] = False

    def formula(x):
        loss = -torch.min((x - old).exp() * a, (x - old).exp().clamp(0.8, 1.2) * a)
        return TRL["grpo"][0](loss, mask)

    a = advantages.unsqueeze(1)
    check(formula, new, old, advantages, mask, aggregation="sample_mean", denominator=4)


def test_trl_delta_is_dual_clip_where_it_is_above_the_high_bound():
    new, old, _, advantages, mask = random_batch(22, spread=1.5)
    a = advantages.unsqueeze(1)

    def formula(x):
        r = (x - old).exp()
        loss = -torch.min(torch.clamp(r, max=1.5) * a, torch.clamp(r, 0.8, 1.2) * a)
        return TRL["bnpo"][0](loss, mask)

    assert ((new - old).exp() > 1.5).any()
    check(formula, new, old, advantages, mask, dual_clip=1.5)


def test_trl_cispo_bound_is_the_ratio_itself():
    new, old, _, advantages, mask = random_batch(23, spread=1.5)
    a = advantages.unsqueeze(1)

    def formula(x):
        r = torch.clamp((x - old).exp(), max=5.0).detach()
        return (-r * a * x * mask).sum() / 40

    check(
        formula,
        new,
        old,
        advantages,
        mask,
        objective="cispo",
        clip_low=1.0,
        clip_high=5.0 - 1,
        denominator=40,
    )


def test_trl_reward_scaling():
    rewards = torch.tensor([0.0, 1.0, 1.0, 0.5, 0.0, 0.25], dtype=torch.float64)
    groups = rewards.view(2, 3)
    centred = groups - groups.mean(1, keepdim=True)
    for scale, std in [("group", groups.std(1, keepdim=True)), ("batch", rewards.std())]:
        expected = (centred / (std + 1e-4)).flatten()
        found = group_advantages(rewards, [0] * 3 + [1] * 3, scale=scale, eps=1e-4, dtype=torch.float64)
        close(found, expected)


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_trl_importance_sampling(level, mode):
    new, old, _, _, mask = random_batch(24)
    diff = (new - old) * mask
    ratio = torch.exp(diff.sum(-1, keepdim=True) if level == "sequence" else diff).expand(mask.shape)
    cap = 1.5
    expected = ratio.clamp(max=cap) if mode == "truncate" else ratio.masked_fill(ratio > cap, 0.0)
    found = importance_weights(new, old, mask, level=level, mode=mode, upper=cap)
    close(found[mask], expected[mask])


# verl: masked sums with global counts; log-ratio clamped to 20; k3 clamped to 10; std eps 1e-6, ddof 1.
VERL = {
    "token-mean": (lambda x, m: (x * m).sum() / m.sum(), "token_mean", None),
    "seq-mean-token-mean": (
        lambda x, m: ((x * m).sum(-1) / m.sum(-1)).mean(), "sample_mean", None,
    ),
    "seq-mean-token-sum": (lambda x, m: (x * m).sum(-1).mean(), "sequence_sum", 1),
    "seq-mean-token-sum-norm": (lambda x, m: (x * m).sum(-1).mean() / 32, "sequence_sum", 32),
}  # fmt: skip


@pytest.mark.parametrize("mode", VERL)
def test_verl_vanilla_loss(mode):
    new, old, _, advantages, mask = random_batch(25, spread=1.5)
    new[0, 0] = old[0, 0] + 25.0
    reduce, aggregation, horizon = VERL[mode]
    a = advantages.unsqueeze(1)

    def formula(log_probs):
        r = torch.exp(torch.clamp(log_probs - old, min=-20.0, max=20.0))
        plain, clipped = -a * r, -a * torch.clamp(r, 1 - 0.2, 1 + 0.28)
        worse = torch.maximum(plain, clipped)
        bounded = torch.min(-a * 3.0, worse)
        return reduce(torch.where(a < 0, bounded, worse), mask)

    check(
        formula, new, old, advantages, mask, clip_high=0.28, dual_clip=3.0, aggregation=aggregation,
        horizon=horizon,
    )  # fmt: skip


def test_verl_gspo():
    new, old, _, advantages, mask = random_batch(26)
    a = advantages.unsqueeze(1)

    def formula(log_probs):
        mean = ((log_probs - old) * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        combined = log_probs - log_probs.detach() + mean.detach().unsqueeze(-1)
        r = torch.exp(torch.clamp(combined, max=10.0))
        loss = torch.maximum(-a * r, -a * torch.clamp(r, 1 - 0.03, 1 + 0.04))
        return VERL["seq-mean-token-mean"][0](loss, mask)

    check(
        formula, new, old, advantages, mask, ratio="sequence", clip_low=0.03, clip_high=0.04,
        aggregation="sample_mean",
    )  # fmt: skip


def test_verl_cispo_bound_is_one_plus_epsilon():
    new, old, _, advantages, mask = random_batch(27, spread=1.5)
    a = advantages.unsqueeze(1)

    def formula(x):
        r = (x - old).exp().clamp(1 - 0.2, 1 + 0.28).detach()
        return VERL["token-mean"][0](-r * a * x, mask)

    check(formula, new, old, advantages, mask, objective="cispo", clip_high=0.28)


def test_verl_low_var_kl():
    new, ref = f64([[-1.0, -30.0, -1.0]]), f64([[-1.5, -1.0, -9.0]])
    mask = torch.ones((1, 3), dtype=torch.bool)
    d = torch.clamp(ref - new, min=-20, max=20)
    expected = torch.clamp(d.exp() - d - 1, min=-10, max=10)
    close(policy_kl(new, ref, mask, output_bound=10.0), expected)


def test_verl_grpo_advantages_but_for_single_records():
    rewards = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 1.0])
    groups = rewards.view(2, 3)
    expected = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(group_advantages(rewards, [0] * 3 + [1] * 3), expected.flatten())
    with pytest.warns(UserWarning, match="one scored record"):
        # There the raw reward, 5, would be the advantage.
        assert group_advantages([5.0], [0]) == 0


def test_verl_rloo_and_dr_grpo_advantages():
    rewards = f64([0.0, 1.0, 1.0, 0.25])
    n = len(rewards)
    rloo = rewards * n / (n - 1) - rewards.mean() * n / (n - 1)
    options = {"scale": "none", "dtype": torch.float64}
    close(group_advantages(rewards, [0] * n, baseline="leave_one_out", **options), rloo)
    close(group_advantages(rewards, [0] * n, **options), rewards - rewards.mean())


def test_icepop_interval():
    new = f64([[0.4, 0.6, 1.0, 4.9, 5.1]]).log()
    mask = torch.ones((1, 5), dtype=torch.bool)
    weights = importance_weights(new, torch.zeros_like(new), mask, mode="mask", lower=0.5, upper=5.0)
    close(weights, f64([[0.0, 0.6, 1.0, 4.9, 0.0]]))
    kept = rejection_mask(new, torch.zeros_like(new), mask, lower=0.5, upper=5.0)
    assert kept.tolist() == [[False, True, True, True, False]]


def test_rejection_shrinks_the_denominator_and_masking_weights_do_not():
    new, old, _, advantages, mask = random_batch(28)
    bounds = {"lower": 0.7, "upper": 1.4}
    kept = rejection_mask(new, old, mask, **bounds)
    weights = importance_weights(new, old, mask, mode="mask", **bounds)
    assert 0 < kept.sum() < mask.sum() and torch.equal(weights > 0, kept)
    rejected, _, _ = loss_and_grad(new, None, advantages, kept)
    masked, _, _ = loss_and_grad(new, None, advantages, mask, weights=(weights > 0).double())
    close(rejected * kept.sum(), masked * mask.sum())


def test_mean_over_ranks_needs_the_denominator_of_a_rank():
    # Data-parallel wrappers average gradients: there the denominator is the global count / ranks.
    new, old, _, advantages, mask = random_batch(29)
    _, whole, _ = loss_and_grad(new, old, advantages, mask)
    denominator = loss_denominator(mask) / 2
    halves = [
        loss_and_grad(new[s], old[s], advantages[s], mask[s], denominator=denominator)[1]
        for s in (slice(0, 2), slice(2, 4))
    ]
    close(torch.cat(halves) / 2, whole)


def test_a_wrong_temperature_is_not_a_factor():
    raw = [math.log(math.e / (math.e + 1)), -0.6265]
    assert raw[0] / 0.5 == pytest.approx(raw[1], abs=1e-4)
    right = torch.tensor([1.0, 0.0]).div(0.5).log_softmax(0)[0]
    assert right.item() == pytest.approx(-0.1269, abs=1e-4)
