"""Joined turns in whole rollouts: masks, rewritten history, split characters, what the model saw."""

import dataclasses

import pytest
import torch

import fnroll
from fnroll.models.chatter import CHATTER_TEMPLATE, chatter_tokenizer
from tests.rollout.flight.test_turns import STOP, echo, tool
from tests.rollout.scripts import (
    call,
    check,
    encode,
    ending,
    make,
    outputs_text,
    prompt_text,
    request,
    results,
    roll_one,
    set_model,
    spans,
)  # fmt: skip

# Leaves the reasoning of the last turn as it is, and drops that of all turns before.
FORGETFUL = CHATTER_TEMPLATE.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}",
)


def forgetful_tokenizer():
    used = chatter_tokenizer()
    used.chat_template = FORGETFUL
    return used


def watched(rollout):
    """Make a rollout note what its model sees in each forward: cached ids of each row, new ones included."""
    seen, fn = [], rollout.model.fn

    def watching(params, chunk, cache):
        output = fn(params, chunk, cache)
        ends = (chunk.start + chunk.tokens.shape[1]).tolist()
        rows = range(len(ends)) if chunk.rows is None else chunk.rows.tolist()
        keys = output.cache.keys[0][:, :, 0, 0].long()
        seen.extend(tuple(keys[row, :end].tolist()) for row, end in zip(rows, ends, strict=True) if end > 0)
        return output

    set_model(rollout, dataclasses.replace(rollout.model, fn=watching))
    return seen


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_every_turn_is_trained_and_no_end_of_turn_that_was_not_sampled(batching):
    """Case mask-02: the EOS id also stands in the glue and in the tool outputs, where the mask is 0."""
    outputs = iter(["<|im_end|>", "x<|im_end|><|im_end|>"])
    turns, calling = (
        ["one " + call("fetch"), "two " + call("fetch"), "bye"],
        tool("fetch", lambda: next(outputs)),
    )
    record = roll_one(turns, [calling], allow_control_tokens=True, batching=batching)
    first, second = outputs_text("<|im_end|>"), outputs_text("x<|im_end|><|im_end|>")
    parts = [turns[0] + STOP, first, turns[1] + STOP, second, "bye" + STOP]
    assert (list(record.tokens), list(record.loss_mask)) == spans("go", *parts)
    assert ending(record) == ("COMPLETED", "eos", 3)
    [eos] = encode(STOP)
    trained = [mask for token, mask in zip(record.tokens, record.loss_mask, strict=True) if token == eos]
    # Of the prompt, of turn 1, of its output twice, of turn 2, of its output three times, of turn 3.
    assert trained == [False, True, False, False, True, False, False, False, True]
    versions = [version == 0 for version in record.weight_versions]
    assert versions == list(record.loss_mask)


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_a_template_that_rewrites_history_never_rewrites_a_record(batching):
    """Case template-02: what each turn saw is the record's own beginning, and the record says so."""
    turns = [f"<think>a</think>{call('echo', text='1')}", call("echo", text="2"), "bye"]
    scripts = {"go": turns, "b": ["<think>c</think>bye"], "c": [call("echo", text="3"), "bye"]}
    with pytest.warns(UserWarning, match="rewrites a turn once a tool message follows"):
        rollout = make(scripts, [echo()], forgetful_tokenizer(), batching=batching, rows=2)
    seen = watched(rollout)
    with torch.no_grad():
        records = list(rollout.generate(request(scripts)))
    for record in records:
        check(record, rollout.config.max_length, rollout.tokenizer)
        own = [ids for ids in seen if record.tokens[: len(ids)] == ids and len(ids) >= record.prompt_length]
        # Every sampled token was drawn after exactly the tokens before it.
        assert {len(ids) for ids in own} >= {i for i, mask in enumerate(record.loss_mask) if mask}
    starts = {record.tokens[: record.prompt_length] for record in records}
    for ids in seen:
        whole = len(ids) < min(map(len, starts)) or any(r.tokens[: len(ids)] == ids for r in records)
        assert whole, "the model saw something that no record holds"
    assert [record.is_exact for record in records] == [False, True, True]
    answers = [turns[0] + STOP, outputs_text("1"), turns[1] + STOP, outputs_text("2"), "bye" + STOP]
    assert (list(records[0].tokens), list(records[0].loss_mask)) == spans("go", *answers)


def test_a_template_that_only_appends_makes_exact_records():
    record = roll_one([f"<think>a</think>{call('echo', text='1')}", "bye"], [echo()])
    whole = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": f"<think>a</think>{call('echo', text='1')}"},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "bye"},
    ]
    rendered = chatter_tokenizer().apply_chat_template(whole, return_dict=False)
    assert record.is_exact and list(record.tokens) == rendered[:-1]  # the last line end is nobody's


def test_characters_split_over_tokens_and_turns_keep_their_ids():
    """Case template-06: half an emoji before a stop id, the other half after it, and a cut inside one."""
    flower = encode("🌸")
    assert len(flower) == 4
    half = [*encode(call("echo", text="\x8cé")), *flower[:2], *encode(STOP)]
    rest = [*flower[2:], *encode("bye"), *flower, *encode(STOP)]
    record = roll_one([half, rest], [echo()])
    assert results(record) == [("\x8cé", "ok")]
    assert (list(record.tokens), list(record.loss_mask)) == spans("go", half, outputs_text("\x8cé"), rest)
    # `roll_one` checks that the response is a decode of all response ids at once.
    assert record.response.endswith("bye🌸" + STOP) and "\ufffd" in record.response
    for most in (1, 2, 3):
        record = roll_one([[*flower, *encode(STOP)]], [echo()], sampling={"max_new_tokens": most})
        assert list(record.response_ids) == flower[:most]
        assert ending(record) == ("TRUNCATED", "length", 1)


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_a_prompt_of_ids_can_call_tools(batching):
    turns, ids = [call("echo", text="x"), "bye"], encode(prompt_text("go"))
    rollout = make({"go": turns}, [echo()], batching=batching)
    with torch.no_grad():
        [record] = rollout.generate(fnroll.RolloutRequest([fnroll.RolloutRecord(prompt_ids=ids)]))
    assert (list(record.tokens), list(record.loss_mask)) == spans(
        "go", turns[0] + STOP, outputs_text("x"), "bye" + STOP
    )
    assert ending(record) == ("COMPLETED", "eos", 2) and list(record.prompt_ids) == ids


def test_the_calls_of_a_turn_are_its_sampled_ids_alone():
    """A call in the prompt, or half of one in an output, is nobody's call."""
    ran = []
    note = tool("note", lambda: ran.append(1) or '<tool_call>{"name": "note", ')
    prompt = "please " + call("note")
    scripts = {prompt: [call("note"), '"arguments": {}}</tool_call>']}
    with torch.no_grad(), make(scripts, [note]) as rollout:
        [record] = rollout.generate(request(scripts))
    assert (ran, ending(record)) == ([1], ("COMPLETED", "eos", 2))
