"""The loss again, a token at a time in plain floats, with its gradient written out by hand."""

import math

import torch

from fnroll.grpo import grpo_policy_loss


def reference(
    new, old, advantages, mask, *, low=0.2, high=0.2, dual=None, kl_coef=0.0, ref=None, kl="k3",
    aggregation="token_mean", horizon=None, ratio="token", objective="ppo", weights=None, denominator=None,
):  # fmt: skip
    """Return the loss and its gradient `[R][T]`; lists of floats in, one advantage a record or a token."""
    rows = range(len(new))
    sampled = [[t for t in range(len(mask[i])) if mask[i][t]] for i in rows]
    if denominator is None:
        tokens, records = sum(map(len, sampled)), sum(1 for row in sampled if row)
        denominator = {
            "token_mean": tokens,
            "sample_mean": records,
            "sequence_sum": records * (horizon or 0),
        }[aggregation]
    loss, grad = 0.0, [[0.0] * len(mask[i]) for i in rows]
    for i in rows:
        share = 1 / denominator / (len(sampled[i]) if sampled[i] and aggregation == "sample_mean" else 1)
        mean = sum(new[i][t] - old[i][t] for t in sampled[i]) / max(len(sampled[i]), 1)
        for t in sampled[i]:
            a = advantages[i][t] if isinstance(advantages[i], list) else advantages[i]
            r = math.exp(mean if ratio == "sequence" else new[i][t] - old[i][t])
            w = share * (1.0 if weights is None else weights[i][t])
            if objective == "cispo":
                bounded = max(1 - low, min(r, 1 + high))
                loss -= w * bounded * a * new[i][t]
                grad[i][t] -= w * bounded * a
            else:
                plain, bound = r * a, max(1 - low, min(r, 1 + high)) * a
                value, slope = (plain, r * a) if plain <= bound else (bound, 0.0)
                if dual is not None and a < 0 and value < dual * a:
                    value, slope = dual * a, 0.0
                loss -= w * value
                if ratio == "token":
                    grad[i][t] -= w * slope
                else:  # The record's ratio moves with each of its tokens by r / length.
                    for u in sampled[i]:
                        grad[i][u] -= w * slope / len(sampled[i])
            if kl_coef:
                d = new[i][t] - ref[i][t]
                value = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[kl]
                slope = {"k1": 1.0, "k2": d, "k3": 1 - math.exp(-d)}[kl]
                loss += share * kl_coef * value
                grad[i][t] += share * kl_coef * slope
    return loss, grad


def loss_and_grad(log_probs, *args, **options):
    """Return the loss, its gradient by autograd with respect to `log_probs`, and the metrics."""
    with torch.enable_grad():
        leaf = log_probs.detach().clone().requires_grad_()
        loss, metrics = grpo_policy_loss(leaf, *args, **options)
        loss.backward()
    return loss.detach(), leaf.grad, metrics


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def random_batch(seed, rows=4, width=6, spread=0.5):
    """Return new, old, ref, advantages, mask of a batch with ratios on both sides of the usual bounds."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    old = -normal(rows, width).abs() - 0.1
    new, ref = old + spread * normal(rows, width), old + spread * normal(rows, width)
    mask = torch.rand((rows, width), generator=generator) < 0.7
    mask[0], mask[1, 0] = True, True
    return new, old, ref, normal(rows), mask
