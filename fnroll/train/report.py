"""What a training run leaves behind: curves and transcripts in one HTML file, and a picture."""

from __future__ import annotations

import html
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from fnroll.records.record import RolloutRecord

CURVES = {
    "reward": "mean reward",
    "tool_calls": "tool calls a trajectory",
    "bad_calls": "share of calls with an error",
    "sampled_tokens": "sampled tokens a trajectory",
    "kl": "estimated KL(old || updated policy), nats a token",
    "tokens_per_s": "sampled tokens per second",
}
_WIDTH, _HEIGHT, _MARGIN = 360, 150, 34

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>fnroll train</title>
<style>
body {{ font: 15px system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark; }}
figure {{ display: inline-block; margin: 0 1rem 1rem 0; }}
figcaption, .axis {{ font-size: 12px; fill: currentColor; }}
polyline {{ fill: none; stroke: #2a7de1; stroke-width: 1.6; }}
line {{ stroke: currentColor; opacity: .3; }}
pre {{ white-space: pre-wrap; border-left: 3px solid #8888; padding-left: 1rem; }}
</style>
<h1>fnroll train</h1>
<p>{summary}</p>
{figures}
{transcripts}
</html>
"""


def _points(steps: Sequence[float], values: Sequence[float], low: float, high: float) -> str:
    width, span = max(steps[-1] - steps[0], 1.0), (high - low) or 1.0
    return " ".join(
        f"{_MARGIN + (step - steps[0]) / width * (_WIDTH - _MARGIN):.1f},"
        f"{8 + (high - value) / span * (_HEIGHT - _MARGIN):.1f}"
        for step, value in zip(steps, values, strict=True)
    )


def draw_curve(steps: Sequence[float], values: Sequence[float], caption: str) -> str:
    """Return one curve as an HTML figure with a drawing in it."""
    low, high = min(0.0, *values), max(values) or 1.0
    bottom = 8 + _HEIGHT - _MARGIN
    return (
        f'<figure><svg width="{_WIDTH + 8}" height="{_HEIGHT}" role="img">'
        f'<line x1="{_MARGIN}" y1="{bottom}" x2="{_WIDTH}" y2="{bottom}"/>'
        f'<polyline points="{_points(steps, values, low, high)}"/>'
        f'<text class="axis" x="0" y="14">{high:.3g}</text>'
        f'<text class="axis" x="0" y="{bottom}">{low:.3g}</text>'
        f'<text class="axis" x="{_MARGIN}" y="{_HEIGHT - 6}">step {steps[0]:.0f} to {steps[-1]:.0f}</text>'
        f"</svg>"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _transcript(record: RolloutRecord) -> str:
    question = (record.messages or [{"content": ""}])[0]["content"]
    return (
        f"<pre><b>{html.escape(str(question))}</b> (right: {html.escape(str(record.metadata['answer']))}, "
        f"reward {record.reward:g})\n{html.escape(record.response or '')}</pre>"
    )


def write_html(
    path: Path,
    summary: str,
    metrics: Sequence[Mapping[str, float]],
    transcripts: Mapping[str, Sequence[RolloutRecord]],
) -> None:
    """Write a page that needs nothing but itself.

    Args:
      path: of the file.
      summary: one sentence, shown at the top.
      metrics: one mapping a step, with `step`.
      transcripts: records by the heading they stand under.
    """
    figures = []
    for name, caption in CURVES.items():
        lines = [line for line in metrics if name in line]
        if lines:
            steps = [line["step"] for line in lines]
            figures.append(draw_curve(steps, [line[name] for line in lines], caption))
    sections = [
        f"<h2>{html.escape(heading)}</h2>" + "".join(map(_transcript, records))
        for heading, records in transcripts.items()
    ]
    page = _PAGE.format(
        summary=html.escape(summary), figures="\n".join(figures), transcripts="\n".join(sections)
    )
    path.write_text(page, encoding="utf-8")


def write_png(path: Path, metrics: Sequence[Mapping[str, float]]) -> bool:
    """Write the curves as a picture; return False if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6), layout="constrained")
    for axes, (name, caption) in zip(figure.subplots(2, 3).flat, CURVES.items(), strict=True):
        lines = [line for line in metrics if name in line]
        axes.plot([line["step"] for line in lines], [line[name] for line in lines])
        axes.set_title(caption, fontsize=9)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=min(0.0, *(line[name] for line in lines), 0.0))
    figure.savefig(path, dpi=120)
    return True
