import ast
from pathlib import Path

import fnroll.grpo

ALLOWED = {"__future__", "collections", "collections.abc", "functools", "math", "typing", "warnings", "torch"}
OWN = {"fnroll.core.tree", "fnroll.core.precision", "fnroll.checks"}
FOLDER = Path(fnroll.grpo.__file__).parent


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_grpo_knows_tensors_and_trees_only():
    files = sorted(FOLDER.glob("*.py"))
    assert len(files) > 10
    for path in files:
        for name in imports_of(path):
            own = name.startswith("fnroll.grpo") or name in OWN
            assert own or name in ALLOWED, (path.name, name)


def test_the_public_names_are_sorted_and_documented():
    for name in fnroll.grpo.__all__:
        public = getattr(fnroll.grpo, name)
        # A choice of words has its docstring under it, where Python does not keep it.
        assert public.__doc__ or hasattr(public, "__args__"), name
