"""One step is one step: 1, 2 or 4 microbatches, on 1 rank or on 2 processes that reduce over Gloo."""

import pytest
import torch

import fnroll
from fnroll.models.tiny import TINY_TOOLS, load_tiny, make_tasks
from tests.grpo.ranks import CUTS, all_steps, worker


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one rank finds, and what each of two does."""
    folder = tmp_path_factory.mktemp("ranks")
    path = folder / "records.jsonl"
    prompts = [fnroll.RolloutRecord(messages=task.messages) for task in make_tasks(4)]
    config = fnroll.RolloutConfig(max_length=224, rows=8, max_turns=5, progress=False)
    with fnroll.Rollout(*load_tiny("start"), config, TINY_TOOLS) as rollout:
        batch = rollout.generate(fnroll.RolloutRequest(prompts, n=2), fnroll.SamplingConfig(), seed=2)
    # Rewards that no group shares, in no relation to ranks.
    rewarded = [record.replace(reward=float(i * i % 7)) for i, record in enumerate(batch)]
    fnroll.RolloutBatch(tuple(rewarded)).save(path)
    torch.multiprocessing.spawn(
        worker, (2, str(path), str(folder / "store"), str(folder / "out")), nprocs=2, join=True
    )
    two = [torch.load(folder / f"out.{rank}", weights_only=True) for rank in (0, 1)]
    with torch.enable_grad():
        one = all_steps(path, 0, 1)
    return one, two


def same(found, expected):
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("aggregation", "microbatches"), [(how, count) for how, _, count in CUTS])
def test_loss_and_gradient_do_not_depend_on_how_a_step_is_cut(found, aggregation, microbatches):
    """Case C20, on real ranks: three quarters of the records on one and a quarter on the other."""
    one, two = found
    expected = one[aggregation, 1, "sum"]
    assert expected[1].norm() > 1e-4 and expected[0] != 0
    for rank in (one, *two):
        same(rank[aggregation, microbatches, "sum"], expected)


def test_ranks_that_average_divide_the_denominator(found):
    one, two = found
    for rank in two:
        same(rank["token_mean", 2, "average"], one["token_mean", 1, "sum"])


def test_a_rank_without_records_takes_part(found):
    one, two = found
    for rank in two:
        same(rank["token_mean", 1, "empty"], one["token_mean", 1, "sum"])


def test_a_mean_of_means_would_be_caught(found):
    one, two = found
    for rank in (one, *two):
        _, gradient = rank["token_mean", 2, "own"]
        assert (gradient - one["token_mean", 1, "sum"][1]).norm() > 0.1 * gradient.norm()
