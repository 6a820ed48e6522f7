"""The steps alone by backend and mode: one whole row each, and counts that can be checked by hand."""

import json
from dataclasses import replace

import pytest
import torch

from fnroll.bench import command as benchmark
from fnroll.bench.cases import Shape, make_cases
from fnroll.bench.compiler import KEYS, WAYS, count_full_size, full_size, measure_compiler, measure_step
from fnroll.bench.workloads import toy
from fnroll.cli import main
from fnroll.core import steps
from fnroll.core import types as t
from fnroll.core.tree import tree_equal
from fnroll.models import causal_lm
from fnroll.models.zoo import tiny_model

SMALL = Shape(rows=3, lines=5, max_length=40, prompt=6, window=16)
STEPS = ["admit", "extend", "sample", "retire", "decode_step", "append_tool"]
CHEAP = [way for way in WAYS if way.backend is None]


def way(name):
    return next(way for way in WAYS if way.name == name)


@pytest.mark.parametrize("model", [toy, lambda: causal_lm(tiny_model("llama", torch.float32))])
def test_every_step_has_work_to_do(model):
    with torch.no_grad():
        after = {}
        for case in make_cases(model(), SMALL):
            result = case.step(*case.arguments())
            after[case.name] = result if isinstance(result, t.RolloutState) else result[0]
            assert not tree_equal(case.state.records, after[case.name].records) or case.name == "extend"
    assert list(after) == STEPS
    assert after["admit"].rows.record.tolist() == [0, 1, 2]
    assert after["extend"].rows.cached.tolist() == [6, 6, 6]
    assert after["sample"].records.length[:3].tolist() == [7, 7, 7]
    assert after["decode_step"].records.length[:3].tolist() == [7, 7, 7]
    assert after["retire"].records.status[:3].tolist() == [t.TRUNCATED, t.RUNNING, t.TRUNCATED]
    assert after["append_tool"].records.status[:3].tolist() == [t.PENDING] * 3


def test_every_row_has_all_keys():
    rows = list(measure_compiler(toy(), ways=CHEAP, shape=SMALL, repeats=3))
    assert [(row["way"], row["step"]) for row in rows] == [(w.name, s) for w in CHEAP for s in STEPS]
    for row in rows:
        assert tuple(row) == KEYS and row["rows"] == 3 and row["dtype"] == "float64"
        if row["way"] == "captured" and not torch.cuda.is_available():
            assert "needs CUDA; use inductor" in row["error"] and row["step_us"] is None
            continue
        assert row["error"] is None and row["step_us"] > 0 and row["recompiles"] == 0
        assert row["graphs"] == 0 and row["guards"] is None
    json.dumps(rows, allow_nan=False)


def test_graphs_and_guards_of_a_compiled_step_are_counted():
    row = measure_step(make_cases(toy(), SMALL)[STEPS.index("retire")], way("aot_eager"), repeats=3)
    assert row["graphs"] == 1 and row["recompiles"] == 0 and row["guards"] > 0 and row["compile_s"] > 0


@pytest.mark.slow
def test_inductor_counts_kernels_and_takes_no_memory_of_the_cache_s_size():
    case = make_cases(toy(), SMALL)[STEPS.index("retire")]
    row = measure_step(case, way("inductor"), repeats=3)
    assert row["kernels"] >= 1 and row["full_size_allocations"] == 0 and row["compile_s"] > 0


def test_full_size_allocations_are_counted_in_generated_code():
    code = (
        "buf0 = empty_strided_cpu((3, 41, 1), (41, 1, 1), torch.float64)\nbuf1 = empty_strided((2, ), (1, ))"
    )
    assert (
        count_full_size(code, 123) == 1 and count_full_size(code, 124) == 0 and count_full_size(code, 1) == 2
    )
    case = make_cases(toy(), SMALL)[0]
    assert full_size(case) == min(3 * 41, 6 * 40)


def test_a_step_that_cannot_be_compiled_is_a_row():
    def branch(state):
        return steps.retire(state) if state.rows.record.sum() > 0 else state

    case = make_cases(toy(), SMALL)[0]
    broken = replace(case, step=branch)
    assert "branching" in measure_step(broken, way("aot_eager"))["error"]


def test_the_command_prints_a_json_line_each(monkeypatch, tmp_path, capsys):
    def few(model):
        return measure_compiler(model, ways=CHEAP[:1], shape=SMALL, repeats=2)

    monkeypatch.setattr(benchmark, "measure_compiler", few)
    path = tmp_path / "rows.json"
    assert main(["bench", "--compiler", "--json", str(path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines] == STEPS
    assert [row["step"] for row in json.loads(path.read_text())] == STEPS


@pytest.mark.parametrize("options", [["--quick"], ["--workloads", "W1"], ["--rounds", "2"]])
def test_options_of_workloads_do_not_go_with_the_compiler(options, capsys):
    assert main(["bench", "--compiler", *options]) == 2
    assert "bench.compiler goes with --model, --dtype and --json only" in capsys.readouterr().err
