"""Saves of a rollout: killed processes, files that must not be written over, what is refused by name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fnroll
from fnroll import RolloutBatch, RolloutRecord, RolloutRequest
from fnroll.cli import main
from fnroll.models import toy_model
from fnroll.records.batch import dump_record
from fnroll.records.files.save import read_header, write_save

ROOT = Path(__file__).parents[3]


def toy(path, **config):
    config = {"max_length": 16, "save": str(path), "save_every": 1, "progress": False, **config}
    return fnroll.Rollout(toy_model(31, sharpness=0.05), None, fnroll.RolloutConfig(**config))


def prompts(count=3):
    return RolloutRequest([RolloutRecord(prompt_ids=[i + 1, 5]) for i in range(count)])


@pytest.mark.skipif(not hasattr(sys, "setswitchinterval") or sys.platform == "win32", reason="forks")
def test_a_killed_rollout_goes_on_as_if_nothing_had_happened(tmp_path):
    """Real processes, SIGKILL in the middle of steps and of writes, and what goes on is killed as well."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.records.killed", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[0]) >= 8, done.stdout


def test_the_file_holds_all_records_at_any_time(tmp_path):
    path, seen = tmp_path / "save-{step}.jsonl", []

    def look(index, record):
        batch = RolloutBatch.load(tmp_path / "save-2.jsonl")
        seen.append([str(other.status) for other in batch])
        assert [other.prompt_id for other in batch] == [0, 1, 2]

    with toy(path, rows=1) as rollout:
        batch = rollout.generate(prompts(), seed=3, step=2, on_record=look)
    assert len(seen) == 3 and seen[0].count("PENDING") == 2
    assert RolloutBatch.load(tmp_path / "save-2.jsonl") == batch
    header = read_header(tmp_path / "save-2.jsonl")
    assert (header["records"], header["unfinished"], header["run"]["seed"]) == (3, 0, 3)
    assert [file.name for file in tmp_path.iterdir()] == ["save-2.jsonl"]


def test_an_exception_leaves_what_had_ended_in_the_save(tmp_path):
    path = tmp_path / "save.jsonl"

    def stop(*_):
        raise KeyboardInterrupt

    with toy(path, rows=1, save_every=1000) as rollout:
        whole = rollout.generate(prompts(), seed=3)
        path.unlink()
        with pytest.raises(fnroll.RolloutInterrupted):
            rollout.generate(prompts(), seed=3, on_record=stop)
        batch = RolloutBatch.load(path)
        assert batch[0] == whole[0] and [record.is_unfinished for record in batch] == [False, True, True]
        assert rollout.generate(RolloutRequest(batch.records, resume=True), seed=3) == whole


def test_an_unfinished_save_is_not_written_over(tmp_path):
    path = tmp_path / "save.jsonl"
    with toy(path) as rollout:
        cut = rollout.generate(prompts(), max_steps=2)
        with pytest.raises(
            ValueError, match=r"holds an unfinished rollout .3 of 3 records.*record 0/0 of it is not"
        ):
            rollout.generate(prompts())
        with pytest.raises(ValueError, match="record 2/0 of it is not gone on with"):
            rollout.generate(RolloutRequest(cut.records[:2], resume=True))
        whole = rollout.generate(RolloutRequest(cut.records, resume=True))
        assert rollout.generate(prompts()) == whole  # nothing unfinished in it any more
    path.write_text("something else\n")
    with toy(path) as rollout, pytest.raises(ValueError, match="exists and is not the save of a rollout"):
        rollout.generate(prompts())
    assert path.read_text() == "something else\n"


def test_what_cannot_be_saved_is_said_before_anything_runs(tmp_path):
    with toy(tmp_path / "save.jsonl") as rollout:
        with pytest.raises(TypeError, match="record 0/0 cannot be written as JSON"):
            rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=[1], metadata={1, 2})]))
        assert rollout.profile.steps == 0
    with toy(tmp_path / "none" / "save.jsonl") as rollout, pytest.raises(FileNotFoundError):
        rollout.generate(prompts())


