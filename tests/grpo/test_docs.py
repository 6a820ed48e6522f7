import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "grpo.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_code_on_the_page_runs(block):
    with torch.enable_grad():
        exec(compile(block, str(PAGE), "exec"), {})


def test_there_is_code_on_the_page():
    assert BLOCKS
