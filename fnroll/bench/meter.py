"""What the process and the compiler say of themselves."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import calculate_time_spent, counters


def machine() -> dict[str, Any]:
    """Return what the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def reset_peak_memory() -> None:
    """Begin a new peak, of the CUDA allocator or of the process."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # Linux only
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int | None:
    """Return the peak since the last reset in bytes; None where nothing says.

    On a processor it is the resident memory of the whole process: weights and the other engines included.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    with suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return int(found[1]) * 1024 if found else None
    return None


def count_graphs() -> int:
    """Return how many graphs were compiled in this process."""
    return int(counters["stats"]["unique_graphs"])


def compile_seconds() -> float:
    """Return the time spent compiling since the last `torch._dynamo.reset()`."""
    return float(calculate_time_spent().get("entire_frame_compile", 0.0))


@dataclass
class Compile:
    """What a block of code compiled."""

    graphs: int = 0
    seconds: float = 0.0
    wall_s: float = 0.0


@contextmanager
def watch_compiler() -> Iterator[Compile]:
    """Count the graphs that are compiled in a block, and the time it takes."""
    found, graphs, seconds, start = Compile(), count_graphs(), compile_seconds(), time.perf_counter()
    try:
        yield found
    finally:
        found.graphs = count_graphs() - graphs
        found.seconds = compile_seconds() - seconds
        found.wall_s = time.perf_counter() - start
