"""What version 0.1.0 wrote can be read, gone on with, and gives what it gave then."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import fnroll
from fnroll.core import steps
from fnroll.core.tree import tree_equal
from fnroll.models.tiny import TINY_TOOLS, load_tiny, make_tasks
from fnroll.records.batch import RolloutBatch
from fnroll.records.files.save import read_header
from fnroll.train import TrainConfig, Trainer
from fnroll.train.checkpoint import load_checkpoint
from tests.core.helpers import prefill_all, toy_state

OLD = Path(__file__).parent / "v0_1"
SAMPLING = fnroll.SamplingConfig(temperature=0.9, top_k=20, support_size=20)


@pytest.fixture(scope="module")
def tiny():
    return load_tiny("solved")


@pytest.fixture(scope="module")
def records():
    return RolloutBatch.load(OLD / "records.jsonl")


def roll(tiny, request, tools=TINY_TOOLS, **config):
    options = {"max_length": 224, "rows": 3, "max_turns": 5, "progress": False, "wait_for_tools": True}
    with fnroll.Rollout(*tiny, fnroll.RolloutConfig(**{**options, **config}), tools) as rollout:
        return rollout.generate(request, SAMPLING, seed=5, step=1)


def prompts():
    tasks = make_tasks(4)
    return fnroll.RolloutRequest(
        [fnroll.RolloutRecord(messages=task.messages, metadata=task.metadata) for task in tasks], n=2
    )


def assert_same(batch, old):
    assert [r.tokens for r in batch] == [r.tokens for r in old]
    for record, other in zip(batch, old, strict=True):
        assert record.support == other.support and record.weight_versions == other.weight_versions
        # Another processor sums in another order.
        torch.testing.assert_close(torch.tensor(record.log_probs), torch.tensor(other.log_probs))
        assert record.replace(log_probs=None) == other.replace(log_probs=None)


def test_records_load_and_are_what_is_rolled_out_today(tiny, records):
    assert_same(roll(tiny, prompts()), records)
    assert records.to_training().support.shape[-1] <= 20


def test_a_log_without_boundaries_is_replayed_without_a_tool(tiny, records):
    def fail(**_):
        raise AssertionError("no tool is called")

    tools = [fnroll.Tool.from_schema(schema, fail) for schema in fnroll.ToolSet(TINY_TOOLS).schemas]
    assert_same(roll(tiny, prompts(), tools, replay=str(OLD / "effects.jsonl")), records)


def test_a_save_is_gone_on_with(tiny, records):
    """Its run says how many numbers a token had in the cache, which no longer is part of a run."""
    cut = RolloutBatch.load(OLD / "save.jsonl")
    assert "cached numbers" in read_header(OLD / "save.jsonl")["run"]["model"]
    assert {str(record.status) for record in cut} == {"COMPLETED", "RUNNING", "PENDING"}
    batch = roll(tiny, fnroll.RolloutRequest(cut.records, resume=True))
    assert [record.tokens for record in batch] == [record.tokens for record in records]


def test_a_state_is_the_state_that_it_was():
    model, state = toy_state(slots=2, support_size=3, rows=2)
    for _ in range(3):
        state = prefill_all(model, steps.admit(state)[0])
        state = steps.decode_step(model.params, state, model=model.fn, window=16)[0]
    assert tree_equal(fnroll.load(OLD / "state.safetensors", model=model, like=state), state)


def test_a_training_run_is_gone_on_with(tiny):
    model, tokenizer = tiny
    ends = model.generation_config.eos_token_id
    small = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=model.config.vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=256,
            tie_word_embeddings=True, eos_token_id=ends, pad_token_id=model.config.pad_token_id,
        )
    ).eval()  # fmt: skip
    config = TrainConfig(steps=3, prompts=2, n=2, updates=1, eval_tasks=2, max_length=224, rows=4)
    with torch.enable_grad(), Trainer(small, tokenizer, config) as trainer:
        load_checkpoint(trainer, OLD / "checkpoint.pt")
        assert trainer.step == 2
        assert trainer.train_step()["step"] == 3
