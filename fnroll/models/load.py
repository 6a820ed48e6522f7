"""Find a model by name or folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from fnroll.models.smollm2 import load_smollm2
from fnroll.models.tiny.load import load_tiny

_TINY = {"tiny": "start", "tiny-solved": "solved"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


def load_model(name: str, dtype: str = "float32") -> tuple[Any, Any]:
    """Return a causal language model in evaluation mode and its tokenizer.

    Args:
      name: `tiny` or `tiny-solved` (embedded), `smollm2`, or a folder that transformers can load.
      dtype: `float32`, `bfloat16` or `float64`.

    Raises:
      ValueError: if there is no such model.
    """
    logging.disable_progress_bar()
    if name in _TINY:
        model, tokenizer = load_tiny(_TINY[name])
    elif name == "smollm2":
        model, tokenizer = load_smollm2()
    elif Path(name).is_dir():
        model = AutoModelForCausalLM.from_pretrained(name, dtype=DTYPES[dtype], local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True)
    else:
        raise ValueError(
            f"no model {name!r}; it must be 'tiny', 'tiny-solved', 'smollm2' or a folder that transformers "
            f"can load"
        )
    return model.to(DTYPES[dtype]).eval(), tokenizer
