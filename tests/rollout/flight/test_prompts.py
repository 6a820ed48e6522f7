"""Prompts in the forms that people have them in: ids, rows of data sets, begun messages, plain texts."""

import numpy as np
import pytest
import torch

import fnroll
from fnroll import RolloutConfig, RolloutRecord, RolloutRequest
from fnroll.models import toy_model
from fnroll.models.chatter import chatter_tokenizer
from fnroll.testing.scripted import Script, scripted
from tests.rollout.flight.test_turns import STOP, echo
from tests.rollout.scripts import HEADER, call, encode, ending, outputs_text, prompt_text, results, stop_ids

MANY = [
    torch.tensor([1, 5]), torch.tensor([1, 5], dtype=torch.int32), torch.tensor([1, 5], dtype=torch.uint8),
    torch.tensor([1, 5], dtype=torch.int16), np.array([1, 5]), np.array([1, 5], dtype=np.uint16),
    np.array([1, 5], dtype=object), [np.int64(1), np.int32(5)], (1, np.uint8(5)), [torch.tensor(1), 5],
    range(1, 6, 4), (1, 5), [1, 5],
]  # fmt: skip


@pytest.mark.parametrize("ids", MANY, ids=repr)
def test_ids_of_any_kind_are_the_same_prompt_fresh_20(ids, tmp_path):
    config = RolloutConfig(max_length=8, progress=False)
    with fnroll.Rollout(toy_model(31), None, config) as rollout:
        batch = rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=ids)], n=2))
        assert batch == rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=batch[0].prompt_ids)], n=2))
    assert [type(token) for token in batch[0].prompt_ids] == [int, int]
    assert batch[0].tokens[:2] == (1, 5)
    batch.save(tmp_path / "batch.jsonl")
    assert list(fnroll.RolloutBatch.load(tmp_path / "batch.jsonl")[0].prompt_ids) == [1, 5]
    assert fnroll.generate(toy_model(31), None, [ids], max_length=8, n=2)[1].tokens == batch[1].tokens


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([[1, 5]]), r"prompt_ids has shape \(1, 2\); it must be one list of ids"),
        (np.array([[1], [5]]), r"prompt_ids has shape \(2, 1\)"),
        (torch.tensor(5), r"prompt_ids has shape \(\)"),
        (np.int64(5), r"must be a list of ids"),
        (
            torch.tensor([1.0, 5.0]),
            r"prompt_ids is tensor\(\[1., 5.\]\); it must be a list of ids, which are",
        ),
        (np.array([1.0]), "must be a list of ids, which are ints"),
        (torch.tensor([True]), "must be a list of ids, which are ints"),
        (np.array([True]), "must be a list of ids, which are ints"),
        (np.array(["1"]), "must be a list of ids, which are ints"),
        ({"input_ids": [1, 5]}, "must be a list of ids"),
        ({1, 5}, "must be a list of ids"),
        (iter([1, 5]), "must be a list of ids"),
    ],
)
def test_what_are_no_ids_is_refused_by_name(ids, words):
    with pytest.raises(ValueError, match=rf"^RolloutRecord\.{words}|^RolloutRecord\.prompt_ids is .*{words}"):
        RolloutRecord(prompt_ids=ids)


@pytest.mark.parametrize(
    "item", [1.0, True, "1", [1], None, np.float32(1), np.bool_(True), torch.tensor([1])]
)
def test_a_list_with_something_else_than_ids_is_refused(item):
    with pytest.raises(ValueError, match=r"record 0/0: prompt_ids\[1\] is .*; ids must be ints from 0 to 30"):
        fnroll.Rollout(toy_model(31), None, RolloutConfig(max_length=8)).generate(
            RolloutRequest([RolloutRecord(prompt_ids=[1, item])])
        )
    with pytest.raises(ValueError, match=r"prompts\[1\]: a prompt is \[1, "):
        fnroll.generate(toy_model(31), None, [[1], [1, item]], max_length=8)


class Rows:
    """As much of a data set as a loop asks for."""

    def __iter__(self):
        yield {"prompt": [{"role": "user", "content": "go"}], "answer": "42", "id": 7}
        yield {"prompt": "go", "prompt_id": "b", "metadata": {"source": "x"}, "answer": None}
        yield {"messages": ({"role": "user", "content": "go", "tool_calls": None},), "prompt": None}
        yield {"prompt_ids": np.array(encode(prompt_text("go"))), "group": np.int64(9), "response": "y"}


