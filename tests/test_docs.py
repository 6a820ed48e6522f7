"""Every Python block of the documents runs; the blocks of a file share their names, in order."""

import re
from pathlib import Path

import pytest
import torch

from fnroll.dialogue.parsers import registry

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A block that must not run has `<!-- no-run -->` on the line before it.
BLOCK = re.compile(
    r"^(?P<mark><!-- no-run -->[ \t]*\n)?(?P<fence>```+)python[^\n]*\n(?P<code>.*?)^(?P=fence)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)


def blocks(text):
    """Yield `(line of the first statement, code)` of each block that runs."""
    for match in BLOCK.finditer(text):
        if match["mark"] is None:
            yield text.count("\n", 0, match.start("code")) + 1, match["code"]


def run(path, text):
    names = {"__name__": "__main__"}
    for line, code in blocks(text):
        # Empty lines before it make a traceback name the document's own lines.
        exec(compile("\n" * (line - 1) + code, str(path), "exec"), names)
    return names


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_blocks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_parsers", dict(registry._parsers))
    with torch.enable_grad():
        run(path, path.read_text(encoding="utf-8"))


def test_blocks_share_names_and_marked_ones_are_left_out():
    marked = "<!-- no-run -->\n```python\n1 / 0\n```\n"
    text = f"a\n```python\nx = 1\n```\n{marked}```text\n(\n```\n```python\nx += 1\n```\n"
    assert list(blocks(text)) == [(3, "x = 1\n"), (13, "x += 1\n")]
    assert run("a.md", text)["x"] == 2


def test_a_failing_block_names_its_line():
    with pytest.raises(ZeroDivisionError) as error:
        run("a.md", "text\n\n```python\nx = 1\nx / 0\n```\n")
    assert error.traceback[-1].lineno + 1 == 5
