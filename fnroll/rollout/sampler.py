"""From a sampling configuration to the tensors that a step reads."""

from __future__ import annotations

import torch

from fnroll.config import SamplingConfig
from fnroll.core.tree import replace
from fnroll.core.types import SamplingParams
from fnroll.models.base import Model


def sampling_params(model: Model, config: SamplingConfig, default: SamplingParams) -> SamplingParams:
    """Return `default` with the values of `config` on every line; None takes the model's own penalty."""
    penalty = config.repetition_penalty
    penalty = model.repetition_penalty if penalty is None else penalty
    top_k = min(config.top_k, model.vocab_size)
    # A bound that is a power of two lets neighbouring values of top_k share a compiled step.
    bound = 1 << (top_k - 1).bit_length() if top_k else 0
    return replace(
        default,
        temperature=torch.full_like(default.temperature, config.temperature),
        top_k=torch.full_like(default.top_k, top_k),
        top_p=torch.full_like(default.top_p, config.top_p),
        repetition_penalty=torch.full_like(default.repetition_penalty, penalty),
        max_top_k=min(bound, model.vocab_size),
        use_top_p=config.top_p < 1.0,
        use_penalty=penalty != 1.0,
        use_noise=config.temperature > 0.0,
    )
