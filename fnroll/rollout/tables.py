"""A batch and a profile as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fnroll.records.batch import RolloutBatch
from fnroll.records.record import RolloutRecord
from fnroll.rollout.driver.profile import Profile

_ANSWER_CHARS = 160
_CUT = " … "


def _question(record: RolloutRecord, tokenizer: Any) -> str:
    if record.messages:
        return str(record.messages[-1].get("content", ""))
    ids = list(record.prompt_ids or ())
    return " ".join(map(str, ids)) if tokenizer is None else str(tokenizer.decode(ids))


def _answer(record: RolloutRecord, tokenizer: Any) -> str:
    if tokenizer is None:
        return " ".join(map(str, record.response_ids))
    text = tokenizer.decode(record.response_ids, skip_special_tokens=True)
    return _shorten(" ".join(text.split()))


def _shorten(text: str) -> str:
    """Keep both ends: what a record comes to, after its tool calls, stands at its end."""
    kept = (_ANSWER_CHARS - len(_CUT)) // 2
    return text if len(text) <= _ANSWER_CHARS else text[:kept] + _CUT + text[-kept:]


def mean_log_prob(record: RolloutRecord) -> float | None:
    """Return the mean log-prob of a record's sampled tokens in nats; None if there are none."""
    if record.log_probs is None or not record.num_sampled:
        return None
    return sum(record.log_probs) / record.num_sampled


def _groups(batch: RolloutBatch) -> list[list[RolloutRecord]]:
    groups: dict[object, list[RolloutRecord]] = {}
    for record in batch:
        groups.setdefault(record.group, []).append(record)
    return list(groups.values())


def _row(group: Sequence[RolloutRecord], tokenizer: Any) -> list[str]:
    means = [mean_log_prob(record) for record in group]
    return [
        escape(_question(group[0], tokenizer)),
        escape(_answer(group[0], tokenizer)),
        "\n".join(str(record.num_sampled) for record in group),
        "\n".join("-" if mean is None else f"{mean:.2f}" for mean in means),
        "\n".join(f"{record.reason}" for record in group),
    ]


def print_batch(console: Console, batch: RolloutBatch, tokenizer: Any, most: int = 64) -> None:
    """Print a table: each question, its first answer, and of every sample length, log-prob and end."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False, row_styles=("", "dim"))
    table.add_column("question", ratio=3)
    table.add_column("first answer", ratio=6)
    table.add_column("tokens", justify="right")
    table.add_column("mean\nlog-prob", justify="right")
    table.add_column("ended")
    groups = _groups(batch)
    has_tools = any(record.tool_calls for record in batch)
    if has_tools:
        table.add_column("tool\ncalls", justify="right")
    for group in groups[:most]:
        calls = ["\n".join(str(len(record.tool_calls)) for record in group)] if has_tools else []
        table.add_row(*_row(group, tokenizer), *calls)
    console.print(table)
    if len(groups) > most:
        console.print(f"({len(groups) - most} more prompts not shown)")


def print_profile(console: Console, profile: Profile) -> None:
    """Print what a rollout took and where the time went, in two lines."""
    stages = ", ".join(
        f"{name} {seconds:.2f}" for name, seconds in sorted(profile.seconds.items(), key=lambda i: -i[1])
    )
    console.print(
        f"{profile.records} records, {profile.tokens:,} tokens in {profile.wall_s:.1f} s: "
        f"{profile.tokens_per_s:,.0f} tokens/s, {profile.steps} decode steps, "
        f"{profile.mean_live_rows:.1f} rows live on average"
    )
    console.print(f"seconds: {stages}", style="dim")
