"""Language models as pure functions of parameters, tokens and a cache."""

from fnroll.models.base import Model
from fnroll.models.causal_lm import CausalLM, causal_lm
from fnroll.models.load import load_model
from fnroll.models.support import UnsupportedModelError
from fnroll.models.toy import toy_logits, toy_model

__all__ = ["CausalLM", "Model", "UnsupportedModelError", "causal_lm", "load_model", "toy_logits", "toy_model"]
