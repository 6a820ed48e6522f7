"""A rollout that dies at any moment goes on from its save and its effect log, and nothing shows it."""

import collections
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, event, given, settings
from hypothesis import strategies as st

import fnroll
from fnroll.compile.steps import LoweredSteps
from fnroll.records import batch as batch_module
from fnroll.records.files import save as save_module
from fnroll.records.files import saver
from fnroll.records.files.saver import read_request
from fnroll.rollout.flight import conversation
from fnroll.rollout.flight.conversation import Conversations
from fnroll.rollout.flight.resume import describe_run
from fnroll.tools.log import EffectLog
from property_tests.test_resume import request_of, rollout_of, sampling_of
from property_tests.test_turns import cases, model, schedules


class Crash:
    """Copies what a process killed at its n-th event would leave: a save, and a log with a torn end."""

    def __init__(self, source, target, at, torn):
        self.source, self.target, self.left, self.torn = source, target, at, torn
        self.patch = pytest.MonkeyPatch()

    def __enter__(self):
        for owner, name in (
            (LoweredSteps, "decode"), (LoweredSteps, "prefill"), (EffectLog, "_append"),
            (save_module.os, "fsync"), (Path, "replace"), (Conversations, "end_turn"),
        ):  # fmt: skip
            self.patch.setattr(owner, name, self.wrap(name, getattr(owner, name)))

    def wrap(self, name, function):
        def ticking(*args, **options):
            self.left -= 1
            if self.left == 0:
                self.copy(name, args)
            return function(*args, **options)

        return ticking

    def copy(self, name, args):
        event(f"killed before {name}")
        for file in self.source.iterdir():
            shutil.copy(file, self.target)
        if name == "_append" and (self.target / "log.jsonl").exists():
            lines = "".join(json.dumps(line, default=repr) + "\n" for line in args[1:])
            with (self.target / "log.jsonl").open("a") as file:
                file.write(lines[: int(self.torn * len(lines))])

    def __exit__(self, *_):
        self.patch.undo()


def answered(path):
    """Count how often each call was answered."""
    lines = [json.loads(line) for line in path.read_text().splitlines()][1:]
    return collections.Counter(
        (line["prompt_id"], line["sample"], line["turn"], line["call"]) for line in lines if "text" in line
    )


def run(case, schedule, folder, every, resume):
    paths = {"save": str(folder / "save.jsonl"), "log": str(folder / "log.jsonl"), "save_every": every}
    sampling, request = sampling_of(case), request_of(case)
    with rollout_of(case, schedule, **paths) as rollout:
        if resume:
            described = describe_run(case["seed"], 0, sampling, rollout.config, model())
            request = read_request(paths["save"], request, described)
        return rollout.generate(request, sampling, seed=case["seed"])


def a_crash_changes_nothing(case, one, other, at, torn, every):
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        with Crash(Path(first), Path(second), at, torn):
            whole = run(case, one, Path(first), every, resume=False)
        again = run(case, other, Path(second), every, resume=True)
        assert again == whole
        # A result that the log holds is not asked for again.
        assert max(answered(Path(second) / "log.jsonl").values(), default=1) == 1
        assert fnroll.RolloutBatch.load(Path(second) / "save.jsonl") == whole


AT, TORN, EVERY = st.integers(1, 120), st.floats(0, 0.99), st.sampled_from([1, 1, 3, 10, 1000])


@settings(max_examples=30)
@given(cases(), schedules(), schedules(), AT, TORN, EVERY)
def test_a_crash_at_any_moment_changes_nothing(case, one, other, at, torn, every):
    a_crash_changes_nothing(case, one, other, at, torn, every)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a save in the middle of a rollout."""
    case = {
        "prompts": ["a", "b"], "n": 2, "seed": 5, "temperature": 1.0, "top_p": 1.0,
        "max_length": 200, "chars": None,
    }  # fmt: skip
    path = tmp_path_factory.mktemp("save") / "save.jsonl"
    schedule = {"rows": 2, "batching": "continuous", "poll_every": 1, "latencies": [0.0]}
    with rollout_of(case, schedule, save=str(path)) as rollout:
        batch = rollout.generate(request_of(case), sampling_of(case), seed=5, max_steps=4)
    assert any(record.is_unfinished for record in batch)
    return path.read_bytes()


def damage_is_refused(path, data, damaged):
    path.write_bytes(damaged)
    for read in (fnroll.RolloutBatch.load, lambda path: read_request(path, fnroll.RolloutRequest(()), {})):
        if damaged != data:
            with pytest.raises(ValueError, match=str(path)):
                read(path)


def damages(data):
    """Draw half a save, cut anywhere but after nothing, best at a line's end; or one with another byte."""
    ends = [place + 1 for place, byte in enumerate(data) if byte == ord("\n")]
    cuts = st.sampled_from(ends) | st.integers(1, len(data))
    flips = st.tuples(st.integers(0, len(data) - 1), st.integers(1, 255))

    def flip(drawn):
        place, bits = drawn
        return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]

    return cuts.map(lambda end: data[:end]) | flips.map(flip)


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_or_half_written_save_is_refused(saved, tmp_path, data):
    damage_is_refused(tmp_path / "save.jsonl", saved, data.draw(damages(saved)))


def test_a_tool_that_runs_though_the_log_has_its_result_is_caught(monkeypatch):
    monkeypatch.setattr(conversation, "recall", lambda *_: None)

    @settings(max_examples=40, phases=[Phase.generate], report_multiple_bugs=False)
    @given(cases(), schedules(), schedules(), AT, TORN, EVERY)
    def check(case, one, other, at, torn, every):
        a_crash_changes_nothing(case, one, other, at, torn, every)

    with pytest.raises((AssertionError, ValueError)):
        check()


def test_a_half_written_save_that_is_accepted_is_caught(saved, tmp_path, monkeypatch):
    def accept(path):
        return json.loads(Path(path).read_bytes().partition(b"\n")[0])

    monkeypatch.setattr(batch_module, "read_header", accept)
    monkeypatch.setattr(saver, "read_header", accept)

    @settings(max_examples=40, phases=[Phase.generate], report_multiple_bugs=False)
    @given(st.data())
    def check(data):
        damage_is_refused(tmp_path / "save.jsonl", saved, data.draw(damages(saved)))

    with pytest.raises(pytest.fail.Exception):
        check()
