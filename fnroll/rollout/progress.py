"""Progress bars: of long rollouts (records done, tokens, tokens per second) and of work in steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

# Shorter work is over before a bar could be read.
_DELAY_S = 0.5


class Report(Protocol):
    """What the driver tells after each poll."""

    def __call__(self, records: int, tokens: int) -> None:
        """Show how many records are done and how many tokens are sampled."""


@contextmanager
def show_progress(total: int, show: bool | None) -> Iterator[Report]:
    """Yield a report function that moves a bar on standard error, or one that does nothing."""
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda records, tokens: None
        return
    columns = (
        TextColumn("rollout"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("records"),
        TextColumn("{task.fields[tokens]:,} tokens"),
        TextColumn("{task.fields[rate]:,.0f} tok/s"),
        TimeElapsedColumn(),
    )
    start = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=show is None) as bar:
        task = bar.add_task("rollout", total=total, tokens=0, rate=0.0, visible=show is True)

        def report(records: int, tokens: int) -> None:
            seconds = time.perf_counter() - start
            visible = show is True or seconds > _DELAY_S
            bar.update(task, completed=records, tokens=tokens, rate=tokens / seconds, visible=visible)

        yield report


class StepReport(Protocol):
    """What work in steps tells before each of them."""

    def __call__(self, done: int, name: str) -> None:
        """Show how many steps are done and which one begins."""


@contextmanager
def show_steps(label: str, total: int, show: bool | None) -> Iterator[StepReport]:
    """Yield a report function that moves a bar on standard error, or one that does nothing."""
    if not total or not (sys.stderr.isatty() if show is None else show):
        yield lambda done, name: None
        return
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[name]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=show is None) as bar:
        task = bar.add_task(label, total=total, name="")
        yield lambda done, name: bar.update(task, completed=done, name=name)
        bar.update(task, completed=total, name="")
