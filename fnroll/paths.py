"""Where files are kept, and how the paths in a configuration are read."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return the folder of what can be made again: `$FNROLL_CACHE`, or one in the user's cache folder."""
    if own := os.environ.get("FNROLL_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fnroll"


def at_step(path: str, step: int) -> str:
    """Return a path of a configuration with the step of the training loop for its `{step}`."""
    return path.replace("{step}", str(step))
