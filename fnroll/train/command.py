"""The command `fnroll train`."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from rich.console import Console

from fnroll.models.tiny import load_tiny
from fnroll.records.batch import RolloutBatch
from fnroll.train.board import Write, check_board, open_board
from fnroll.train.checkpoint import check_checkpoint, load_checkpoint
from fnroll.train.display import say, show_training
from fnroll.train.loop import Metrics, TrainConfig, Trainer
from fnroll.train.report import write_html, write_png

METRICS, CHECKPOINT, BOARD = "metrics.jsonl", "checkpoint.pt", "tensorboard"
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
    parser.add_argument(
        "--tensorboard", action="store_true", help="write event files into the folder's tensorboard/ too"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, if there is one")


def read_metrics(path: Path, last_step: int) -> list[Metrics]:
    """Return the lines of a metrics file up to a step; a crash may have left one more."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [line for line in lines if line["step"] <= last_step and not ("held_out" in line and line["step"])]


def _open_run(trainer: Trainer, out: Path, resume: bool) -> bool:
    """Take up a run, or clear what an earlier one left; return whether the run is a new one."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint, path = out / CHECKPOINT, out / METRICS
    lines: list[Metrics] = []
    if resume and checkpoint.exists():
        load_checkpoint(trainer, checkpoint)
        lines = read_metrics(path, trainer.step)
    else:
        checkpoint.unlink(missing_ok=True)
        shutil.rmtree(out / BOARD, ignore_errors=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return trainer.step == 0


def _append(out: Path, line: Metrics, board: Write) -> None:
    with (out / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    board(line)


def _finish(out: Path, before: float, after: float, transcripts: dict[str, RolloutBatch]) -> list[str]:
    """Write the pictures; return the names of what was written."""
    metrics = read_metrics(out / METRICS, 10**9)
    summary = f"Held-out reward, sampled at temperature 1: {before:.3f} before, {after:.3f} after."
    shown = {
        heading: batch.records[:: max(1, len(batch) // _SHOWN)][:_SHOWN]
        for heading, batch in transcripts.items()
    }
    write_html(out / "curves.html", summary, metrics, shown)
    written = [METRICS, CHECKPOINT, "curves.html"]
    return [*written, "curves.png"] if write_png(out / "curves.png", metrics) else written


def train(args: argparse.Namespace, console: Console) -> int:
    """Train the embedded model from its `start` checkpoint; return the exit code."""
    check_board(args.tensorboard)
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
    with Trainer(model, tokenizer, config) as trainer:
        if args.resume and (out / CHECKPOINT).exists():
            check_checkpoint(trainer, out / CHECKPOINT)  # before anything is run
        # Of the weights that the run starts from, also if it is taken up in its middle.
        before, first = _evaluate(trainer, console)
        tasks = f"{config.eval_tasks} tasks, sampled at temperature 1"
        say(console, f"held-out reward before: {before:.3f} ({tasks})")
        is_new = _open_run(trainer, out, args.resume)
        with open_board(out / BOARD if args.tensorboard else None, trainer.step) as board:
            if is_new:
                _append(out, {"step": 0, "held_out": before}, board)
            else:
                say(console, f"going on after step {trainer.step}")
            _take_steps(trainer, out, console, board)
            after, last = _evaluate(trainer, console)
            _append(out, {"step": trainer.step, "held_out": after}, board)
    written = _finish(out, before, after, {"Before": first, "After": last})
    say(console, f"{out}: {', '.join(written + [BOARD] * args.tensorboard)}")
    say(console, f"held-out reward: before {before:.3f} after {after:.3f}")
    return 0


def _take_steps(trainer: Trainer, out: Path, console: Console, board: Write) -> None:
    with show_training(console, trainer.config.steps, trainer.step) as show:

        def tell(metrics: Metrics) -> None:
            show(metrics)
            board(metrics)

        try:
            trainer.run(out, tell)
        except KeyboardInterrupt:
            say(
                console,
                f"stopped after step {trainer.step}; the same command with --resume goes on from there",
            )
            raise


def _evaluate(trainer: Trainer, console: Console) -> tuple[float, RolloutBatch]:
    with console.status(f"evaluating on {trainer.config.eval_tasks} held-out tasks"):
        return trainer.evaluate()
