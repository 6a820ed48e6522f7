"""Whether a model's recorded, padded and packed log-probs are the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.models.packing import is_known_to_pack
from fnroll.models.support import UnsupportedModelError
from fnroll.records.batch import RolloutRequest
from fnroll.records.record import RolloutRecord
from fnroll.records.training import TrainingBatch, to_training
from fnroll.rollout.rollout import Rollout
from fnroll.rollout.score import score
from fnroll.testing.models.sizes import tiny_config

# Different in length, and together with what is drawn longer than any window of a tiny model.
_PROMPTS = ([5, 7, 8, 9, 10, 11], [5], [6, 5, 30], [31, 32, 5, 33])
_LENGTH = 24
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}
"""Nats; models compute their norms in float32 also in float64."""


class NotTinyError(Exception):
    """A model that cannot be made tiny here; the message is the reason."""


@dataclass(frozen=True)
class Agreement:
    """How far log-probs are apart, in nats, or why there are none."""

    refusal: str = ""
    """Why a rollout of the model is refused."""
    recorded: float = 0.0
    """Between what was recorded and the model's plain forward over each record."""
    padded: float = 0.0
    """Between what was recorded and the score of a padded batch."""
    packed: float = 0.0
    """Between what was recorded and the score of a packed batch."""
    is_packed: bool = False
    """Whether the records of a packed batch share a row also in the model's forward."""
    dtype: torch.dtype = torch.float64

    @property
    def is_close(self) -> bool:
        """Whether all differences are rounding."""
        return all(d <= TOLERANCE[self.dtype] for d in (self.recorded, self.padded, self.packed))


def causal_classes() -> dict[str, list[str]]:
    """Return all classes of causal language models that transformers has, and the kinds each is made of."""
    kinds: dict[str, list[str]] = {}
    for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        kinds.setdefault(name, []).append(kind)
    return dict(sorted(kinds.items()))


def _from_config(config: Any) -> Any:
    # Grouped matrix products have no float64.
    options = {"experts_implementation": "eager"}
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForImageTextToText.from_config(config, **options)
    try:
        return AutoModelForCausalLM.from_config(config, **options)
    except AttributeError:  # a class that is made of a part of the configuration it is found by
        part = config.get_text_config(decoder=True)
        if part is config:
            raise
        kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        return kind._from_config(part, **options)


def tiny_causal_lm(kind: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return a random model of a kind, in evaluation mode: V 48, two layers, 64 positions.

    Raises:
      NotTinyError: saying what stands against it.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = _from_config(tiny_config(kind))
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=0.3)
        return model.to(dtype).eval()
    except Exception as error:  # whatever a constructor of somebody else's throws
        raise NotTinyError(" ".join(str(error).split())) from error


def _recorded_distance(model: Any, record: RolloutRecord) -> float:
    """Return how far a record's log-probs are from those of a plain forward over it."""
    ids = torch.tensor([record.tokens], dtype=torch.int64)
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    plain = logits.log_softmax(dim=-1).gather(-1, ids[0, 1:, None])[:, 0]
    sampled = torch.tensor(record.loss_mask, dtype=torch.bool)[1:]
    recorded = torch.tensor(record.log_probs, dtype=torch.float64)[1:]
    return float((plain - recorded)[sampled].abs().max())


def _score_distance(model: Any, batch: TrainingBatch) -> float:
    return float((score(model, batch) - batch.old_log_probs).abs().max())


def measure(kind: str) -> Agreement:
    """Roll out a tiny model of that kind and compare what was recorded with all ways to compute it.

    Raises:
      NotTinyError: if the model cannot be made tiny.
    """
    try:
        found = _measure(kind, torch.float64)
    except NotTinyError:
        raise
    except Exception:  # code that is not meant for float64
        found = None
    return _measure(kind, torch.float32) if found is None or found.refusal else found


def _roll_out(model: Any) -> list[RolloutRecord]:
    rollout = Rollout(model, None, RolloutConfig(max_length=_LENGTH, rows=3, progress=False))
    prompts = [RolloutRecord(prompt_ids=ids, prompt_id=place) for place, ids in enumerate(_PROMPTS)]
    return list(rollout.generate(RolloutRequest(prompts), SamplingConfig(), seed=1))


def _measure(kind: str, dtype: torch.dtype) -> Agreement:
    model = tiny_causal_lm(kind, dtype)
    try:
        records = _roll_out(model)
    except UnsupportedModelError as refused:
        return Agreement(str(refused), dtype=dtype)
    with torch.no_grad():
        return Agreement(
            # Not `max`, which loses NaN.
            recorded=sum(_recorded_distance(model, record) for record in records),
            padded=_score_distance(model, to_training(records)),
            packed=_score_distance(model, to_training(records, packed=True)),
            is_packed=is_known_to_pack(model),
            dtype=dtype,
        )
