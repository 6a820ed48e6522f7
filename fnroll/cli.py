"""The `fnroll` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from fnroll.bench import command as benchmark
from fnroll.checks import check_choice
from fnroll.config import RolloutConfig, SamplingConfig
from fnroll.dialogue.tool import Tool
from fnroll.models.load import DTYPES, load_model
from fnroll.models.smollm2 import load_smollm2
from fnroll.models.tiny import TINY_TOOLS, make_tasks
from fnroll.records.batch import RolloutBatch, RolloutRequest, dump_record
from fnroll.records.files.saver import read_request
from fnroll.records.prompt import read_prompts
from fnroll.records.record import RolloutRecord
from fnroll.rollout.call import RolloutInterrupted
from fnroll.rollout.flight.resume import describe_run
from fnroll.rollout.rollout import Rollout
from fnroll.rollout.tables import print_batch, print_profile
from fnroll.tools.builtin import BUILTIN_TOOLS, get_tool
from fnroll.tools.replay import ReplayError
from fnroll.train import command as training

_DATA = Path(__file__).parent / "data"
_SHIPPED = {"questions": _DATA / "questions.txt", "tool-questions": _DATA / "tool_questions.jsonl"}
_TINY_TASKS, _TINY_TASK_COUNT = "tiny-tasks", 16
_TINY = {function.__name__: function for function in TINY_TOOLS}
_INTERRUPTED = 130  # 128 + SIGINT, as shells count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fnroll", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    rollout = commands.add_parser("rollout", help="roll out prompts from a file")
    rollout.add_argument(
        "--prompts",
        default=_TINY_TASKS,
        help="a file, one prompt a line, text or .jsonl; or a shipped set: "
        + ", ".join([_TINY_TASKS, *_SHIPPED])
        + " (default: %(default)s, tasks of the embedded model)",
    )
    _add_options(rollout)
    demo = commands.add_parser("demo", help="`fnroll train` with the folder out/demo: see a model learn")
    training.add_options(demo)
    demo.set_defaults(out="out/demo")
    bench = commands.add_parser("bench", help="measure fnroll and its peers in one run")
    benchmark.add_options(bench)
    train = commands.add_parser("train", help="train the embedded model to use its tools, by GRPO")
    training.add_options(train)
    fetch = commands.add_parser("fetch", help="prepare a model once, so that later commands start at once")
    fetch.add_argument("name", choices=("smollm2",))
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", default="tiny", help="tiny, tiny-solved, smollm2 or a folder (default: %(default)s)"
    )
    model.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--n", type=int, default=1, help="samples of each prompt (default: %(default)s)")
    sampling.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s")
    sampling.add_argument("--top-k", type=int, default=0, help="0 is off")
    sampling.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    sampling.add_argument("--repetition-penalty", type=float, help="default: the model's own")
    sampling.add_argument("--max-new-tokens", type=int, help="default: no bound")
    sampling.add_argument("--seed", type=int, default=0)
    sampling.add_argument("--max-new-tokens-per-turn", type=int, help="default: no bound")
    tools = parser.add_argument_group("tools")
    tools.add_argument(
        "--tools",
        help=f"comma-separated, of: {', '.join([*BUILTIN_TOOLS, *_TINY])} (default: none; with the prompts "
        f"{_TINY_TASKS} {','.join(_TINY)})",
    )
    tools.add_argument("--tool-call-parser", default="auto", help="default: by the chat template")
    tools.add_argument("--max-turns", type=int, default=16, help="default: %(default)s")
    tools.add_argument("--max-tool-output-chars", type=int, help="default: keep all")
    tools.add_argument("--log", help="append tool calls and results to this file, as JSON Lines")
    tools.add_argument(
        "--wait-for-tools",
        action="store_true",
        help="decode on only when all tools have answered: a replay then repeats every bit of float32",
    )
    tools.add_argument("--replay", help="answer tool calls from this log and call no tool")
    run = parser.add_argument_group("run")
    run.add_argument("--out", help="write the records here, as JSON Lines")
    run.add_argument("--save", help="keep a file of all records as they last stood, ended or not")
    run.add_argument("--save-every", type=int, default=100, help="decode steps (default: %(default)s)")
    run.add_argument("--resume", action="store_true", help="go on with the file of --save, if there is one")
    run.add_argument(
        "--changed", default="", help="what may differ from the saved run: seed, temperature, ..."
    )
    run.add_argument("--max-length", type=int, default=1024, help="tokens of a record (default: %(default)s)")
    run.add_argument("--rows", type=int, default=16, help="records at the same time (default: %(default)s)")
    run.add_argument("--batching", default="continuous", choices=("continuous", "static"))
    run.add_argument("--backend", default="eager", choices=("eager", "compiled", "captured"))
    run.add_argument("--poll-every", type=int, default=1, help="decode steps between two host reads")


class RecordFile:
    """Writes each record as it ends, and at the end all of them in the order of the request."""

    def __init__(self, path: str | None) -> None:
        self.path = None if path is None else Path(path)
        self._file: TextIO | None = None
        if self.path is not None and not self.path.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {str(self.path.parent)!r} to write {path} into")

    def write(self, index: int, record: RolloutRecord) -> None:
        """Append a record, flushed, so that a crash loses none that had ended."""
        if self.path is None:
            return
        if self._file is None:  # not before: bad input leaves an earlier file as it was
            self._file = self.path.open("w", encoding="utf-8")
        self._file.write(dump_record(record))
        self._file.flush()

    def close(self, batch: RolloutBatch) -> None:
        """Put the records that have ended in order."""
        if self._file is not None and self.path is not None:
            self._file.close()
            batch.save(self.path)


def _get_tools(names: str | None, prompts: str) -> list[Tool | Callable[..., Any]]:
    """Return the tools that are named; without a name those that a shipped set of prompts is about."""
    if names is None:
        return list(TINY_TOOLS) if prompts == _TINY_TASKS else []
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        check_choice("rollout", "tools", name, [*BUILTIN_TOOLS, *_TINY])
    return [_TINY[name] if name in _TINY else get_tool(name) for name in wanted]


def _get_prompts(name: str) -> list[RolloutRecord]:
    if name == _TINY_TASKS:
        tasks = make_tasks(_TINY_TASK_COUNT, split="held-out")
        return [RolloutRecord(messages=task.messages, metadata=task.metadata) for task in tasks]
    path = _SHIPPED.get(name, Path(name))
    prompts = read_prompts(path)
    if not prompts:
        raise ValueError(f"{path} holds no prompts; give one a line")
    return prompts


def _warn_of_tiny(args: argparse.Namespace, console: Console) -> None:
    if args.model in ("tiny", "tiny-solved") and args.prompts != _TINY_TASKS:
        console.print(
            f"[yellow]The embedded model ({args.model}) can do nothing but its own tasks, "
            f"--prompts {_TINY_TASKS}; for other prompts give a --model: smollm2, or a folder.[/]"
        )


def _roll_out(args: argparse.Namespace, prompts: list[RolloutRecord], console: Console) -> int:
    sampling = SamplingConfig(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        repetition_penalty=args.repetition_penalty,
        max_new_tokens=args.max_new_tokens,
        max_new_tokens_per_turn=args.max_new_tokens_per_turn,
        max_tool_output_chars=args.max_tool_output_chars,
    )
    config = RolloutConfig(
        max_length=args.max_length,
        rows=args.rows,
        batching=args.batching,
        backend=args.backend,
        poll_every=args.poll_every,
        max_turns=args.max_turns,
        tool_call_parser=args.tool_call_parser,
        log=args.log,
        replay=args.replay,
        wait_for_tools=args.wait_for_tools,
        save=args.save,
        save_every=args.save_every,
    )
    if args.resume and not args.save:
        raise ValueError("--resume needs --save: the file to go on with")
    tools = _get_tools(args.tools, args.prompts)
    request = RolloutRequest(prompts, args.n)
    model, tokenizer = load_model(args.model, args.dtype)
    with Rollout(model, tokenizer, config, tools) as rollout:
        request = _go_on(args, request, describe_run(args.seed, 0, sampling, config, rollout.model), console)
        file = RecordFile(args.out)
        code = 0
        try:
            rollout.generate(request, sampling, seed=args.seed, on_record=file.write)
        except RolloutInterrupted as interrupt:
            console.print(f"[yellow]{interrupt.args[0].split(', see')[0]}[/]")
            code = _INTERRUPTED
        finally:
            file.close(rollout.finished)
        print_batch(console, rollout.finished, tokenizer)
        print_profile(console, rollout.profile)
        if args.out and len(rollout.finished):
            console.print(f"{len(rollout.finished)} records written to {args.out}")
    return code


def _go_on(
    args: argparse.Namespace, request: RolloutRequest, run: dict[str, Any], console: Console
) -> RolloutRequest:
    """Return the request that goes on with the save, where that is asked for."""
    changed = tuple(name.strip() for name in args.changed.split(",") if name.strip())
    if not args.resume:
        return request
    resumed = read_request(args.save, request, run, changed)
    if not resumed.resume:
        console.print(f"there is no {args.save} yet: from the start", style="dim")
    return resumed


def _run(args: argparse.Namespace, console: Console) -> int:
    if args.command == "fetch":
        load_smollm2()
        return 0
    if args.command in ("demo", "train"):
        return training.train(args, console)
    if args.command == "bench":
        return benchmark.bench(args, console)
    prompts = _get_prompts(args.prompts)
    _warn_of_tiny(args, console)
    return _roll_out(args, prompts, console)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code: 0, 2 for bad input, 130 after Ctrl-C."""
    args = _parser().parse_args(argv)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    console: Any = Console()
    try:
        return _run(args, console)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (ValueError, OSError, ReplayError) as error:
        print(f"fnroll: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