def test_rows_of_a_data_set_are_prompts_and_their_other_columns_metadata():
    model = scripted([Script(tuple(encode(prompt_text("go"))), (tuple(encode("bye" + STOP)),))],
                     encode(HEADER), vocab_size=len(chatter_tokenizer()), stop_ids=stop_ids())  # fmt: skip
    with torch.no_grad():
        batch = fnroll.generate(model, chatter_tokenizer(), Rows(), max_length=100)
    assert {record.tokens for record in batch} == {tuple(encode(prompt_text("go") + "bye" + STOP))}
    assert [record.metadata for record in batch] == [
        {"answer": "42", "id": 7},
        {"source": "x", "answer": None},
        None,
        {"response": "y"},
    ]
    assert [record.prompt_id for record in batch] == [0, "b", 2, 3] and batch[3].group == 9


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ({"train": [[1]]}, "prompts is .*it must be a list of prompts"),
        ([{"question": "x"}], r"prompts\[0\]: a prompt needs one of .*neither given"),
        ([[1], {"prompt": "x", "prompt_ids": [1]}], r"prompts\[1\]: .*both given"),
        ([{"prompt": 5}], "prompt is 5; it must be a string or a list of messages"),
        ([{"prompt": {"role": "user", "content": "x"}}], "it must be a string or a list of messages"),
        ([{"prompt": "x", "metadata": 5, "answer": 6}], "metadata is 5; .* no place for the column 'answer'"),
        ([{"prompt": "x", "metadata": {"a": 5}, "a": 6}], "it has no place for the column 'a'"),
        ([{"prompt": "x", "group": "algebra"}], "group is 'algebra'; it must be an int"),
        ([b"x"], "a prompt is b'x'"),
    ],
)  # fmt: skip
def test_rows_that_are_no_prompts_are_named(prompts, words):
    with pytest.raises(ValueError, match=words):
        fnroll.generate(toy_model(31), None, prompts, max_length=8)


def begin(content, turns, **config):
    """Roll out a prompt that ends with an assistant message of `content`, with a model that says `turns`."""
    prompt = tuple(encode(prompt_text("go") + content))
    said = tuple(tuple(encode(turn + STOP)) for turn in turns)
    model = scripted(
        [Script(prompt, said)], encode(HEADER), vocab_size=len(chatter_tokenizer()), stop_ids=stop_ids()
    )
    settings = RolloutConfig(max_length=400, progress=False, **config)
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": content}]
    with torch.no_grad(), fnroll.Rollout(model, chatter_tokenizer(), settings, [echo()]) as rollout:
        return rollout.generate(RolloutRequest([RolloutRecord(messages=messages)]))[0]


def test_a_begun_message_is_gone_on_with_over_turns_fresh_18():
    turns = ["me see. " + call("echo", text="x"), "bye"]
    record = begin("Let ", turns, continue_final_message=True)
    assert ending(record) == ("COMPLETED", "eos", 2) and results(record) == [("x", "ok")]
    whole = prompt_text("go") + "Let " + turns[0] + STOP + outputs_text("x") + "bye" + STOP
    assert list(record.tokens) == encode(whole) and record.is_exact
    assert record.prompt_length == len(encode(prompt_text("go") + "Let "))


def test_a_call_that_the_prompt_opens_in_a_thought_is_only_thought():
    thought = "<think>I could " + call("echo", text="x") + "</think>bye"
    assert begin("<think>Hm. ", [thought[7:]], continue_final_message=True).tool_calls == ()
    # Without the beginning of the thought the same text calls a tool.
    open_ = [call("echo", text="x"), "bye"]
    assert results(begin("Hm. ", open_, continue_final_message=True)) == [("x", "ok")]


def test_a_begun_message_that_nobody_asked_for_is_refused():
    with pytest.raises(
        ValueError, match=r"record 0/0: the messages end with an assistant message; set contin"
    ):
        begin("Let ", ["me see"])


PARTS = [{"type": "text", "text": "g"}, {"type": "text", "text": "o"}]


def test_without_a_template_one_message_of_text_is_the_prompt_and_nothing_else_fresh_17():
    plain = chatter_tokenizer()
    plain.chat_template = None
    model, config = toy_model(len(plain)), RolloutConfig(max_length=30, progress=False)
    with fnroll.Rollout(model, plain, config) as rollout:
        for content in ("go", PARTS, ["go"]):
            batch = rollout.generate(
                RolloutRequest([RolloutRecord(messages=[{"role": "user", "content": content}])])
            )
            assert batch[0].tokens[: batch[0].prompt_length] == tuple(encode("go"))
        user, system = {"role": "user", "content": "go"}, {"role": "system", "content": "be brief"}
        for messages in (
            [user, user],
            [system],
            [system, user],
            [user, {"role": "assistant", "content": "x"}],
        ):
            with pytest.raises(
                ValueError, match="record 0/0: the tokenizer has no chat template, so a prompt"
            ):
                rollout.generate(RolloutRequest([RolloutRecord(messages=messages)]))
        for content in ([{"type": "image"}], None, 5, {"text": "go"}):
            with pytest.raises(ValueError, match=r"record 0/0: messages\[0\]"):
                rollout.generate(RolloutRequest([RolloutRecord(messages=[{**user, "content": content}])]))
