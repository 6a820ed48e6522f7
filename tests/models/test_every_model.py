"""Every causal language model of transformers, made tiny: recorded, plain, padded, packed log-probs agree."""

from pathlib import Path

import pytest
import transformers

from fnroll.testing.models import causal_classes, describe, measure, read_table

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
VERSION, TABLE = read_table(DOCUMENT)
CLASSES = causal_classes()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLASSES)
def test_log_probs_agree_or_a_refusal_says_why(name):
    cells = describe(CLASSES[name])
    # A refusal without one of the known reasons is a sentence that nobody has read yet.
    assert cells.startswith(("yes | ", "refused: ", "not tried: ")), cells
    if transformers.__version__ == VERSION:
        assert TABLE[name] == cells, "run python -m fnroll.testing.models"


def test_the_table_is_of_the_version_that_is_tested():
    pinned = (DOCUMENT.parents[1] / "constraints.txt").read_text(encoding="utf-8")
    assert f"transformers=={VERSION}\n" in pinned
    assert transformers.__version__ != VERSION or TABLE.keys() == CLASSES.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava", "gemma3"])
def test_the_language_part_of_models_with_eyes(kind):
    found = measure(kind)
    assert not found.refusal and found.is_close
