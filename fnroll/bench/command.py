"""The command `fnroll bench`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from fnroll.bench.compiler import measure_compiler
from fnroll.bench.engine import Subject
from fnroll.bench.picture import check_picture, draw_picture
from fnroll.bench.report import measure_gap_row, measure_overlap
from fnroll.bench.row import Row
from fnroll.bench.suite import ENGINES, PEERS, run_workload
from fnroll.bench.table import print_rows, save_rows
from fnroll.bench.workload import Workload
from fnroll.bench.workloads import FULL, QUICK, WORKLOADS, stress_subject, toy
from fnroll.checks import check_choice, check_int
from fnroll.models.causal_lm import causal_lm
from fnroll.models.load import DTYPES, load_model

_ROUNDS = 5
ALONE = ("gap", "tools")
"""Workloads without peers: log-probs against a training forward, and tool latency against decoding."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fnroll bench`."""
    parser.add_argument(
        "--workloads", help=f"of {', '.join([*WORKLOADS, *ALONE])} (default: {','.join(WORKLOADS)})"
    )
    parser.add_argument("--engines", help=f"of {', '.join(ENGINES)} (default: all that can run)")
    parser.add_argument(
        "--model", help="tiny, tiny-solved, smollm2 or a folder (default: smollm2; tiny-solved with --quick)"
    )
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="counted rounds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="shrunk workloads on the embedded model")
    parser.add_argument(
        "--compiler", action="store_true", help="the pure steps alone, by backend and mode, as JSON lines"
    )
    parser.add_argument("--json", help="write the rows here, as they come")
    parser.add_argument("--picture", help="write a bar chart here, as .png")


def _split(name: str, value: str, choices: list[str]) -> list[str]:
    words = [word.strip() for word in value.split(",") if word.strip()]
    for word in words:
        check_choice("bench", name, word, choices)
    if not words:
        raise ValueError(f"bench.{name} is empty; name some of {', '.join(choices)}")
    return list(dict.fromkeys(words))


def _check_folder(name: str, value: str | None) -> Path | None:
    if value is None:
        return None
    path = Path(value)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"bench.{name}: there is no folder {str(path.parent)!r} to write {value} into"
        )
    return path


@dataclass(frozen=True)
class Plan:
    """What a run of the command measures."""

    workloads: list[str]
    engines: list[str] | None
    """None for those that make sense on each workload."""
    rounds: int
    is_quick: bool
    json: Path | None
    picture: Path | None

    def engines_for(self, work: Workload) -> list[str]:
        """Return the engines to run on a workload."""
        if self.engines is not None:
            return self.engines
        names = [name for name in ENGINES if name != "fnroll-captured" or torch.cuda.is_available()]
        if self.is_quick and work.name != "W1":  # a minute of compiling on two cores each
            names.remove("fnroll-compiled")
        if work.name == "W6":
            return [name for name in names if name.startswith("fnroll-")]
        if work.turns > 1:
            return [name for name in names if name == "generate" or name not in PEERS]
        return names


def _make_plan(args: argparse.Namespace) -> Plan:
    check_int("bench", "rounds", args.rounds, least=1)
    picture = _check_folder("picture", args.picture)
    if picture is not None:
        check_picture(picture)
    return Plan(
        workloads=_split("workloads", args.workloads or ",".join(WORKLOADS), [*WORKLOADS, *ALONE]),
        engines=None if args.engines is None else _split("engines", args.engines, list(ENGINES)),
        rounds=args.rounds,
        is_quick=args.quick,
        json=_check_folder("json", args.json),
        picture=picture,
    )


Measured = tuple[list[Row], KeyboardInterrupt | None]


def _measure(plan: Plan, subject: Subject, say: Callable[[str], None]) -> Iterator[Measured]:
    """Yield the rows of one workload after the other."""
    for name in plan.workloads:
        if name == "gap":
            yield measure_gap_row(subject), None
        elif name == "tools":
            yield measure_overlap(plan.rounds, say), None
        else:
            yield from _measure_variants(plan, name, subject, say)


def _measure_variants(
    plan: Plan, name: str, subject: Subject, say: Callable[[str], None]
) -> Iterator[Measured]:
    subject = stress_subject() if name == "W6" else subject
    for work in WORKLOADS[name](subject, QUICK if plan.is_quick else FULL):
        title = " ".join(filter(None, (work.name, work.variant)))

        def tell(text: str, title: str = title) -> None:
            say(f"{title}: {text}")

        names = plan.engines_for(work)
        yield run_workload(subject, work, names, plan.rounds, tell, is_warm=not plan.is_quick)


def _needs_model(plan: Plan) -> bool:
    return bool(set(plan.workloads) - {"W6", "tools"})


def bench(args: argparse.Namespace, console: Console) -> int:
    """Measure, print and save; return the exit code.

    Raises:
      ValueError: for an option that is not allowed, before anything runs.
    """
    if args.compiler:
        return _bench_compiler(args)
    plan = _make_plan(args)
    name = args.model or ("tiny-solved" if args.quick else "smollm2")
    subject = Subject(*load_model(name, args.dtype)) if _needs_model(plan) else stress_subject()
    rows: list[Row] = []

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    for found, interrupt in _measure(plan, subject, say):
        rows += found
        print_rows(console, found)
        if plan.json is not None:
            save_rows(plan.json, rows)
        if interrupt is not None:
            raise interrupt
    _draw(plan, rows, say)
    return 0


def _bench_compiler(args: argparse.Namespace) -> int:
    """Print a JSON line for each step and way, as they come."""
    if args.workloads or args.engines or args.picture or args.quick or args.rounds != _ROUNDS:
        raise ValueError("bench.compiler goes with --model, --dtype and --json only; it runs no workload")
    path, rows = _check_folder("json", args.json), list[Row]()
    model = toy() if args.model in (None, "toy") else causal_lm(load_model(args.model, args.dtype)[0])
    for row in measure_compiler(model):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if path is not None:
            save_rows(path, rows)
    return 0


def _draw(plan: Plan, rows: list[Row], say: Callable[[str], Any]) -> None:
    if plan.picture is not None and not draw_picture(plan.picture, rows):
        say("no picture: no engine was compared with a peer")
