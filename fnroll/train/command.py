"""The command `fnroll train`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fnroll.models.tiny import load_tiny
from fnroll.shell.batch import RolloutBatch
from fnroll.shell.record import RolloutRecord
from fnroll.train.checkpoint import load
from fnroll.train.loop import Metrics, TrainConfig, Trainer
from fnroll.train.report import write_html, write_png

_SHOWN = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fnroll train`."""
    default = TrainConfig()
    parser.add_argument("--seed", type=int, default=0, help="of tasks and noise (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=default.steps, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=default.learning_rate)
    parser.add_argument("--prompts", type=int, default=default.prompts, help="tasks a step (%(default)s)")
    parser.add_argument("--n", type=int, default=default.n, help="samples of a task (%(default)s)")
    parser.add_argument("--eval-tasks", type=int, default=default.eval_tasks, help="default: %(default)s")
    parser.add_argument(
        "--out", help="folder; an earlier run there is replaced, unless --resume (default: out/train-SEED)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")


def read_metrics(path: Path, last_step: int) -> list[Metrics]:
    """Return the lines of a metrics file up to a step; a crash may have left one more."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [line for line in lines if line["step"] <= last_step and not ("held_out" in line and line["step"])]


def _open_run(trainer: Trainer, out: Path, resume: bool) -> list[Metrics]:
    """Take up a run, or clear what an earlier one left; return its metrics."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint, path = out / "checkpoint.pt", out / "metrics.jsonl"
    if resume and checkpoint.exists():
        load(trainer, checkpoint)
        lines = read_metrics(path, trainer.step)
    else:
        checkpoint.unlink(missing_ok=True)
        lines = []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return lines


def _append(path: Path, line: Metrics) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def format_step(metrics: Metrics, steps: int) -> str:
    """Return the line that is shown for a step."""
    return (
        f"step {metrics['step']:>3.0f}/{steps}  reward {metrics['reward']:.3f}  "
        f"length {metrics['sampled_tokens']:.1f}  tool calls {metrics['tool_calls']:.2f}  "
        f"KL {metrics.get('kl', 0.0):.4f}  {metrics['tokens_per_s']:,.0f} tokens/s  "
        f"{metrics['seconds']:.1f} s"
    )


def _choose(batch: RolloutBatch) -> Sequence[RolloutRecord]:
    """Return a few records, spread over the batch and so over the kinds of task."""
    return batch.records[:: max(1, len(batch) // _SHOWN)][:_SHOWN]


def _finish(out: Path, before: float, after: float, transcripts: dict[str, RolloutBatch]) -> list[str]:
    """Write the pictures; return the names of what was written."""
    metrics = read_metrics(out / "metrics.jsonl", 10**9)
    summary = f"Held-out reward, sampled at temperature 1: {before:.3f} before, {after:.3f} after."
    shown = {
        heading: batch.records[:: max(1, len(batch) // _SHOWN)][:_SHOWN]
        for heading, batch in transcripts.items()
    }
    write_html(out / "curves.html", summary, metrics, shown)
    written = ["metrics.jsonl", "checkpoint.pt", "curves.html"]
    return [*written, "curves.png"] if write_png(out / "curves.png", metrics) else written


def train(args: argparse.Namespace, console: Console) -> int:
    """Train the embedded model from its `start` checkpoint; return the exit code."""
    config = TrainConfig(
        seed=args.seed,
        steps=args.steps,
        learning_rate=args.learning_rate,
        prompts=args.prompts,
        n=args.n,
        eval_tasks=args.eval_tasks,
    )
    out = Path(args.out or f"out/train-{args.seed}")
    model, tokenizer = load_tiny("start")
    say: Any = lambda text: console.print(text, highlight=False, soft_wrap=True)  # noqa: E731
    with Trainer(model, tokenizer, config) as trainer:
        # Of the weights that the run starts from, also if it is taken up in its middle.
        before, first = trainer.evaluate()
        lines = _open_run(trainer, out, args.resume)
        if not lines:
            _append(out / "metrics.jsonl", {"step": 0, "held_out": before})
        say(f"held-out reward before: {before:.3f} ({config.eval_tasks} tasks, sampled at temperature 1)")
        if trainer.step:
            say(f"going on after step {trainer.step}")
        trainer.run(out, lambda metrics: say(format_step(metrics, config.steps)))
        after, last = trainer.evaluate()
        _append(out / "metrics.jsonl", {"step": trainer.step, "held_out": after})
        written = _finish(out, before, after, {"Before": first, "After": last})
    say(f"{out}: {', '.join(written)}")
    say(f"held-out reward: before {before:.3f} after {after:.3f}")
    return 0
