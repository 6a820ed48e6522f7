"""Laws of advantages and losses, over batches that Hypothesis invents."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fnroll.grpo import (
    Segments,
    dynamic_filter,
    group_advantages,
    importance_weights,
    loss_denominator,
    mismatch_metrics,
)
from tests.grpo.helpers import loss_and_grad

RECORDS, WIDTH = 4, 5
REWARDS = st.one_of(
    st.none(), st.sampled_from([0.0, 1.0, 0.1, 1 / 3, 0.7]), st.floats(-100, 100, allow_subnormal=False)
)
LOG_PROBS = st.floats(-8, 0)
JUNK = st.sampled_from([float("nan"), float("inf"), float("-inf"), 300.0, -300.0])


@st.composite
def scored(draw):
    """Rewards and groups in any order, of any sizes."""
    size = draw(st.integers(1, 12))
    rewards = draw(st.lists(REWARDS, min_size=size, max_size=size))
    return rewards, draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def batches(draw):
    """Four records of any length up to five, with tool output anywhere, as a dict of arguments."""

    def block(values):
        rows = st.lists(values, min_size=WIDTH, max_size=WIDTH)
        return draw(st.lists(rows, min_size=RECORDS, max_size=RECORDS))

    old = tensor(block(LOG_PROBS))
    new = old + tensor(block(st.floats(-1.5, 1.5)))
    return {
        "log_probs": new,
        "old_log_probs": old,
        "advantages": tensor(block(st.floats(-2, 2, allow_subnormal=False)))[:, 0],
        "loss_mask": torch.tensor(block(st.booleans())),
        "ref_log_probs": tensor(block(LOG_PROBS)),
        "weights": tensor(block(st.floats(0, 2))),
    }


@st.composite
def options(draw):
    """A convention, with the KL term on or off."""
    objective = draw(st.sampled_from(["ppo", "cispo"]))
    aggregation = draw(st.sampled_from(["token_mean", "sample_mean", "sequence_sum"]))
    return {
        "objective": objective,
        "aggregation": aggregation,
        "horizon": 7 if aggregation == "sequence_sum" else None,
        "ratio": draw(st.sampled_from(["token", "sequence"])),
        "dual_clip": draw(st.sampled_from([None, 2.0])) if objective == "ppo" else None,
        "kl_coef": draw(st.sampled_from([0.0, 0.1])),
        "kl": draw(st.sampled_from(["k1", "k2", "k3"])),
        "clip_low": draw(st.sampled_from([0.2, 0.1])),
        "clip_high": draw(st.sampled_from([0.2, 0.28])),
    }


def advantages(rewards, group, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return group_advantages(rewards, group, allow_unequal=True, dtype=torch.float64, **how)


def run(batch, how):
    return loss_and_grad(**batch, **how)


def count(mask, how, segments=None):
    return loss_denominator(
        mask, aggregation=how["aggregation"], horizon=how["horizon"], segments=segments and [segments]
    )


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


HOW = st.fixed_dictionaries(
    {
        "baseline": st.sampled_from(["mean", "leave_one_out"]),
        "scale": st.sampled_from(["group", "batch", "none"]),
        "ddof": st.sampled_from([0, 1]),
    }
)


@given(scored(), HOW, st.integers(-1000, 1000))
def test_advantages_do_not_know_the_zero_of_rewards(case, how, shift):
    rewards, group = case
    # Quarters, which no shift rounds: otherwise equal rewards could become unequal, and the other way round.
    rewards = [None if r is None else round(r * 4) / 4 for r in rewards]
    moved = [None if r is None else r + shift for r in rewards]
    torch.testing.assert_close(
        advantages(moved, group, **how), advantages(rewards, group, **how), rtol=1e-9, atol=1e-9
    )


@given(scored(), HOW, st.randoms(use_true_random=False))
def test_advantages_do_not_know_the_order(case, how, random):
    rewards, group = case
    order = list(range(len(rewards)))
    random.shuffle(order)
    moved = advantages([rewards[i] for i in order], [group[i] for i in order], **how)
    assert torch.equal(moved, advantages(rewards, group, **how)[order])


@given(scored(), HOW)
def test_a_copy_of_the_batch_changes_no_advantage(case, how):
    rewards, group = case
    if how["scale"] == "batch":
        how = {**how, "ddof": 0}  # The standard deviation of a sample knows the sample's size.
    once = advantages(rewards, group, **how)
    twice = advantages(rewards * 2, [(0, g) for g in group] + [(1, g) for g in group], **how)
    close(twice, once.repeat(2))


@given(scored(), HOW)
def test_unscored_records_and_groups_without_spread_get_exactly_zero(case, how):
    rewards, group = case
    found = advantages(rewards, group, **{**how, "eps": 0.0})
    assert torch.isfinite(found).all()
    kept = dynamic_filter(rewards, group, allow_unequal=True)
    assert not found[~kept].any()
    for reward, advantage in zip(rewards, found.tolist(), strict=True):
        assert reward is not None or advantage == 0


@given(scored())
def test_scaled_advantages_have_the_spread_they_promise(case):
    rewards, group = case
    found = advantages(rewards, group, eps=0.0, ddof=0)
    for key in set(group):
        mine = [
            a for a, g, r in zip(found.tolist(), group, rewards, strict=True) if g == key and r is not None
        ]
        assert sum(mine) == pytest.approx(0, abs=1e-6)
        if any(mine):
            assert sum(a * a for a in mine) / len(mine) == pytest.approx(1)


@given(batches(), options(), st.integers(0, 3), JUNK)
def test_padding_changes_nothing(batch, how, extra, junk):
    padded = {
        name: torch.nn.functional.pad(x, (0, extra), value=False if name == "loss_mask" else junk)
        if x.ndim == 2
        else x
        for name, x in batch.items()
    }
    loss, grad, metrics = run(padded, how)
    expected = run(batch, how)
    close(loss, expected[0])
    close(grad[:, :WIDTH], expected[1])
    assert not grad[:, WIDTH:].any()
    close(metrics.ratio_mean, expected[2].ratio_mean)


@given(batches(), options(), JUNK)
def test_what_the_mask_hides_changes_no_bit(batch, how, junk):
    dirty = {
        name: x if name in ("loss_mask", "advantages") else torch.where(batch["loss_mask"], x, junk)
        for name, x in batch.items()
    }
    found, expected = run(dirty, how), run(batch, how)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert torch.isfinite(found[0]) and torch.isfinite(found[1]).all()


@given(batches(), options(), st.integers(0, 3), JUNK)
def test_packing_changes_nothing(batch, how, tail, junk):
    """All records one after another in a single row, with a tail of padding."""
    cells = RECORDS * WIDTH
    record = torch.arange(RECORDS).repeat_interleave(WIDTH)
    segments = Segments(record=torch.nn.functional.pad(record, (0, tail), value=0)[None], num_records=RECORDS)
    packed = {
        name: torch.nn.functional.pad(
            x.reshape(1, cells), (0, tail), value=False if name == "loss_mask" else junk
        )
        if x.ndim == 2
        else x
        for name, x in batch.items()
    }
    loss, grad, metrics = run({**packed, "segments": segments}, how)
    expected = run(batch, how)
    close(loss, expected[0])
    close(grad[:, :cells].reshape(RECORDS, WIDTH), expected[1])
    assert metrics.num_records == expected[2].num_records
    assert count(packed["loss_mask"], how, segments) == count(batch["loss_mask"], how)
    for level in ("token", "sequence", "sequence_mean"):
        arguments = ("log_probs", "old_log_probs", "loss_mask")
        apart = importance_weights(*(batch[name] for name in arguments), level=level)
        together = importance_weights(*(packed[name] for name in arguments), level=level, segments=segments)
        close(together[:, :cells].reshape(RECORDS, WIDTH), apart)


def part(batch, rows):
    return {name: x[rows] for name, x in batch.items()}


@given(
    batches(), options(), st.permutations(range(RECORDS)), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2])
)
def test_microbatches_and_ranks_change_nothing(batch, how, order, microbatches, ranks):
    """Records in any order over ranks, each with its microbatches; counts are summed over all of them."""
    whole_loss, whole_grad, _ = run(batch, how)
    shares = [order[rank::ranks] for rank in range(ranks)]
    pieces = [[share[m::microbatches] for m in range(microbatches)] for share in shares]
    counts = [
        loss_denominator(
            *(batch["loss_mask"][rows] for rows in rank),
            aggregation=how["aggregation"],
            horizon=how["horizon"],
        )
        for rank in pieces
    ]
    loss, grad = torch.zeros((), dtype=torch.float64), torch.zeros_like(whole_grad)
    for rows in (rows for rank in pieces for rows in rank):
        found = run({**part(batch, rows), "denominator": sum(counts)}, how)
        loss, grad[rows] = loss + found[0], found[1]
    close(loss, whole_loss)
    close(grad, whole_grad)


@given(batches(), options())
def test_a_copy_of_the_batch_changes_no_loss(batch, how):
    rows = list(range(RECORDS)) * 2
    loss, grad, _ = run(part(batch, rows), how)
    expected = run(batch, how)
    close(loss, expected[0])
    close(grad[:RECORDS] + grad[RECORDS:], expected[1])


@given(batches(), options())
def test_at_ratio_one_the_gradient_is_the_plain_policy_gradient(batch, how):
    how = {**how, "kl_coef": 0.0}
    on_policy = {**batch, "old_log_probs": batch["log_probs"].clone(), "weights": None}
    _, grad, metrics = run(on_policy, how)
    mask, advantage = batch["loss_mask"], batch["advantages"]
    with torch.enable_grad():
        leaf = batch["log_probs"].clone().requires_grad_()
        lengths = mask.sum(1).clamp(min=1)
        share = {
            "token_mean": torch.ones(RECORDS) / max(int(mask.sum()), 1),
            "sample_mean": 1 / lengths / max(int(mask.any(1).sum()), 1),
            "sequence_sum": torch.ones(RECORDS) / 7 / max(int(mask.any(1).sum()), 1),
        }[how["aggregation"]]
        (-(share.double() * advantage)[:, None] * leaf * mask).sum().backward()
    torch.testing.assert_close(grad, leaf.grad, rtol=1e-6, atol=1e-8)
    assert metrics.clip_low == metrics.clip_high == 0


@given(batches())
def test_measures_of_mismatch_keep_their_ranges(batch):
    metrics = mismatch_metrics(batch["log_probs"], batch["old_log_probs"], batch["loss_mask"])
    assert (metrics.ratio_quantiles.diff() >= 0).all() and metrics.kl_k3 >= 0
    assert 0 <= metrics.effective_sample_size <= 1 + 1e-9
    weights = importance_weights(batch["log_probs"], batch["old_log_probs"], batch["loss_mask"])
    assert (weights >= 0).all() and (weights <= 2).all() and not weights[~batch["loss_mask"]].any()
