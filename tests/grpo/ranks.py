"""One optimiser step's loss and gradient, cut over ranks and microbatches, as a trainer would."""

import torch
import torch.distributed as dist

import fnroll
from fnroll.grpo import group_advantages, grpo_policy_loss, loss_denominator
from fnroll.models.tiny import load_tiny

CUTS = [("token_mean", None, microbatches) for microbatches in (1, 2, 4)]
CUTS += [
    (*how, microbatches) for how in (("sample_mean", None), ("sequence_sum", 256)) for microbatches in (1, 4)
]
"""Aggregation, horizon, and microbatches of a rank."""


def all_reduce(tensor):
    """Sum over the ranks, if there are several."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def share_of(rank, world, count):
    """Three records of four go to the first rank: ranks need not have equal work."""
    return [index for index in range(count) if world == 1 or (index % 4 == 3) == (rank == 1)]


def step(
    model, records, advantages, mine, microbatches, *, mode="sum", aggregation="token_mean", horizon=None
):
    """Return the loss `[]` and the gradient `[P]` of the whole step.

    Args:
      mine: indices of the rank's records.
      mode: `sum` of the ranks' gradients, `average` of them, as wrappers of models take it, or `own`, the
        mistake of dividing by what the microbatch at hand holds.
    """
    parts = [mine[m::microbatches] for m in range(microbatches)]
    batches = [fnroll.to_training([records[i].replace(reward=None) for i in part]) for part in parts]
    masks = [batch.loss_mask for batch in batches]
    denominator = all_reduce(loss_denominator(*masks, aggregation=aggregation, horizon=horizon))
    world = dist.get_world_size() if dist.is_initialized() else 1
    model.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for part, batch in zip(parts, batches, strict=True):
        some, _ = grpo_policy_loss(
            fnroll.score(model, batch),
            batch.old_log_probs - 0.05,  # a ratio that is not 1
            advantages[part],
            batch.loss_mask,
            aggregation=aggregation,
            horizon=horizon,
            denominator={"sum": denominator, "average": denominator / world, "own": None}[mode],
        )
        some.backward()
        loss += some.detach()
    gradient = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()]
    )
    factor = 1 / world if mode == "average" else 1
    return all_reduce(loss) * factor, all_reduce(gradient) * factor


def all_steps(path, rank, world):
    """Return loss and gradient of every way to cut the records in the file at `path`."""
    torch.use_deterministic_algorithms(True)
    model = load_tiny("start")[0].double()
    records = fnroll.RolloutBatch.load(path).records
    advantages = group_advantages(
        [r.reward for r in records], [r.group for r in records], dtype=torch.float64
    )
    mine = share_of(rank, world, len(records))
    found = {}
    for aggregation, horizon, microbatches in CUTS:
        how = {"aggregation": aggregation, "horizon": horizon}
        found[aggregation, microbatches, "sum"] = step(model, records, advantages, mine, microbatches, **how)
    for mode in ("average", "own"):
        found["token_mean", 2, mode] = step(model, records, advantages, mine, 2, mode=mode)
    # All of the work on one rank: the other takes part in the collectives all the same.
    everything = range(len(records)) if rank == 0 else []
    found["token_mean", 1, "empty"] = step(model, records, advantages, list(everything), 1)
    return found


def worker(rank, world, path, store, out):
    """Run one rank and leave what it found in `out`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        torch.save(all_steps(path, rank, world), f"{out}.{rank}")
    finally:
        dist.destroy_process_group()
