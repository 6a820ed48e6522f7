"""The training loop: exact resumption, what it refuses, what it writes, and that it learns."""

import json
import re
from dataclasses import replace

import pytest
import torch

from fnroll.cli import _parser, main
from fnroll.models.tiny import load_tiny
from fnroll.models.zoo import tiny_model
from fnroll.train import TrainConfig, Trainer
from fnroll.train.checkpoint import load, save
from fnroll.train.command import read_metrics
from fnroll.train.report import CURVES, draw_curve, write_html, write_png

SMALL = TrainConfig(steps=3, prompts=4, n=4, eval_tasks=8, rows=16)
TIMES = {"seconds", "rollout_s", "tokens_per_s"}


@pytest.fixture(autouse=True)
def _gradients():
    with torch.enable_grad():
        yield


def new_trainer(config=SMALL):
    return Trainer(*load_tiny("start"), config)


def without_times(metrics):
    return {name: value for name, value in metrics.items() if name not in TIMES}


def test_a_run_that_was_stopped_goes_on_as_it_would_have(tmp_path):
    whole, parts = [], []
    with new_trainer() as trainer:
        trainer.run(None, whole.append)
        expected = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with new_trainer(replace(SMALL, steps=1)) as trainer:
        trainer.run(tmp_path, parts.append)
    with new_trainer() as trainer:
        torch.manual_seed(99)
        load(trainer, tmp_path / "checkpoint.pt")
        trainer.evaluate()
        trainer.run(tmp_path, parts.append)
        found = trainer.model.state_dict()
    assert list(map(without_times, whole)) == list(map(without_times, parts))
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == parts


def test_steps_train_on_new_tasks_with_known_weights():
    prompts = []
    with new_trainer() as trainer:
        for _ in range(2):
            trainer.train_step()
            batch = trainer.rollout.finished
            prompts.append({record.messages[0]["content"] for record in batch})
            drawn = {version for record in batch for version in record.weight_versions if version >= 0}
            assert drawn == {trainer.step - 1}
    assert len(prompts[0]) == 4 and not prompts[0] & prompts[1]


def test_equal_rewards_change_nothing(monkeypatch):
    monkeypatch.setattr("fnroll.train.loop.reward", lambda record: 1.0)
    with new_trainer() as trainer:
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        metrics = trainer.train_step()
        assert metrics["telling_groups"] == 0.0 and metrics["reward"] == 1.0
        assert all(map(torch.equal, before, trainer.model.parameters()))


def test_microbatches_do_not_change_a_step():
    weights = []
    for size in (3, 64):
        with new_trainer(replace(SMALL, microbatch=size, updates=1)) as trainer:
            trainer.train_step()
            weights.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
    start = list(load_tiny("start")[0].parameters())
    for one, other, first in zip(*weights, start, strict=True):
        # Adam's first step moves a weight by the rate, whatever the size of its gradient.
        moved = (one - other).abs() > 0.1 * SMALL.learning_rate
        assert moved.float().mean() < 0.02
        assert not torch.equal(one, first) or not one.any()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    with new_trainer() as trainer:
        save(trainer, path)
    with new_trainer(replace(SMALL, seed=1)) as trainer, pytest.raises(ValueError, match=r"seed 0.*has 1"):
        load(trainer, path)
    _, tokenizer = load_tiny("start")
    other = tiny_model("qwen3", torch.float32)
    config = replace(SMALL, max_length=64)
    with Trainer(other, tokenizer, config) as trainer:
        saved = torch.load(path, weights_only=True)
        torch.save({**saved, "config": {**saved["config"], "max_length": 64}}, path)
        with pytest.raises(
            ValueError, match=r"another model: model\.embed_tokens\.weight has shape \[\d+, 128\]"
        ):
            load(trainer, path)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_metrics_of_a_crash_are_cut_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 0, "held_out": 0.4}, {"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "rew')
    assert read_metrics(path, 1) == lines[:2]
    assert read_metrics(path, 9) == lines
    assert read_metrics(tmp_path / "none.jsonl", 9) == []


def test_the_command_trains_resumes_and_reports(tmp_path, capsys):
    options = ["--out", str(tmp_path), "--prompts", "2", "--n", "4", "--eval-tasks", "8"]
    assert main(["train", "--steps", "1", *options]) == 0
    first = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"held-out reward: before 0\.\d{3} after [01]\.\d{3}", first[-1])
    assert main(["train", "--steps", "2", "--resume", *options]) == 0
    second = capsys.readouterr().out.splitlines()
    assert "going on after step 1" in second
    assert second[0] == first[0]
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [0, 1, 2, 2]
    page = (tmp_path / "curves.html").read_text()
    assert page.count("<figure>") == 6 and page.count("<pre>") == 6
    assert "<tool_call>" not in page and "&lt;tool_call&gt;" in page
    assert not re.search(r"(src|href)=|https?://", page)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_is_a_training_run_that_needs_no_other_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fnroll.models.smollm2.load_smollm2", None)
    assert main(["demo", "--steps", "1", "--prompts", "2", "--n", "4", "--eval-tasks", "8"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"held-out reward: before 0\.\d{3} after [01]\.\d{3}", printed[-1])
    found = sorted(path.name for path in (tmp_path / "out" / "demo").iterdir())
    assert found == ["checkpoint.pt", "curves.html", "curves.png", "metrics.jsonl"]


def test_the_demo_trains_as_the_figures_in_the_documents_were_made():
    demo, train = (_parser().parse_args([name]) for name in ("demo", "train"))
    assert {**vars(train), "command": "demo", "out": "out/demo"} == vars(demo)


def test_a_picture_has_every_curve(tmp_path):
    lines = [{"step": step, **dict.fromkeys(CURVES, 0.1 * step)} for step in (1, 2, 3)]
    assert write_png(tmp_path / "a.png", lines)
    empty = [{"step": step} for step in (1, 2, 3)]
    assert write_png(tmp_path / "b.png", empty)
    assert (tmp_path / "a.png").stat().st_size > (tmp_path / "b.png").stat().st_size > 1000


def test_without_matplotlib_there_is_no_picture(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not write_png(tmp_path / "a.png", [])
    assert not list(tmp_path.iterdir())


def test_a_curve_is_drawn_from_low_to_high():
    drawing = draw_curve([1, 2, 3], [0.0, 0.5, 1.0], "a < b")
    points = [tuple(map(float, pair.split(","))) for pair in re.search('points="(.*?)"', drawing)[1].split()]
    assert points == sorted(points) and [y for _, y in points] == sorted((y for _, y in points), reverse=True)
    assert "a &lt; b" in drawing
    assert "nan" not in draw_curve([1], [0.0], "one point at 0")


def test_the_page_leaves_out_what_was_not_measured(tmp_path):
    write_html(tmp_path / "page.html", "<b>", [{"step": 1, "reward": 0.5}], {})
    page = (tmp_path / "page.html").read_text()
    assert page.count("<figure>") == 1 and "&lt;b&gt;" in page
