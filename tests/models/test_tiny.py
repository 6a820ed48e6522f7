"""The embedded model: what is shipped, its template, its tasks, and that it solves them."""

import re
import socket
from random import Random

import pytest
import torch

from fnroll import Rollout, RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.dialogue.chat import init_chat
from fnroll.dialogue.tool import ToolSet
from fnroll.models.load import load_model
from fnroll.models.tiny import CHECKPOINTS, TINY_TOOLS, load_tiny, make_tasks, reward
from fnroll.models.tiny.demonstrations import DemonstrationEncoder, demonstrate
from fnroll.models.tiny.load import FILES
from fnroll.models.tiny.tasks import final_answer
from fnroll.models.tiny.tokenizer import TEMPLATE
from fnroll.models.tiny.tools import calc, convert, price
from fnroll.train.pretrain import imitation_loss, main

MIB = 2**20
HEADER, STOP = "<|im_start|>assistant\n", "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tiny("solved")[1]


def chat_of(tokenizer):
    return init_chat(tokenizer, ToolSet(TINY_TOOLS).schemas)


def roll(checkpoint: str, count: int, **sampling):
    model, tokenizer = load_tiny(checkpoint)
    tasks = make_tasks(count, seed=1, split="held-out")
    records = [RolloutRecord(messages=task.messages, metadata=task.metadata) for task in tasks]
    config = RolloutConfig(max_length=256, rows=16, max_turns=5, progress=False)
    with Rollout(model, tokenizer, config, TINY_TOOLS) as rollout:
        return rollout.generate(RolloutRequest(records), SamplingConfig(**sampling), seed=0)


def answered(task, text: str) -> RolloutRecord:
    record = RolloutRecord(messages=task.messages, metadata=task.metadata)
    return record.replace(status="COMPLETED", response=text)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_checkpoint_is_small(checkpoint):
    model, tokenizer = load_tiny(checkpoint)
    assert sum(parameter.numel() for parameter in model.parameters()) <= 3_000_000
    assert model.config.model_type == "qwen3"
    assert model.get_input_embeddings().num_embeddings == len(tokenizer)
    size = sum(path.stat().st_size for path in FILES.rglob("*") if path.is_file())
    assert size <= 12 * MIB
    assert (FILES / checkpoint / "model.safetensors").is_file()


def test_loading_needs_no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    model, _ = load_model("tiny")
    solved, _ = load_model("tiny-solved")
    assert model.dtype == solved.dtype == torch.float32
    assert not model.training and model.config.dtype == torch.float32
    assert not torch.equal(model.lm_head.weight, solved.lm_head.weight)
    with pytest.raises(ValueError, match=r"no checkpoint 'end'.*start, solved"):
        load_tiny("end")


def test_the_template_is_append_only(tokenizer):
    chat = chat_of(tokenizer)
    assert not chat.rewrites_after
    history = [{"role": "user", "content": "What?"}]
    calls = [{"name": "calc", "arguments": {"expression": "1 + 2"}}]
    after = [{"role": "assistant", "content": "", "tool_calls": [{"function": call} for call in calls]}]
    after += [{"role": "tool", "content": "3"}, {"role": "tool", "content": "4"}]
    after += [{"role": "assistant", "content": "3"}, {"role": "user", "content": "And then?"}]
    for count in range(1, len(after)):
        if after[count]["role"] == "tool" and after[count - 1]["role"] == "tool":
            continue  # adjacent tool outputs share one message
        options = {"tokenize": False, "tools": ToolSet(TINY_TOOLS).schemas}
        shorter = tokenizer.apply_chat_template(history + after[:count], **options)
        longer = tokenizer.apply_chat_template(history + after[: count + 1], **options)
        assert longer.startswith(shorter)


def test_calls_as_messages_read_like_calls_as_text(tokenizer):
    call = {"name": "price", "arguments": {"item": "fig", "shop": 12}}
    text = demonstrate(make_tasks(1)[0]).turns[0]
    assert re.fullmatch(r'<tool_call>\n\{"name": "price", "arguments": \{.*\}\}\n</tool_call>', text)
    question = {"role": "user", "content": "?"}
    as_message = {"role": "assistant", "content": "", "tool_calls": [{"function": call}]}
    as_text = {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "price", "arguments": {"item": "fig", "shop": 12}}\n</tool_call>',
    }
    renders = [
        tokenizer.apply_chat_template([question, message], tokenize=False)
        for message in (as_message, as_text)
    ]
    assert renders[0] == renders[1]


def test_digits_and_control_tokens_stand_alone(tokenizer):
    control = ("<|im_start|>", STOP, "<tool_call>", "</tool_call>", "<think>", "</think>")
    assert all(len(tokenizer.encode(token)) == 1 for token in control)
    assert [tokenizer.decode([index]) for index in tokenizer.encode("407")] == ["4", "0", "7"]
    text = 'Größe: 12 \n\n "x" 你好\t🙂'
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_a_solver_by_script_is_always_right(split):
    for task in make_tasks(500, seed=3, split=split):
        demonstration = demonstrate(task)
        assert len(demonstration.outputs) == len(task.steps) in (1, 2, 3)
        response = f"{STOP}\n{HEADER}".join(demonstration.turns) + STOP
        assert reward(answered(task, response)) == 1.0, task


