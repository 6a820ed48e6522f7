"""The table of docs/models.md: what becomes of each architecture."""

from __future__ import annotations

import re
from pathlib import Path

import transformers

from fnroll.testing.models.agreement import Agreement, NotTinyError, causal_classes, measure

_BEGIN = "<!-- written by python -m fnroll.testing.models, with transformers {version} -->"
_END = "<!-- the end of what it writes -->"
_HEAD = "| Class | Rollout | Packed batch |\n| --- | --- | --- |\n"
_ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)
_REASONS = {
    "keep a recurrent or other state": "refused: layers keep a state besides keys and values",
    "attend by code of their own": "refused: attends by code of its own",
    "attends by masks of its own": "refused: attends by masks of its own",
    "takes no position_ids": "refused: takes no position_ids",
    "do not count from 0": "refused: its positions do not count from 0",
    "write keys and values; every layer must": "refused: does not fill its cache",
    "its forward fails": "refused: its forward needs more than ids and a cache",
}
"""How a refusal is told from the others, and what the table says of it."""


def measure_class(kinds: list[str]) -> Agreement:
    """Measure a class by the first kind of configuration that can be made tiny.

    Raises:
      NotTinyError: if none can.
    """
    for kind in kinds[:-1]:
        try:
            return measure(kind)
        except NotTinyError:
            continue
    return measure(kinds[-1])


def describe(kinds: list[str]) -> str:
    """Measure a class; return its cells in the table, behind its name."""
    try:
        found = measure_class(kinds)
    except NotTinyError as reason:
        return f"not tried: {str(reason).split('.')[0]} | –"
    if found.refusal:
        reasons = [text for sign, text in _REASONS.items() if sign in found.refusal]
        return f"{reasons[0] if reasons else found.refusal} | –"
    if not found.is_close:
        return f"**wrong** by {found.recorded:g}, {found.padded:g}, {found.packed:g} | –"
    return f"yes | {'in one row' if found.is_packed else 'one record a row'}"


def write_table(path: Path) -> None:
    """Write the table into a document, between its two marks."""
    rows = "".join(f"| `{name}` | {describe(kinds)} |\n" for name, kinds in causal_classes().items())
    text = path.read_text(encoding="utf-8")
    begin = text.index(_BEGIN.partition(",")[0])
    end = text.index(_END)
    mark = _BEGIN.format(version=transformers.__version__)
    path.write_text(f"{text[:begin]}{mark}\n\n{_HEAD}{rows}\n{text[end:]}", encoding="utf-8")


def read_table(path: Path) -> tuple[str, dict[str, str]]:
    """Return the version of transformers that the table was written with, and the cells of each class."""
    text = path.read_text(encoding="utf-8")
    found = re.search(re.escape(_BEGIN).replace(r"\{version\}", "(.+)"), text)
    return found[1] if found else "", dict(_ROW.findall(text))
