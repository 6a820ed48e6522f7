"""What a training run shows while it runs: a live display on a terminal, a line a step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from fnroll.train.loop import Metrics

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDEST = 60


def say(console: Console, text: str) -> None:
    """Print a line as it is: without colours for numbers, and never broken in two."""
    console.print(text, highlight=False, soft_wrap=True)


def format_numbers(metrics: Metrics) -> str:
    """Return what is shown of a step: reward, length, tool calls, KL and speed."""
    return (
        f"reward {metrics['reward']:.3f}  length {metrics['sampled_tokens']:.1f}  "
        f"tool calls {metrics['tool_calls']:.2f}  KL {metrics.get('kl', 0.0):.4f}  "
        f"{metrics['tokens_per_s']:,.0f} tokens/s"
    )


def format_step(metrics: Metrics, steps: int) -> str:
    """Return the line that is printed for a step where there is no terminal."""
    return f"step {metrics['step']:>3.0f}/{steps}  {format_numbers(metrics)}  {metrics['seconds']:.1f} s"


def draw_spark(shares: Sequence[float]) -> str:
    """Return shares between 0 and 1 as a row of blocks, the latest ones if there are many."""
    highest = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(max(0.0, min(1.0, share)) * highest)] for share in shares[-_WIDEST:])


@contextmanager
def show_training(console: Console, steps: int, done: int) -> Iterator[Callable[[Metrics], None]]:
    """Yield what to call after each step.

    Args:
      console: where to; a terminal gets a display that is redrawn in place.
      steps: of the whole run.
      done: steps that an earlier part of the run has taken.
    """
    if not console.is_terminal:
        yield lambda metrics: say(console, format_step(metrics, steps))
        return
    bar = Progress(
        TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), console=console,
    )  # fmt: skip
    task, rewards = bar.add_task("train", total=steps, completed=done), list[float]()
    with Live(Group(bar), console=console, refresh_per_second=4) as live:

        def show(metrics: Metrics) -> None:
            rewards.append(metrics["reward"])
            bar.update(task, completed=metrics["step"])
            curve = Text(f"reward of each step  {draw_spark(rewards)}", style="green")
            live.update(Group(bar, Text(format_numbers(metrics)), curve), refresh=True)

        yield show
