"""Small rollouts of tiny models, and what a full forward says of them."""

import torch

from fnroll import RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.rollout.rollout import Rollout

# Token 5 is in all of them, which makes it a pad id that a repetition penalty cannot notice.
PROMPTS = ([5, 7, 8, 9, 10, 11, 12, 13, 14, 15], [5], [6, 5, 30], [31, 32, 5, 33, 40])


def request(prompts=PROMPTS, n=1):
    records = [RolloutRecord(prompt_ids=ids, prompt_id=place) for place, ids in enumerate(prompts)]
    return RolloutRequest(records, n)


def engine(model, max_length=26, rows=3, **config):
    return Rollout(model, None, RolloutConfig(max_length=max_length, rows=rows, progress=False, **config))


def roll(model, prompts=PROMPTS, n=1, seed=3, max_length=26, **sampling):
    with engine(model, max_length) as rollout:
        return rollout.generate(request(prompts, n), SamplingConfig(**sampling), seed=seed)


def full_log_probs(module, record, temperature=1.0):
    """The log-prob of each sampled token by one forward over the whole record, as a trainer computes it."""
    logits = module(torch.tensor([record.tokens]), use_cache=False).logits[0, :-1]
    log_probs = (logits / temperature).log_softmax(dim=-1)
    tokens = torch.tensor(record.tokens[1:])[:, None]
    return log_probs.gather(-1, tokens)[record.prompt_length - 1 :, 0]


def worst_error(module, batch, temperature=1.0):
    """The largest distance of recorded log-probs from those of full forwards, in nats."""
    errors = []
    for record in batch:
        assert record.num_sampled, record
        recorded = torch.tensor(record.log_probs[record.prompt_length :], dtype=torch.float64)
        errors.append((recorded - full_log_probs(module, record, temperature)).abs().max())
    return float(max(errors))


def same_tokens(left, right):
    return [record.tokens for record in left] == [record.tokens for record in right]
