"""What the pure parts may not do, read from their source: no world, no host reads, no writes in place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "fnroll"
CORE = sorted([*(ROOT / "core").rglob("*.py"), *(ROOT / "compile").rglob("*.py")])
ROUTING = sorted((ROOT / "routing").rglob("*.py"))
PURE = [*CORE, *sorted((ROOT / "dialogue").rglob("*.py")), *ROUTING]
# Of `compile`, these look at models and clocks: what they prepare is run by the others.
HOST = {ROOT / "compile" / "steps.py", ROOT / "compile" / "warmup.py"}

# Reading a tensor on the host waits for the device, and breaks a graph in two.
HOST_READS = {"item", "tolist", "cpu", "numpy"}
# `lower` moves results into donated buffers, `graph` inputs into its own, `buffer` has the write of a step.
WRITERS = {"lower.py", "graph.py", "buffer.py"}
WORLD = {"asyncio", "threading", "time", "random", "deepspeed", "multiprocessing", "subprocess"}
SHELL = {
    *(f"fnroll.{room}" for room in ("records", "tools", "rollout", "train", "bench", "testing", "cli")),
    "torch.distributed",
}
CORE_ONLY = {"fnroll.models", "fnroll.dialogue", "transformers", "rich", "jsonschema", "numpy"}


def imports(tree):
    """Every module that a file imports, with `from a import b` as both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
            yield "torch.distributed"


def forbidden_imports(tree, forbidden):
    return sorted(
        {name for name in imports(tree) for root in forbidden if name == root or name.startswith(f"{root}.")}
    )


def called_methods(tree):
    """The name of every method that is called."""
    return [
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def host_reads(tree):
    return sorted(HOST_READS.intersection(called_methods(tree)))


def writes_in_place(tree):
    """Methods named as torch names those that write, and assignments into an item."""
    found = [name for name in called_methods(tree) if name.endswith("_") and not name.endswith("__")]
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign):
            found += [ast.unparse(target) for target in targets if isinstance(target, ast.Subscript)]
        if isinstance(node, ast.keyword) and node.arg == "out":
            found.append("out=")
    return sorted(found)


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def name(path):
    return str(path.relative_to(ROOT))


def test_the_folders_are_where_this_test_looks():
    assert {"steps.py", "lower.py", "buffer.py", "model.py", "rng.py"} <= {path.name for path in CORE}
    assert any(path.parent.name == "dialogue" for path in PURE)
    assert {"plan.py", "assembly.py", "scores.py"} <= {path.name for path in ROUTING}


@pytest.mark.parametrize("path", [path for path in PURE if path not in HOST], ids=name)
def test_pure_parts_import_neither_shell_nor_world(path):
    assert forbidden_imports(parse(path), WORLD | SHELL) == []


@pytest.mark.parametrize("path", [path for path in CORE if path not in HOST], ids=name)
def test_the_core_imports_tensors_only(path):
    assert forbidden_imports(parse(path), CORE_ONLY) == []


@pytest.mark.parametrize("path", ROUTING, ids=name)
def test_routing_imports_neither_models_nor_files_of_others(path):
    assert (
        forbidden_imports(parse(path), {"transformers", "safetensors", "fnroll.models", "fnroll.grpo"}) == []
    )


@pytest.mark.parametrize("path", CORE, ids=name)
def test_the_core_reads_no_tensor_on_the_host(path):
    assert host_reads(parse(path)) == []


@pytest.mark.parametrize(
    "path", [path for path in CORE if path.name not in WRITERS and path not in HOST], ids=name
)
def test_the_core_writes_nothing_in_place(path):
    assert writes_in_place(parse(path)) == []


def test_transformers_only_in_models_and_dialogue():
    allowed = {"models", "dialogue", "train", "bench", "testing"}
    users = [path for path in ROOT.rglob("*.py") if forbidden_imports(parse(path), {"transformers"})]
    assert {name(path) for path in users if path.parts[len(ROOT.parts)] not in allowed} == set()


@pytest.mark.parametrize(
    ("source", "check", "found"),
    [
        ("x = y.sum().item()", host_reads, ["item"]),
        ("x = [v for v in y.tolist()]", host_reads, ["tolist"]),
        ("x = y.cpu().numpy()", host_reads, ["cpu", "numpy"]),
        ("item = 3\ny = x.items()", host_reads, []),
        ("x.add_(1)", writes_in_place, ["add_"]),
        ("x[0] = 1\nx[1] += 2", writes_in_place, ["x[0]", "x[1]"]),
        ("torch.add(a, b, out=c)", writes_in_place, ["out="]),
        ("x.__init__()\ny = x._f()", writes_in_place, []),
        ("import torch.distributed as d", lambda t: forbidden_imports(t, SHELL), ["torch.distributed"]),
        ("from torch import distributed", lambda t: forbidden_imports(t, SHELL), ["torch.distributed"]),
        ("def f():\n    import time", lambda t: forbidden_imports(t, WORLD), ["time"]),
        (
            "import torch\ntorch.distributed.barrier()",
            lambda t: forbidden_imports(t, SHELL),
            ["torch.distributed"],
        ),
        ("from fnroll import rollout", lambda t: forbidden_imports(t, SHELL), ["fnroll.rollout"]),
        ("import timeit, randomness", lambda t: forbidden_imports(t, WORLD), []),
    ],
)
def test_the_checks_see_what_they_look_for(source, check, found):
    assert check(ast.parse(source)) == found
