"""Records in files: exact both ways, whole or not at all, damage named by line."""

import dataclasses
import json
import math
import os

import pytest

from fnroll import RolloutBatch, RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.models import toy_model
from fnroll.records.batch import dump_record, hash_prompt_id
from fnroll.rollout.rollout import Rollout

RECORDS = (
    RolloutRecord(prompt_ids=[1, 2], prompt_id=0, sample=0, group=0, metadata={"answer": [1, None, "ü"]}),
    RolloutRecord(
        messages=[{"role": "user", "content": "line one\nline two\u2028three\r\x85\x00"}],
        prompt_id="q\n1",
        sample=3,
        group=-2,
        tokens=(5, 6, 7),
        prompt_length=2,
        loss_mask=(False, False, True),
        log_probs=(0.0, 0.0, -0.1234567910432815551),
        weight_versions=(-1, -1, 12),
        status="TRUNCATED",
        reason="turn_length",
        num_turns=2,
        tool_calls=({"turn": 0, "name": "f", "arguments": {"x": 1e300}, "result": ""},),
        num_tool_outputs_truncated=1,
        is_exact=False,
        response="\ud83c half a character \udf38, and a whole one 🌸",
        reward=-0.0,
        metadata=["nested", {"a": {"b": 1.5e-320}}],
    ),
    RolloutRecord(prompt_ids=[3], reward=math.inf, metadata=""),
)


def test_a_round_trip_is_exact(tmp_path):
    path = tmp_path / "records.jsonl"
    RolloutBatch(RECORDS).save(path)
    again = RolloutBatch.load(path)
    assert again.records == RECORDS
    assert str(again[1].reward) == "-0.0"
    for left, right in zip(RECORDS, again, strict=True):
        for field in dataclasses.fields(RolloutRecord):
            assert type(getattr(left, field.name)) is type(getattr(right, field.name)) or field.name in (
                "status",
                "reason",
            )
    assert path.read_bytes().count(b"\n") == len(RECORDS)
    path.read_text(encoding="utf-8")


def test_a_rollout_s_batch_survives_as_it_is(tmp_path):
    with Rollout(toy_model(31, sharpness=0.1), None, RolloutConfig(max_length=9, rows=3)) as rollout:
        records = [RolloutRecord(prompt_ids=[i, 4], metadata={"i": i}) for i in range(4)]
        batch = rollout.generate(RolloutRequest(records, 2), SamplingConfig(top_p=0.9))
    batch.save(tmp_path / "b.jsonl")
    again = RolloutBatch.load(tmp_path / "b.jsonl")
    assert again == batch and len(again) == 8 and list(again) == list(batch.records)
    assert [type(record.status) for record in again] == [type(record.status) for record in batch]


def test_nan_is_kept(tmp_path):
    record = RolloutRecord(prompt_ids=[1], reward=math.nan, metadata={"score": math.nan})
    RolloutBatch((record,)).save(tmp_path / "b.jsonl")
    [again] = RolloutBatch.load(tmp_path / "b.jsonl")
    assert math.isnan(again.reward) and math.isnan(again.metadata["score"])


def test_an_empty_batch(tmp_path):
    RolloutBatch(()).save(tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == b""
    assert RolloutBatch.load(tmp_path / "b.jsonl").records == ()


GOOD = dump_record(RECORDS[0]).encode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt_ids": [1', "Expecting"),
        (b"", "Expecting value"),
        (b"[1, 2]", "a record is a JSON object, this is a list"),
        (b'"text"', "a record is a JSON object, this is a str"),
        (b'{"prompt_ids": [1], "colour": 1, "size": 2}', "a record has no field 'colour', 'size'"),
        (b"{}", "needs either messages or prompt_ids"),
        (b'{"prompt_ids": [1], "status": "DONE"}', "DONE"),
        (b'{"prompt_ids": [1], "reason": "stop"}', "stop"),
        (b'{"prompt_ids": [1], "tokens": 5}', "tokens is 5; it must be a list"),
        (b'{"prompt_ids": [1], "tokens": [1, 2], "loss_mask": [true]}', "tokens 2, loss_mask 1"),
        (b'{"prompt_ids": [1], "metadata": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_damage_is_named_by_line(tmp_path, line, message):
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(GOOD + GOOD + line + b"\n" + GOOD)
    with pytest.raises(ValueError) as error:
        RolloutBatch.load(path)
    assert str(error.value).startswith(f"{path}, line 3: ") and message in str(error.value)


def test_a_file_cut_at_any_byte_names_its_last_line(tmp_path):
    """What a crash leaves: the lines before it load, the torn one is named."""
    path = tmp_path / "torn.jsonl"
    for size in range(1, len(GOOD) - 1):
        path.write_bytes(GOOD + GOOD[:size])
        with pytest.raises(ValueError, match="line 2: "):
            RolloutBatch.load(path)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        RolloutBatch.load(tmp_path / "none.jsonl")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "records.jsonl"
    RolloutBatch(RECORDS[:1]).save(path)
    before = path.read_bytes()
    bad = RolloutRecord(prompt_ids=[1], prompt_id="bad", metadata={"object": object()})
    with pytest.raises(TypeError, match=r"record bad/0 cannot be written as JSON: .*object"):
        RolloutBatch((*RECORDS, bad)).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["records.jsonl"]


def test_metadata_that_contains_itself_is_named(tmp_path):
    loop = []
    loop.append(loop)
    with pytest.raises(TypeError, match="record me/0 cannot be written as JSON"):
        dump_record(RolloutRecord(prompt_ids=[1], prompt_id="me", metadata=loop))


def test_who_reads_a_file_while_another_takes_its_place_reads_on(tmp_path):
    path = tmp_path / "records.jsonl"
    RolloutBatch(RECORDS[:1]).save(path)
    with path.open("rb") as reader:
        RolloutBatch(RECORDS[2:]).save(path)
        assert reader.read() == GOOD
    assert RolloutBatch.load(path).records == RECORDS[2:]


def test_a_save_that_is_stopped_midway_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    RolloutBatch(RECORDS[:1]).save(path)
    before = path.read_bytes()

    def stop(descriptor):
        assert path.read_bytes() == before  # all is written, and the old file still there
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        RolloutBatch(RECORDS).save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["records.jsonl"]


def test_a_line_is_one_line_of_plain_json():
    for record in RECORDS[:2]:
        line = dump_record(record)
        assert line.endswith("\n") and line.count("\n") == 1
        assert json.loads(line)["prompt_id"] == record.prompt_id
    assert "ü" in dump_record(RECORDS[0])


def test_prompt_ids_become_numbers_for_the_noise():
    assert hash_prompt_id(7) == 7
    assert 0 <= hash_prompt_id(-1) < 2**63 and 0 <= hash_prompt_id(2**200 + 5) < 2**63
    found = {hash_prompt_id(text) for text in ("a", "b", "", "7", "\ud800")}
    assert len(found) == 5 and all(0 <= value < 2**63 for value in found)
    # A hash that moved would change every record of a run that names its prompts.
    assert hash_prompt_id("a") == 5385491284112807882
