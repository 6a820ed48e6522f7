"""A picture of the rows: how many times the fastest peer each engine is."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fnroll.bench.row import BOUND, Row


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be drawn once all is measured.

    Raises:
      ValueError: if it is no `.png`, or matplotlib is missing.
    """
    if path.suffix != ".png":
        raise ValueError(f"bench.picture is {str(path)!r}; it must be a file name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("bench.picture needs matplotlib; pip install 'fnroll[bench]', or leave it out")


def bars(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the ratio to the fastest peer by workload and engine; the bound is left out."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.get("times_peer") is not None and row["engine"] != BOUND:
            name = "\n".join(filter(None, (row["workload"], row["variant"], row["dtype"])))
            found.setdefault(name, {})[row["engine"]] = row["times_peer"]
    return found


def draw_picture(path: Path, rows: Sequence[Row]) -> bool:
    """Write the picture as PNG; return False if no row was compared with a peer."""
    from matplotlib.figure import Figure

    groups = bars(rows)
    engines = list(dict.fromkeys(name for group in groups.values() for name in group))
    if not groups:
        return False
    figure = Figure(figsize=(2 + 1.6 * len(groups), 4), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(engines)
    for place, engine in enumerate(engines):
        where = [at + (place - (len(engines) - 1) / 2) * width for at in range(len(groups))]
        axes.bar(where, [group.get(engine, 0.0) for group in groups.values()], width, label=engine)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel("times the fastest peer")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    figure.savefig(path, dpi=150)
    return True
