"""Rows as tables for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fnroll.bench.meter import machine
from fnroll.bench.row import KEYS, Row
from fnroll.records.files.atomic import write_file

_WIDTH = 150


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _times(row: Row) -> str:
    if row["times_peer"] is None:
        return ""
    low, high = row["times_peer_range"]
    return f"{row['times_peer']:.2f} ({low:.2f}-{high:.2f})"


def _compile(row: Row) -> str:
    parts = [_number(row[key]) for key in ("compile_cold_s", "compile_warm_s")]
    return " / ".join(part for part in parts if part)


def _graphs(row: Row) -> str:
    return f"{row['graphs']} / {row['recompiles']}" if row["graphs"] else ""


def _fed(row: Row) -> str:
    parts = [_number(row[key]) for key in ("fed_per_sampled", "least_fed_per_sampled")]
    return " / ".join(parts) if parts[0] else ""


def _megabytes(row: Row) -> str:
    return "" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**20:.0f}"


_COLUMNS: dict[str, Callable[[Row], str]] = {
    "engine": lambda row: row["engine"],
    "tokens\n/ s": lambda row: f"{row['tokens_per_s']:.1f}" if row["tokens_per_s"] else "",
    "spread": lambda row: _percent(row["spread"]),
    "times\nfastest peer": _times,
    "of the\nbound": lambda row: _percent(row["share_of_bound"]),
    "same\nrecords": lambda row: _percent(row["same_records"]),
    "compile s\ncold / warm": _compile,
    "graphs /\nrecompiles": _graphs,
    "peak\nMiB": _megabytes,
    "fed / sampled\n(/ least)": _fed,
    "padding": lambda row: _percent(row["padding_share"]),
    "step\nms": lambda row: _number(row["step_ms"]),
    "host": lambda row: _percent(row["host_share"]),
}


def _make_table(rows: Sequence[Row]) -> Table:
    first = rows[0]
    name = " ".join(filter(None, (first["workload"], first["variant"])))
    title = f"{name}: {first['dtype']}, {first['rows']} rows"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    shown = {head: [cell(row) for row in rows] for head, cell in _COLUMNS.items()}
    shown = {head: cells for head, cells in shown.items() if any(cells)}
    for head in shown:
        table.add_column(head, justify="left" if head == "engine" else "right", no_wrap=True)
    for cells in zip(*shown.values(), strict=True):
        table.add_row(*cells)
    return table


def _make_plain_table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=rows[0]["workload"], title_justify="left")
    names = [name for name in rows[0] if name != "workload" and rows[0][name] is not None]
    for name in names:
        table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*[_number(row[name]) for name in names])
    return table


def print_rows(console: Console, rows: Sequence[Row]) -> None:
    """Print the table of one workload, and a line for each engine that failed."""
    measured = [row for row in rows if row.get("error") is None]
    if measured:
        table = _make_table(measured) if tuple(measured[0]) == KEYS else _make_plain_table(measured)
        console.print(table, width=max(console.width, _WIDTH), crop=False)
    for row in rows:
        if row.get("error") is not None:
            console.print(f"{row['workload']}: {row['engine']}: {row['error']}", markup=False)


def save_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows, each with its machine, as a JSON list; a reader never sees half a file."""
    text = json.dumps([{**row, "machine": machine()} for row in rows], indent=1, allow_nan=False)
    write_file(path, [text.encode() + b"\n"])
