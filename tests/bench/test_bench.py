"""The benchmark: the same work for all engines, rows that are whole, and failures that stay rows."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

import fnroll.compile.steps as lowered_module
from fnroll.bench import EngineError, EngineRun, Sample, Subject, interleave, paired_ratios, run_workload
from fnroll.bench import command as benchmark
from fnroll.bench import suite as suite_module
from fnroll.bench.engine import FnrollEngine
from fnroll.bench.peer import GenerateEngine
from fnroll.bench.picture import bars
from fnroll.bench.row import BOUND, KEYS, share_of_bound, share_of_same
from fnroll.bench.workload import Workload, least_fed
from fnroll.bench.workloads import QUICK, WORKLOADS, stress_subject
from fnroll.cli import main
from fnroll.models.tiny import load_tiny
from fnroll.models.zoo import tiny_model

SMALL = replace(
    QUICK,
    rows=3,
    uniform=(3, 4),
    ragged=(5, 9),
    group=(2, 80, 2, 3),
    turns=(4, 3, 8, 1),
    pages=(5, 6),
    latencies=(0.0,),
    short=(4, 2),
    stress=((4, 9), 3),
)
NAMES = ("fnroll-eager", "generate", "generate-static")


@pytest.fixture(scope="module")
def subject():
    return Subject(*load_tiny("solved"))


@pytest.fixture(scope="module")
def random_subject():
    return Subject(tiny_model("llama", torch.float64))


def random_work(**options):
    prompts = tuple(tuple(3 + (5 * i + j) % 40 for j in range(2 + 3 * i)) for i in range(5))
    return Workload("W2", prompts, **{"rows": 2, "max_new_tokens": 7, "has_stops": True, **options})


def rows_of(subject, work, names=NAMES, rounds=1, **options):
    rows, interrupt = run_workload(subject, work, names, rounds, lambda text: None, **options)
    assert interrupt is None
    return {row["engine"]: row for row in rows}


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_the_same_each_time_and_of_the_promised_lengths(subject, name):
    one = stress_subject() if name == "W6" else subject
    works = WORKLOADS[name](one, SMALL)
    assert works == WORKLOADS[name](one, SMALL)
    assert all(len(set(work.prompts)) == len(work.prompts) for work in works if name != "W6")
    assert len({work.variant for work in works}) == len(works)
    if name == "W1":
        assert len({len(prompt) for prompt in works[0].prompts}) == 1
    if name == "W3":
        assert {len(prompt) for prompt in works[0].prompts} == {80} and len(works[0].expanded) == 4
    if name == "W4":
        turn = works[0].max_new_tokens
        assert all(len(prompt) % turn == 0 for prompt in works[0].prompts)
        assert [len(page.ids) for page in works[0].pages] == [5 * turn, 6 * turn]


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5"])
def test_all_engines_give_the_oracle_s_records_on_a_trained_model(subject, name):
    [work] = WORKLOADS[name](subject, SMALL)
    rows = rows_of(subject, work)
    for engine in NAMES:
        assert rows[engine]["same_records"] == 1.0 and rows[engine]["error"] is None
        assert rows[engine]["fed_per_sampled"] >= rows[engine]["least_fed_per_sampled"] > 0


def test_every_turn_has_its_tokens_and_the_tool_s_page_behind_it(subject):
    [work] = WORKLOADS["W4"](subject, SMALL)
    fnroll, peer = FnrollEngine(subject, work)(), GenerateEngine(subject, work)()
    assert fnroll.records == peer.records
    assert fnroll.tokens == peer.tokens == 4 * 3 * 8
    ends = {page.ids for page in work.pages}
    for prompt, record in zip(work.prompts, fnroll.records, strict=True):
        place = len(prompt)
        for turn in range(3):
            said, place = record[place : place + 8], place + 8
            assert [token in subject.stop_ids for token in said] == [False] * 7 + [True]
            if turn < 2:
                page = next(ids for ids in ends if record[place : place + len(ids)] == ids)
                place += len(page)
        assert place == len(record)


def test_every_row_has_all_keys_and_the_bound_is_one_of_them(random_subject):
    rows = rows_of(random_subject, random_work(), [*NAMES, "generate-batch", "deepspeed"], rounds=2)
    assert set(rows) == {*NAMES, "generate-batch", "deepspeed", BOUND}
    assert all(tuple(row) == KEYS for row in rows.values())
    for engine in NAMES:
        row = rows[engine]
        assert row["rounds"] == 2 and row["tokens_per_s"] > 0 and row["rows"] == 2
        assert row["dtype"] == "float64" and row["same_records"] == 1.0
        assert row["graphs"] == row["recompiles"] == 0 and row["compile_cold_s"] is None
        assert row["times_peer_range"][0] <= row["times_peer"] <= row["times_peer_range"][1]
        assert row["share_of_bound"] > 0
    assert rows[BOUND]["share_of_bound"] == 1.0
    json.dumps(list(rows.values()), allow_nan=False)


def test_continuous_batching_of_transformers_gives_the_same_answers(subject):
    [work] = WORKLOADS["W2"](subject, SMALL)
    row = rows_of(subject, work, ["fnroll-eager", "generate-batch"])["generate-batch"]
    assert row["error"] is None and row["same_records"] == 1.0 and row["oracle"] == "fnroll-serial"
    assert "_cached_continuous_batching_manager" not in vars(subject.module)


@pytest.mark.parametrize("name", ["deepspeed", "deepspeed-continuous"])
@pytest.mark.parametrize("options", [{"max_new_tokens": 30}, {"has_stops": False}, {"n": 2}], ids=str)
def test_deepspeed_gives_the_answers_of_generate(random_subject, monkeypatch, name, options):
    pytest.importorskip("deepspeed.runtime.rollout", reason="needs pip install 'fnroll[deepspeed]'")
    work, config = random_work(**options), random_subject.module.generation_config
    free = GenerateEngine(random_subject, replace(work, has_stops=False))()
    other = free.records[-1][-3]
    monkeypatch.setattr(config, "eos_token_id", [*random_subject.stop_ids, other])
    monkeypatch.setattr(config, "repetition_penalty", 1.3)  # the model's own, which no engine may apply
    peer = GenerateEngine(random_subject, work)()
    found = suite_module.ENGINES[name](random_subject, work)()
    assert (peer.tokens < free.tokens) == work.has_stops
    assert found.records == peer.records
    assert (found.tokens, found.fed) == (peer.tokens, peer.fed) and found.steps > 0 <= found.padded
    assert config.repetition_penalty == 1.3


def test_stops_end_answers_only_where_the_workload_says_so(random_subject):
    stop = random_subject.stop_ids[0]
    free, stopped = random_work(has_stops=False, max_new_tokens=30), random_work(max_new_tokens=30)
    long, short = (FnrollEngine(random_subject, work)() for work in (free, stopped))
    assert long.tokens == 5 * 30 and long.records == GenerateEngine(random_subject, free)().records
    assert short.records == GenerateEngine(random_subject, stopped)().records
    assert any(stop in record for record in long.records) == (short.tokens < long.tokens)


class Broken:
    """An engine that works so many times and then fails."""

    def __init__(self, subject, work, times=0):
        self.times = times

    def __call__(self):
        if self.times == 0:
            raise RuntimeError("no pages left\nand a long story")
        self.times -= 1
        return EngineRun(seconds=1.0, tokens=10)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_failing_peer_becomes_a_row_and_the_others_go_on(random_subject, monkeypatch, times):
    engines = {**suite_module.ENGINES, "broken": partial(Broken, times=times)}
    monkeypatch.setattr(suite_module, "ENGINES", engines)
    rows = rows_of(random_subject, random_work(), ["broken", "fnroll-eager", "generate"], rounds=3)
    assert rows["broken"]["error"] == "RuntimeError: no pages left"
    assert rows["broken"]["rounds"] == (times - 1 if times > 1 else None)
    assert rows["fnroll-eager"]["rounds"] == 3 and rows["fnroll-eager"]["error"] is None


def test_what_is_not_there_is_said_in_a_row(random_subject, monkeypatch):
    monkeypatch.setattr("fnroll.bench.hybrid.importlib.util.find_spec", lambda name: None)
    rows = rows_of(random_subject, random_work(), ["fnroll-captured", "deepspeed"])
    if not torch.cuda.is_available():
        assert "needs CUDA; use fnroll-compiled" in rows["fnroll-captured"]["error"]
    assert "pip install 'fnroll[deepspeed]'" in rows["deepspeed"]["error"]
    assert all(tuple(row) == KEYS for row in rows.values())


def test_a_toy_has_no_peers_and_no_bound():
    work = WORKLOADS["W6"](stress_subject(), SMALL)[-1]
    rows = rows_of(stress_subject(), work, ["fnroll-eager", "generate"])
    assert set(rows) == {"fnroll-eager", "generate"} and "toy" in rows["generate"]["error"]
    row = rows["fnroll-eager"]
    assert row["same_records"] == 1.0 and row["oracle"] == "fnroll-serial"
    assert 0 < row["host_share"] < 1 and row["step_ms"] > 0 and row["share_of_bound"] is None


def test_compiling_is_counted_cold_and_warm(monkeypatch):
    # Inductor's code generation takes a minute from an empty cache; what is counted is the same without it.
    quick = partial(lowered_module.compiled, backend="aot_eager")
    monkeypatch.setattr(lowered_module, "compiled", quick)
    work = Workload("W6", ((1, 2), (3, 4), (5, 6)), rows=3, max_new_tokens=4)
    row = rows_of(stress_subject(), work, ["fnroll-compiled"])["fnroll-compiled"]
    assert row["error"] is None and row["same_records"] == 1.0
    assert row["graphs"] >= 1 and row["recompiles"] == 0
    assert row["compile_cold_s"] > 0 and row["compile_warm_s"] > 0


class Wrong(GenerateEngine):
    """generate(), with one token of one record changed."""

    def __call__(self):
        outcome = super().__call__()
        first, *others = outcome.records
        return replace(outcome, records=((*first[:-1], first[-1] ^ 1), *others))


def test_a_wrong_record_shows(random_subject, monkeypatch):
    assert share_of_same(((1, 2), (3,)), ((1, 2), (4,))) == 0.5
    monkeypatch.setattr(suite_module, "ENGINES", {**suite_module.ENGINES, "wrong": Wrong})
    rows = rows_of(random_subject, random_work(), ["wrong", "fnroll-eager"])
    assert rows["wrong"]["same_records"] == 0.8 and rows["fnroll-eager"]["same_records"] == 1.0


def test_the_least_that_must_be_fed():
    one = Workload("W", ((1, 2),), 1, 1)
    assert least_fed(one, [(1, 2, 3)]) == 2
    assert least_fed(replace(one, n=2), [(1, 2, 3, 4), (1, 2, 3, 4)]) == 4
    two = Workload("W", ((1, 2), (1, 5, 4)), 1, 1)
    assert least_fed(two, [(1, 2, 9, 9), (1, 5, 4, 6)]) == 5


def test_the_share_of_the_bound_counts_full_rows():
    bound = Sample([EngineRun(seconds=2.0, tokens=8, steps=4)])  # half a second a step
    engine = Sample([EngineRun(seconds=9.0, tokens=12, decode_s=6.0, decode_tokens=12)])
    assert share_of_bound(engine, bound, rows=2) == pytest.approx(0.5 * 6 / 6.0)
    blind = Sample([EngineRun(seconds=9.0, tokens=12)])
    assert share_of_bound(blind, bound, rows=2) == pytest.approx(0.5 * 6 / 9.0)


def test_engines_take_turns_and_ratios_are_paired_by_round():
    seen, seconds = [], iter([1.0, 3.0, 2.0, 4.0])

    def engine(name):
        def run():
            seen.append(name)
            return EngineRun(seconds=next(seconds), tokens=10 if name == "a" else 20)

        return run

    samples, interrupt = interleave({"a": engine("a"), "b": engine("b")}, 2, lambda text: None)
    assert seen == ["a", "b", "a", "b"] and interrupt is None
    assert paired_ratios(samples["b"], samples["a"]) == pytest.approx([20 / 3 / 10, 20 / 4 / 5])
    assert samples["a"].tokens_per_s == pytest.approx(7.5)


def test_ctrl_c_keeps_the_rounds_that_were_done():
    def run():
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return EngineRun(seconds=1.0, tokens=1)

    done = []
    samples, interrupt = interleave({"a": run}, 9, lambda text: None)
    assert isinstance(interrupt, KeyboardInterrupt) and len(samples["a"].rounds) == 3


def test_bars_leave_out_failures_and_the_bound():
    blank = dict.fromkeys(KEYS)
    rows = [
        {**blank, "workload": "W1", "dtype": "float32", "engine": "x", "times_peer": 1.5},
        {**blank, "workload": "W1", "dtype": "float32", "engine": BOUND, "times_peer": 9.0},
        {**blank, "workload": "W1", "dtype": "float32", "engine": "y", "error": "no"},
    ]
    assert bars(rows) == {"W1\nfloat32": {"x": 1.5}}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(benchmark, "QUICK", SMALL)


def test_the_command_writes_a_list_of_rows(small, tmp_path, capsys):
    path = tmp_path / "rows.json"
    options = ["--engines", "fnroll-eager,generate,deepspeed", "--rounds", "1", "--json", str(path)]
    assert main(["bench", "--quick", "--workloads", "W5,W6", *options]) == 0
    rows = json.loads(path.read_text())
    assert [(row["workload"], row["engine"]) for row in rows] == [
        *(("W5", name) for name in ("fnroll-eager", "generate", "deepspeed", BOUND)),
        *(("W6", name) for _ in range(2) for name in ("fnroll-eager", "generate", "deepspeed")),
    ]
    assert all({"engine", "workload", "dtype", "tokens_per_s", "machine", *KEYS} <= set(row) for row in rows)
    printed = capsys.readouterr().out
    assert "W5: fnroll-eager: round 1 of 1" in printed and "W6 4 records: float64, 3 rows" in printed
    assert list(tmp_path.iterdir()) == [path]


def test_rows_are_in_the_file_as_soon_as_their_workload_ends(small, tmp_path, monkeypatch):
    path = tmp_path / "rows.json"

    def interrupted(*_, **__):
        assert [row["engine"] for row in json.loads(path.read_text())] == ["fnroll-eager", BOUND]
        raise KeyboardInterrupt

    monkeypatch.setitem(WORKLOADS, "W6", interrupted)
    options = ["--engines", "fnroll-eager", "--rounds", "1", "--json", str(path)]
    assert main(["bench", "--quick", "--workloads", "W5,W6", *options]) == 130
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workloads", "W1,W9"], "bench.workloads is 'W9'; it must be one of 'W1'"),
        (["--workloads", ","], "bench.workloads is empty"),
        (["--engines", "vllm"], "bench.engines is 'vllm'; it must be one of 'fnroll-eager'"),
        (["--rounds", "0"], "bench.rounds is 0; it must be an int of at least 1"),
        (["--json", "no such folder/rows.json"], "bench.json: there is no folder 'no such folder'"),
        (["--picture", "rows.gif"], "bench.picture is 'rows.gif'; it must be a file name that ends in .png"),
        (["--model", "no such model"], "no model 'no such model'; it must be"),
    ],
)
def test_bad_options_get_a_sentence(options, message, capsys):
    assert main(["bench", "--quick", *options]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("fnroll: ") and message in printed.err and "Traceback" not in printed.err


def test_a_picture_without_matplotlib_is_refused_before_anything_runs(monkeypatch, capsys):
    monkeypatch.setattr("fnroll.bench.picture.importlib.util.find_spec", lambda name: None)
    assert main(["bench", "--quick", "--picture", "rows.png"]) == 2
    assert "pip install 'fnroll[bench]'" in capsys.readouterr().err


def test_default_engines_fit_the_workload(subject):
    def plan(*options):
        import argparse

        parser = argparse.ArgumentParser()
        benchmark.add_options(parser)
        return benchmark._make_plan(parser.parse_args(options))

    [uniform], [spoken] = WORKLOADS["W1"](subject, SMALL), WORKLOADS["W4"](subject, SMALL)
    stress = WORKLOADS["W6"](stress_subject(), SMALL)[0]
    assert "generate-batch" in plan().engines_for(uniform)
    assert "generate-batch" not in plan().engines_for(spoken) and "generate" in plan().engines_for(spoken)
    assert {name[:7] for name in plan().engines_for(stress)} == {"fnroll-"}
    assert "fnroll-compiled" in plan("--quick").engines_for(uniform)
    assert "fnroll-compiled" not in plan("--quick").engines_for(spoken)
    assert plan("--engines", "generate,generate").engines_for(stress) == ["generate"]


def test_an_engine_error_says_why():
    with pytest.raises(EngineError, match="toy"):
        GenerateEngine(stress_subject(), WORKLOADS["W6"](stress_subject(), SMALL)[0])
