"""Load the embedded model; nothing is fetched from anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM

FILES = Path(__file__).parent / "files"
CHECKPOINTS = ("start", "solved")
_TIED = "lm_head.weight"


def load_tiny(checkpoint: str = "start", folder: Path = FILES) -> tuple[Any, Any]:
    """Return the embedded tool-calling model in float32 and evaluation mode, and its tokenizer.

    Args:
      checkpoint: `start` solves a part of the tasks, and is where training with rewards begins; `solved`
        solves nearly all.
      folder: where `fnroll.train.pretrain` has written to.

    Raises:
      ValueError: if there is no such checkpoint.
    """
    if checkpoint not in CHECKPOINTS:
        raise ValueError(
            f"no checkpoint {checkpoint!r} of the tiny model; there are {', '.join(CHECKPOINTS)}"
        )
    source = folder / checkpoint
    # The global generator is left as it was: the weights that are drawn here are replaced at once.
    with torch.random.fork_rng(devices=[]):
        model: Any = Qwen3ForCausalLM(Qwen3Config.from_pretrained(source, dtype=torch.float32))
    state = {name: value.float() for name, value in load_file(source / "model.safetensors").items()}
    model.load_state_dict({**state, _TIED: state["model.embed_tokens.weight"]})
    model.generation_config = GenerationConfig.from_pretrained(source)
    return model.eval(), AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
