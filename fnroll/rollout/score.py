"""What a model says now of tokens that were rolled out."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from fnroll.config import SamplingConfig
from fnroll.models.scoring import score_tokens
from fnroll.records.training import TrainingBatch


def score(
    model: nn.Module, batch: TrainingBatch, sampling: SamplingConfig | None = None, *, chunk: int = 1024
) -> Tensor:
    """Return the log-probs of the sampled tokens under the model's present weights, `[R, T]`, in nats.

    Args:
      model: a Hugging Face causal language model; gradients flow into its parameters.
      batch: from `to_training`.
      sampling: the configuration that the records were drawn with; its penalty must be a number then.
      chunk: tokens whose logits are in memory at a time.
    """
    sampling = SamplingConfig() if sampling is None else sampling
    penalty = sampling.repetition_penalty
    if penalty is None:
        penalty = getattr(getattr(model, "generation_config", None), "repetition_penalty", None) or 1.0
    if sampling.is_truncating and batch.support is None:
        bias = f" (at least {sampling.top_p:g})" if sampling.top_k == 0 else ""
        warnings.warn(
            f"score: the records were drawn with top_k or top_p and carry no support, so an unchanged policy "
            f"has the probability of the kept tokens{bias} as its ratio, not 1; roll out with "
            f"SamplingConfig(support_size=...)",
            stacklevel=2,
        )
    return score_tokens(
        model,
        batch.input_ids,
        batch.position_ids,
        batch.attention_mask,
        batch.loss_mask,
        temperature=sampling.temperature,
        repetition_penalty=penalty,
        support=batch.support,
        chunk=chunk,
    )