def test_a_save_of_another_version_is_refused(tmp_path):
    path = tmp_path / "save.jsonl"
    write_save(path, [], 0, {})
    header = json.loads(path.read_text())
    path.write_text(json.dumps({**header, "version": 9}) + "\n")
    with pytest.raises(ValueError, match=r"save\.jsonl is a save of version 9; this fnroll reads 1"):
        RolloutBatch.load(path)


def command(tmp_path, *options):
    (tmp_path / "prompts.jsonl").write_text("[5, 6]\n[7]\n[8, 9]\n")
    used = [
        "--prompts",
        str(tmp_path / "prompts.jsonl"),
        "--max-length",
        "24",
        "--save",
        str(tmp_path / "s.jsonl"),
    ]
    return ["rollout", "--n", "2", *used, *options]


@pytest.fixture
def toy_command(monkeypatch):
    monkeypatch.setattr("fnroll.cli.load_model", lambda *_: (toy_model(31, sharpness=0.05), None))


def test_the_command_goes_on_with_its_save(toy_command, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.jsonl"
    assert main(command(tmp_path, "--resume", "--out", str(out))) == 0
    assert "there is no" in capsys.readouterr().out
    whole = RolloutBatch.load(out)
    (tmp_path / "s.jsonl").unlink()

    def cut(rollout, request, sampling, *, seed, on_record, generate=fnroll.Rollout.generate):
        return generate(rollout, request, sampling, seed=seed, on_record=on_record, max_steps=3)

    with monkeypatch.context() as patch:
        patch.setattr(fnroll.Rollout, "generate", cut)
        assert main(command(tmp_path, "--save-every", "1")) == 0
    assert any(record.is_unfinished for record in RolloutBatch.load(tmp_path / "s.jsonl"))
    for options, message in {
        (): "s.jsonl holds an unfinished rollout",
        ("--resume", "--seed", "1"): "s.jsonl was begun with seed 0, and this call has 1",
        ("--resume", "--temperature", "0.5"): "begun with temperature 1.0, and this call has 0.5",
        ("--resume", "--n", "3"): "holds 6 records, and the request asks for 9",
        ("--resume", "--changed", "sead"): "RolloutRequest.changed is 'sead'",
    }.items():
        capsys.readouterr()
        assert main(command(tmp_path, *options)) == 2
        assert message in capsys.readouterr().err
    assert main(command(tmp_path, "--resume", "--out", str(out))) == 0
    assert RolloutBatch.load(out) == whole == RolloutBatch.load(tmp_path / "s.jsonl")


def test_the_command_refuses_the_save_of_other_prompts(toy_command, tmp_path, capsys):
    assert main(command(tmp_path)) == 0
    prompts = command(tmp_path, "--resume")
    (tmp_path / "prompts.jsonl").write_text("[5, 6]\n[7]\n[8, 10]\n")
    assert main(prompts) == 2
    assert "prompt_ids of record 4 is [8, 9] there, and [8, 10] here" in capsys.readouterr().err
    assert main(["rollout", "--resume"]) == 2
    assert "--resume needs --save" in capsys.readouterr().err


def test_a_save_with_a_failed_record_can_be_gone_on_with(tmp_path):
    """A failed record holds nothing to go on with: it is rolled out anew, and is no reason to refuse."""
    path = tmp_path / "save.jsonl"
    with toy(path, rows=1) as rollout:
        whole = rollout.generate(prompts(), seed=3)
        path.unlink()
        batch = rollout.generate(prompts(), seed=3, max_steps=4)
        failed = batch[0].replace(status="FAILED", reason="tool_error", run=None)
        others = [failed, *batch.records[1:]]
        write_save(str(path), map(dump_record, others), len(others) - 1, others[1].run)
        assert rollout.generate(RolloutRequest(others, resume=True), seed=3) == whole
