"""The training loop: exact resumption, what it refuses, what it writes, and that it learns."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fnroll.cli import _parser, main
from fnroll.models.tiny import load_tiny
from fnroll.models.zoo import tiny_model
from fnroll.train import TrainConfig, Trainer, loop
from fnroll.train.checkpoint import load_checkpoint, save_checkpoint
from fnroll.train.command import read_metrics
from fnroll.train.display import draw_spark, show_training
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


def test_the_loop_is_short_enough_to_copy():
    assert len(Path(loop.__file__).read_text(encoding="utf-8").splitlines()) < 200


def test_a_run_that_was_stopped_goes_on_as_it_would_have(tmp_path):
    whole, parts = [], []
    with new_trainer() as trainer:
        trainer.run(None, whole.append)
        expected = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with new_trainer(replace(SMALL, steps=1)) as trainer:
        trainer.run(tmp_path, parts.append)
    with new_trainer() as trainer:
        torch.manual_seed(99)
        load_checkpoint(trainer, tmp_path / "checkpoint.pt")
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
        save_checkpoint(trainer, path)
    with new_trainer(replace(SMALL, seed=1)) as trainer, pytest.raises(ValueError, match=r"seed 0.*has 1"):
        load_checkpoint(trainer, path)
    _, tokenizer = load_tiny("start")
    other = tiny_model("qwen3", torch.float32)
    config = replace(SMALL, max_length=64)
    with Trainer(other, tokenizer, config) as trainer:
        saved = torch.load(path, weights_only=True)
        torch.save({**saved, "config": {**saved["config"], "max_length": 64}}, path)
        with pytest.raises(
            ValueError,
            match=r"checkpoint.pt is of another model: model\.embed_tokens\.weight has shape \[\d+, 128\], "
            r"and here it has shape \[\d+, \d+\]",
        ):
            load_checkpoint(trainer, path)
        del saved["model"]["model.norm.weight"]
        saved["model"] |= {k: v for k, v in other.state_dict().items() if k in saved["model"]}
        torch.save({**saved, "config": {**saved["config"], "max_length": 64}}, path)
        with pytest.raises(
            ValueError, match=r"model.norm.weight is not there, and here it has shape \[\d+\]"
        ):
            load_checkpoint(trainer, path)
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_what_is_no_checkpoint_is_refused_by_name(tmp_path, monkeypatch, capsys):
    path = tmp_path / "checkpoint.pt"
    monkeypatch.setattr(Trainer, "evaluate", None)  # nothing runs before it is found out
    options = ["train", "--resume", "--out", str(tmp_path)]
    path.write_bytes(b"half of one")
    assert main(options) == 2
    assert f"fnroll: {path} is damaged, or no checkpoint: " in capsys.readouterr().err
    torch.save({"model": {}}, path)
    assert main(options) == 2
    assert f"{path} is no checkpoint of a training run: it has no optimizer, no step, no config" in (
        capsys.readouterr().err
    )


def test_metrics_of_a_crash_are_cut_back(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 0, "held_out": 0.4}, {"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.2}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "rew')
    assert read_metrics(path, 1) == lines[:2]
    assert read_metrics(path, 9) == lines
    assert read_metrics(tmp_path / "none.jsonl", 9) == []


FEW = ["--prompts", "2", "--n", "4", "--eval-tasks", "8"]


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_command_trains_resumes_and_reports(tmp_path, capsys):
    options = ["--out", str(tmp_path), *FEW]
    assert main(["train", "--steps", "1", *options]) == 0
    first = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"held-out reward: before 0\.\d{3} after [01]\.\d{3}", first[-1])
    assert main(["train", "--steps", "2", "--resume", *options]) == 0
    second = capsys.readouterr().out.splitlines()
    assert "going on after step 1" in second
    assert second[0] == first[0]
    assert [line["step"] for line in lines_of(tmp_path)] == [0, 1, 2, 2]
    page = (tmp_path / "curves.html").read_text()
    assert page.count("<figure>") == 6 and page.count("<pre>") == 6
    assert "<tool_call>" not in page and "&lt;tool_call&gt;" in page
    assert not re.search(r"(src|href)=|https?://", page)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_curve_bit_for_bit(tmp_path):
    """In one go, again, and stopped in between; another seed gives another."""
    ways = {
        "a": [["--steps", "2"]],
        "again": [["--steps", "2"]],
        "stopped": [["--steps", "1"], ["--steps", "2", "--resume"]],
        "other": [["--steps", "2", "--seed", "1"]],
    }
    for name, commands in ways.items():
        for options in commands:
            torch.manual_seed(len(name))  # no generator of the process has a say
            assert main(["train", "--out", str(tmp_path / name), *FEW, *options]) == 0
    a, again, stopped, other = ([without_times(line) for line in lines_of(tmp_path / name)] for name in ways)
    assert a == again == stopped and a != other
    weights = [
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"] for name in ("a", "stopped")
    ]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_metrics_go_to_tensorboard_too(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = ["--out", str(tmp_path), "--tensorboard", *FEW]
    for more in (["--steps", "1"], ["--steps", "2", "--resume"]):
        assert main(["train", *more, *options]) == 0
    assert "tensorboard" in capsys.readouterr().out.splitlines()[-2]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("reward", "kl", "tool_calls", "sampled_tokens", "tokens_per_s", "held_out"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        wanted = [(line["step"], line[name]) for line in lines_of(tmp_path) if name in line]
        assert wanted and all((step, pytest.approx(value)) in found for step, value in wanted), name
    assert main(["train", "--steps", "1", "--out", str(tmp_path), *FEW]) == 0
    assert not (tmp_path / "tensorboard").exists()


def test_without_tensorboard_the_option_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["train", "--tensorboard", "--out", str(tmp_path / "run")]) == 2
    assert "needs the package tensorboard, which is not installed: pip install '.[train]'" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


STEP = {
    "step": 3, "reward": 0.5, "sampled_tokens": 41.25, "tool_calls": 1.75, "kl": 0.00123, "seconds": 2.5,
    "tokens_per_s": 4321.0,
}  # fmt: skip


def test_each_step_is_a_line_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), width=40)
    with show_training(console, 30, 0) as show:
        show(STEP)
        show({name: value for name, value in STEP.items() if name != "kl"})
    first, second = console.file.getvalue().splitlines()
    assert first == (
        "step   3/30  reward 0.500  length 41.2  tool calls 1.75  KL 0.0012  4,321 tokens/s  2.5 s"
    )
    assert "KL 0.0000" in second


def test_a_terminal_has_a_live_display():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with show_training(console, 30, 2) as show:
        for reward in (0.0, 0.5, 1.0):
            show({**STEP, "reward": reward})
    shown = console.file.getvalue()
    assert "\x1b[1A" in shown, "nothing was redrawn"
    for text in (
        "3/30",
        "reward 1.000",
        "length 41.2",
        "tool calls 1.75",
        "KL 0.0012",
        "4,321 tokens/s",
        "▁▅█",
    ):
        assert text in shown


def test_a_spark_keeps_the_latest():
    assert draw_spark([0.0] * 100 + [1.0, 7.0, -1.0]) == "▁" * 57 + "██▁"
    assert draw_spark([]) == ""


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    steps = []

    def interrupt(trainer, train_step=Trainer.train_step):
        if steps:
            raise KeyboardInterrupt
        steps.append(1)
        return train_step(trainer)

    monkeypatch.setattr(Trainer, "train_step", interrupt)
    assert main(["train", "--steps", "3", "--out", str(tmp_path), *FEW]) == 130
    assert "stopped after step 1; the same command with --resume goes on" in capsys.readouterr().out
    assert (tmp_path / "checkpoint.pt").exists()


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