def test_most_tasks_take_several_calls():
    counts = [len(task.steps) for task in make_tasks(400)]
    assert sum(count >= 2 for count in counts) >= 200
    assert max(counts) == 3
    several = [task for task in make_tasks(400) if len(task.steps) >= 2]
    assert all(len({step.name for step in task.steps}) == 2 for task in several)


def test_later_calls_depend_on_earlier_results():
    for task in make_tasks(80):
        for index, step in enumerate(task.steps):
            if index and step.name == "calc":
                assert "{" in step.arguments["expression"]


def test_held_out_tasks_are_never_trained_on():
    train = {task.question for seed in range(5) for task in make_tasks(2000, seed=seed)}
    held_out = {task.question for seed in range(5) for task in make_tasks(500, seed=seed, split="held-out")}
    assert not train & held_out
    assert make_tasks(50, seed=1) == make_tasks(50, seed=1) != make_tasks(50, seed=2)


def test_reward_is_for_the_exact_answer_of_a_finished_record():
    task = make_tasks(2)[1]
    right = f"x{STOP}\n{HEADER}{task.answer}{STOP}"
    assert reward(answered(task, right)) == 1.0
    assert reward(answered(task, task.answer + STOP)) == 1.0
    for wrong in (f" {task.answer}", f"{task.answer}0", "", f"{task.answer}{STOP}\n{HEADER}1"):
        assert reward(answered(task, f"{HEADER}{wrong}{STOP}")) == 0.0
    assert reward(answered(task, right).replace(status="TRUNCATED")) == 0.0
    assert final_answer("12<|im_end|>") == "12"


def test_tools_answer_what_they_cannot_do():
    assert calc("3 * 14") == 42 and calc("9 > 8") == "yes" and calc("5-9") == -4
    assert calc("3 ** 14") == calc("") == "not an expression"
    assert convert(2, "yd") == 182 and convert(2, "mile") == "no such unit"
    assert 5 <= int(price("fig", 12)) < 50 and price("figs", 12) == "no such item"


def test_demonstrations_are_encoded_as_rollouts_write_them(tokenizer):
    chat = chat_of(tokenizer)
    for task in make_tasks(16):
        demonstration = demonstrate(task)
        ids, mask = DemonstrationEncoder(chat).encode(task, demonstration)
        segment = chat.render_prompt(task.messages)
        expected = list(segment.ids)
        for index, turn in enumerate(demonstration.turns):
            own = chat.encoder.encode(turn + STOP)
            assert mask[len(expected) : len(expected) + len(own)] == [True] * len(own)
            expected += own
            if index < len(demonstration.outputs):
                tool = {"role": "tool", "name": "x", "content": demonstration.outputs[index]}
                segment = chat.continue_turn(segment.messages, own, [tool])
                expected += segment.ids
        assert ids == expected
        assert len(ids) <= 200


def test_carelessness_is_seeded_and_costs_reward():
    tasks = make_tasks(400)

    def share(carelessness: float) -> float:
        random = Random(0)
        made = [demonstrate(task, random, carelessness).turns[-1] for task in tasks]
        return sum(text == task.answer for text, task in zip(made, tasks, strict=True)) / len(tasks)

    assert share(0.0) == 1.0
    assert 0.3 < share(0.3) < 0.6
    assert share(0.3) == share(0.3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_solved_model_solves_held_out_tasks(temperature):
    batch = roll("solved", 16, temperature=temperature)
    assert sum(map(reward, batch)) / len(batch) >= 0.9
    assert all(record.is_exact for record in batch)
    assert any(record.num_turns >= 4 for record in batch)


def test_the_start_model_solves_some():
    batch = roll("start", 256)
    assert 0.3 <= sum(map(reward, batch)) / len(batch) <= 0.5


def test_training_from_nothing_writes_what_loading_reads(tmp_path, capsys):
    with torch.enable_grad():
        main(["--out", str(tmp_path), "--right-steps", "50", "--careless-steps", "2", "--eval-tasks", "2"])
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", capsys.readouterr().out)]
    assert len(losses) == 1 and losses[0] < 4.5
    model, tokenizer = load_tiny("start", tmp_path)
    assert tokenizer.get_vocab() == load_tiny("start")[1].get_vocab()
    assert tokenizer.chat_template == TEMPLATE
    assert model.config.to_dict() == load_tiny("start")[0].config.to_dict()


def test_loss_is_on_the_models_own_tokens_only():
    model, _ = load_tiny("solved")
    tokens = torch.tensor([[1, 40, 41, 42, 43, 0, 0], [1, 50, 51, 52, 53, 54, 55]])
    mask = torch.tensor([[0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 1, 1]]).bool()
    expected = []
    for row, own in zip(tokens, mask, strict=True):
        log_probs = model(row[None]).logits[0].log_softmax(-1)
        expected += [-log_probs[t - 1, row[t]] for t in own.nonzero()[:, 0].tolist()]
    loss = imitation_loss(model, tokens, mask)
    torch.testing.assert_close(loss, torch.stack(expected).mean())
