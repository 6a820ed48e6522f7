"""The `fnroll` command: a model folder in, records out, and clear ends."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fnroll import RolloutBatch
from fnroll.cli import _SHIPPED, main
from fnroll.models import load_model
from fnroll.models.tiny import make_tasks, reward
from fnroll.models.zoo import tiny_model
from fnroll.records.prompt import read_prompts

WORDS = ["<pad>", "<bos>", "<eos>", *[f"w{i}" for i in range(3, 48)]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model of 64 positions and a tokenizer of 48 words without a chat template."""
    path = tmp_path_factory.mktemp("model")
    tiny_model("llama", torch.float32).save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", bos_token="<bos>"
    ).save_pretrained(path)
    return path


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("w5 w6 w7\n\nw8\nw9 w10\n", encoding="utf-8")
    return path


def command(folder, prompts, *options):
    return ["rollout", "--model", str(folder), "--prompts", str(prompts), "--max-length", "20", *options]


def test_a_rollout_from_a_file_into_a_file(folder, prompts, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert main(command(folder, prompts, "--n", "2", "--rows", "2", "--out", str(out))) == 0
    batch = RolloutBatch.load(out)
    assert [(record.prompt_id, record.sample) for record in batch] == [
        (i, j) for i in range(3) for j in (0, 1)
    ]
    for record in batch:
        assert record.tokens[: record.prompt_length] == tuple(
            WORDS.index(word) for word in record.messages[0]["content"].split()
        )
        assert record.response.split() == [WORDS[token] for token in record.response_ids]
        assert record.status in ("COMPLETED", "TRUNCATED") and record.num_sampled > 0
    printed = capsys.readouterr().out
    assert "w5 w6 w7" in printed and "6 records" in printed and "6 records written to" in printed
    assert os.listdir(tmp_path) != [] and not list(tmp_path.glob(".*"))


def test_options_reach_the_rollout(folder, tmp_path, capsys):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('[5, 6]\n{"prompt": "w7", "metadata": {"answer": 3}}\n', encoding="utf-8")
    out = tmp_path / "out.jsonl"
    records = []
    for schedule in (["--batching", "static", "--poll-every", "3"], ["--rows", "1"]):
        options = ["--temperature", "0", "--max-new-tokens", "4", "--repetition-penalty", "1.3", *schedule]
        assert main(command(folder, prompts, *options, "--out", str(out), "--dtype", "float64")) == 0
        records.append([(record.tokens, record.reason) for record in RolloutBatch.load(out)])
    assert records[0] == records[1]
    assert all(record.num_sampled <= 4 for record in RolloutBatch.load(out))
    assert RolloutBatch.load(out)[1].metadata == {"answer": 3}
    seeds = []
    for seed in ("0", "1"):
        main(command(folder, prompts, "--seed", seed, "--out", str(out)))
        seeds.append([record.tokens for record in RolloutBatch.load(out)])
    assert seeds[0] != seeds[1]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", [], "holds no prompts; give one a line"),
        (b'"ok"\n{"prompt": \n', [], "prompts.jsonl, line 2: Expecting"),
        (b'"ok"\n"\xff"\n', [], "prompts.jsonl, line 2: not UTF-8"),
        (b"[5, 48]\n", [], "record 0/0: prompt_ids[1] is 48; ids must be ints from 0 to 47"),
        (b"[5]\n", ["--temperature", "-1"], "SamplingConfig.temperature is -1.0"),
        (b"[5]\n", ["--temperature", "nan"], "SamplingConfig.temperature is nan"),
        (b"[5]\n", ["--top-p", "0"], "SamplingConfig.top_p is 0.0"),
        (b"[5]\n", ["--top-k", "-1"], "SamplingConfig.top_k is -1"),
        (b"[5]\n", ["--n", "0"], "RolloutRequest.n is 0"),
        (b"[5]\n", ["--rows", "0"], "RolloutConfig.rows is 0"),
        (b"[5]\n", ["--seed", "-1"], "generate.seed is -1"),
        (b"[5]\n", ["--max-length", "65"], "LlamaForCausalLM has positions for at most 64 tokens"),
        (b"[5]\n", ["--model", "no such folder"], "no model 'no such folder'; it must be"),
        (b"[5]\n", ["--prompts", "no such file"], "no such file"),
        (b"[5]\n", ["--out", "no such folder/out.jsonl"], "no such folder"),
    ],
)
def test_bad_input_exits_2_with_one_sentence(
    folder, tmp_path, monkeypatch, capsys, content, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.jsonl").write_bytes(content)
    assert main([*command(folder, tmp_path / "prompts.jsonl"), *options]) == 2
    printed = capsys.readouterr()
    # Before it may stand what transformers says while it loads weights.
    line = printed.err.strip().splitlines()[-1]
    assert line.startswith("fnroll: ") and message in line
    assert "Traceback" not in printed.out + printed.err


def test_without_options_the_embedded_model_does_its_own_tasks(tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    assert main(["rollout", "--n", "2", "--out", str(out)]) == 0
    batch, tasks = RolloutBatch.load(out), make_tasks(16, split="held-out")
    assert [record.messages for record in batch.records[::2]] == [task.messages for task in tasks]
    assert [record.metadata for record in batch.records[::2]] == [task.metadata for task in tasks]
    names = {call["name"] for record in batch for call in record.tool_calls if call["status"] == "ok"}
    assert names == {"price", "convert", "calc"}
    assert 0.1 < sum(map(reward, batch)) / len(batch) < 0.8
    assert "embedded model" not in capsys.readouterr().out


def test_the_embedded_model_says_that_it_knows_nothing_else(prompts, capsys):
    assert main(["rollout", "--prompts", str(prompts), "--max-new-tokens", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "The embedded model (tiny) can do nothing but its own tasks, --prompts tiny-tasks" in printed


def test_tools_are_found_by_name(folder, prompts, monkeypatch, capsys):
    given = []
    monkeypatch.setattr("fnroll.cli.Rollout", lambda model, tokenizer, config, tools: given.append(tools))
    for options in ([], ["--tools", "calculator, python"], ["--tools", "calc,calculator"], ["--tools", ""]):
        with pytest.raises(TypeError, match="context manager"):
            main(command(folder, prompts, *options))
    names = [[getattr(tool, "name", None) or tool.__name__ for tool in tools] for tools in given]
    assert names == [[], ["calculator", "python"], ["calc", "calculator"], []]
    assert main(["rollout", "--tools", "browser"]) == 2
    assert "rollout.tools is 'browser'; it must be one of 'calculator', 'python', 'price'" in (
        capsys.readouterr().err
    )


def test_a_misspelt_option_exits_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["rollout", "--prompts", "x", "--temprature", "1"])
    assert stop.value.code == 2 and "--temprature" in capsys.readouterr().err


def test_bad_input_leaves_an_earlier_output_as_it_was(folder, tmp_path):
    (tmp_path / "prompts.jsonl").write_bytes(b"[5, 48]\n")
    out = tmp_path / "out.jsonl"
    out.write_text("earlier\n")
    assert main(command(folder, tmp_path / "prompts.jsonl", "--out", str(out))) == 2
    assert out.read_text() == "earlier\n"


def interruptible():
    # A parent that ignores SIGINT, as a shell's background job does, hands that down.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_exits_130_with_the_finished_records_written(folder, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("[5, 6]\n[7]\n" * 50)
    arguments = command(folder, prompts, "--n", "40", "--rows", "4", "--out", str(out))
    process = subprocess.Popen(
        [sys.executable, "-m", "fnroll.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=interruptible,
    )
    try:
        limit = time.monotonic() + 120
        while not (out.exists() and out.read_bytes().count(b"\n") >= 20):
            assert process.poll() is None and time.monotonic() < limit, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    batch = RolloutBatch.load(out)
    assert 20 <= len(batch) < 4000
    assert f"{len(batch)} of 4000 records had ended" in " ".join(printed.split())
    places = [(record.prompt_id, record.sample) for record in batch]
    assert places == sorted(places) and all(record.status for record in batch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "prompts.jsonl"]


def test_the_shipped_prompts_can_be_rendered_and_end_with_a_question():
    """`--prompts questions` and `--prompts tool-questions --tools calculator,python`."""
    tokenizer = load_model("tiny")[1]
    for name, path in _SHIPPED.items():
        prompts = read_prompts(path)
        assert len(prompts) >= 8, name
        for prompt in prompts:
            assert prompt.messages[-1]["role"] == "user"
            assert prompt.messages[-1]["content"] in tokenizer.apply_chat_template(
                prompt.messages, tokenize=False
            )
