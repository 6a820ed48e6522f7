"""Metrics for TensorBoard, where it is wanted and installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Write(Protocol):
    """Writes the numbers of one step."""

    def __call__(self, metrics: Mapping[str, float]) -> None:
        """Write each number under its name, at the step that `step` says."""


def check_board(wanted: bool) -> None:
    """Require TensorBoard where it is wanted.

    Raises:
      ValueError: saying how to install it.
    """
    if wanted and importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            "--tensorboard needs the package tensorboard, which is not installed: pip install '.[train]'"
        )


@contextmanager
def open_board(folder: Path | None, last_step: int) -> Iterator[Write]:
    """Yield what writes metrics into event files of `folder`, or nothing without a folder.

    Args:
      folder: of the event files.
      last_step: of the run that goes on; what a crash left of later steps is hidden.
    """
    if folder is None:
        yield lambda metrics: None
        return
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder, purge_step=last_step + 1)

    def write(metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if name != "step":
                writer.add_scalar(name, value, int(metrics["step"]))
        writer.flush()

    try:
        yield write
    finally:
        writer.close()
