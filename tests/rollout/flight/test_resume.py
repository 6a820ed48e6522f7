"""Records that were cut: what goes on with them, what is refused, what a call ends from outside."""

import threading

import pytest

import fnroll
from fnroll import RolloutBatch, RolloutRecord, RolloutRequest, SamplingConfig
from fnroll.models import toy_model
from fnroll.models.tiny import TINY_TOOLS, load_tiny, make_tasks
from fnroll.records.files.saver import Saver
from fnroll.rollout.cache.prefixes import count_distinct
from tests.rollout.flight.test_turns import echo, tool
from tests.rollout.scripts import call, ending, make, request, results


def toy(**config):
    return fnroll.Rollout(toy_model(31, sharpness=0.05), None, fnroll.RolloutConfig(max_length=16, **config))


def prompts(count=3):
    return RolloutRequest([RolloutRecord(prompt_ids=[i + 1, 5]) for i in range(count)])


def again(records, **options):
    return RolloutRequest(tuple(records), resume=True, **options)


def test_max_steps_cuts_and_each_record_says_where_it_stands():
    with toy(rows=2) as rollout:
        cut = rollout.generate(prompts(), seed=3, max_steps=2)
        assert rollout.finished.records == () and rollout.profile.steps == 2
        assert [str(record.status) for record in cut] == ["RUNNING", "RUNNING", "PENDING"]
        assert [len(record.tokens) for record in cut] == [4, 4, 2]
        assert all(record.run["seed"] == 3 and record.run["max_length"] == 16 for record in cut)
        whole = rollout.generate(again(cut), seed=3)
        assert whole == rollout.generate(prompts(), seed=3)
    assert all(record.run is None for record in whole)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_max_steps_must_be_a_number_of_steps(steps):
    with toy() as rollout, pytest.raises(ValueError, match=r"generate\.max_steps is .*an int of at least 1"):
        rollout.generate(prompts(), max_steps=steps)


def test_a_cut_record_is_refused_without_resume():
    with toy() as rollout:
        cut = rollout.generate(prompts(), max_steps=2)
    with pytest.raises(ValueError, match=r"already holds a rollout \(status RUNNING\).*to go on with it"):
        RolloutRequest(cut.records)


def test_weight_versions_say_which_token_came_from_which():
    with toy() as rollout:
        rollout.sync_weights(4)
        cut = rollout.generate(prompts(1), seed=3, max_steps=2)
        rollout.sync_weights(5)
        [record] = rollout.generate(again(cut), seed=3)
    assert (
        record.weight_versions == (-1, -1, 4, 4, *[5] * (len(record.tokens) - 4)) and len(record.tokens) > 4
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "record 0/0 was begun with seed 3, and this call has 4; give the same, or say so"),
        ({"step": 2}, "begun with step 0, and this call has 2"),
        ({"sampling": SamplingConfig(temperature=0.5)}, "begun with temperature 1.0, and this call has 0.5"),
        (
            {"sampling": SamplingConfig(max_new_tokens=9)},
            "begun with max_new_tokens None, and this call has 9",
        ),
        ({"config": {"max_turns": 3}}, "begun with max_turns 16, and this call has 3"),
    ],
)
def test_another_run_is_refused_by_name_unless_asked(changes, message):
    with toy() as rollout:
        cut = rollout.generate(prompts(), seed=3, max_steps=2)
    given = {"seed": 3, **changes}
    with toy(**given.pop("config", {})) as rollout:
        with pytest.raises(ValueError) as error:
            rollout.generate(again(cut), **given)
        assert message in str(error.value)
        name = str(error.value).split("changed=(")[1].split("'")[1]
        batch = rollout.generate(again(cut, changed=(name,)), **given)
    assert [new.tokens[:4] for new in batch] == [old.tokens for old in cut]


def test_what_may_differ_must_be_something_that_can():
    with toy() as rollout:
        cut = rollout.generate(prompts(), max_steps=2)
        for name in ("temprature", "support_size"):
            with pytest.raises(
                ValueError,
                match=rf"RolloutRequest\.changed is '{name}'; it must be one of 'model', 'weights', 'seed'",
            ):
                rollout.generate(again(cut, changed=(name,)))
        with pytest.raises(
            ValueError, match=r"begun with support_size 0, and this call has 4; give the same$"
        ):
            rollout.generate(again(cut), SamplingConfig(support_size=4))
    with pytest.raises(ValueError, match=r"RolloutRequest\.changed is 'seed'; it must be a tuple of names"):
        again(cut, changed="seed")


def test_a_smaller_limit_ends_what_is_beyond_it():
    with toy() as rollout:
        cut = rollout.generate(prompts(), seed=3, max_steps=4)
        batch = rollout.generate(
            again(cut, changed=("max_new_tokens",)), SamplingConfig(max_new_tokens=4), seed=3
        )
        open_ = [index for index, record in enumerate(cut) if record.is_unfinished]
        assert len(open_) == 2
        assert [(batch[i].tokens, *ending(batch[i])) for i in open_] == [
            (cut[i].tokens, "TRUNCATED", "length", 1) for i in open_
        ]
    short = fnroll.Rollout(toy_model(31, sharpness=0.05), None, fnroll.RolloutConfig(max_length=5))
    with pytest.raises(ValueError, match="cannot be gone on with: it has 6 tokens, and max_length is 5"):
        short.generate(again(cut, changed=("max_length",)), seed=3)


def test_records_that_lack_something_are_refused_by_name():
    with toy() as rollout:
        [record] = rollout.generate(prompts(1), max_steps=2)
        for name in ("log_probs", "weight_versions", "loss_mask"):
            with pytest.raises(ValueError, match=f"record 0/0 cannot be gone on with: it has no {name}"):
                rollout.generate(again([record.replace(**{name: None})]))
        with pytest.raises(ValueError, match="its first 2 tokens are not what its prompt is now"):
            rollout.generate(again([record.replace(prompt_ids=[9, 9])]))
    with pytest.raises(
        ValueError, match="record 0/0 is RUNNING; only records that have ended are trained on"
    ):
        RolloutBatch((record,)).to_training()


def test_a_changed_tool_output_is_noticed():
    scripts = {"go": [call("echo", text="x"), "bye"]}
    with make(scripts, [echo()]) as rollout:
        [record] = rollout.generate(request(scripts))
        cut = record.rewind(len(record.tokens))
        calls = [{**item, "result": "y"} for item in cut.tool_calls]
        with pytest.raises(
            ValueError, match="after turn 0, are not what the chat template writes for the tool"
        ):
            rollout.generate(again([cut.replace(tool_calls=tuple(calls))]))
        with pytest.raises(ValueError, match="record 0/0 cannot be gone on with"):
            rollout.generate(again([cut.replace(tool_calls=())]))


def test_rewind_and_fork_name_what_is_wrong():
    scripts = {"go": [call("echo", text="x"), "bye"]}
    with make(scripts, [echo()]) as rollout:
        [record] = rollout.generate(request(scripts))
    prompt, end = record.prompt_length, len(record.tokens)
    start = record.loss_mask.index(False, prompt)
    stop = record.loss_mask.index(True, start)
    for length, message in {
        prompt - 1: f"rewind to {prompt - 1} goes beyond the prompt, which has {prompt} tokens",
        end + 1: f"rewind to {end + 1}, but the record has {end} tokens",
        start + 1: f"tokens {start} to {stop}; rewind to {start} or {stop}",
        -1: "rewind.length is -1",
    }.items():
        with pytest.raises(ValueError, match=message):
            record.rewind(length)
    places = [record.rewind(length) for length in (prompt, start - 1, start, stop, stop + 1, end)]
    assert [str(place.status) for place in places] == [
        "PENDING", "RUNNING", "WAITING", "PENDING", "RUNNING", "WAITING",
    ]  # fmt: skip
    assert [place.num_turns for place in places] == [0, 0, 1, 1, 1, 2]
    assert [len(place.tool_calls) for place in places] == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="is COMPLETED; only an unfinished record forks, rewind it first"):
        record.fork(1)
    with pytest.raises(ValueError, match="a fork needs another sample than 0"):
        places[0].fork(0)
    with pytest.raises(ValueError, match="holds no rollout"):
        RolloutRecord(prompt_ids=[1]).rewind(1)


def test_a_waiting_record_runs_its_tools_again_and_one_in_the_log_does_not(tmp_path):
    ran, go = [], threading.Event()

    def slow() -> str:
        """Wait."""
        ran.append("slow")
        go.wait(20)
        return "slow"

    def quick() -> str:
        """Do not."""
        ran.append("quick")
        return "quick"

    used = [tool("slow", slow), tool("quick", quick)]
    scripts = {"a": [call("slow"), "bye"], "b": [call("quick"), "x" * 30, "never"]}
    log = str(tmp_path / "log.jsonl")
    with make(scripts, used, log=log) as rollout:
        steps = len(call("quick")) + 20
        cut = rollout.generate(request(scripts), max_steps=steps)
    go.set()
    assert [str(record.status) for record in cut] == ["WAITING", "RUNNING"]
    assert [record.num_turns for record in cut] == [1, 1]
    # As a crash would leave it: the record is taken back to before its tool answered.
    stop = cut[1].loss_mask.index(False, cut[1].prompt_length)
    with make(scripts, used, log=log) as rollout:
        batch = rollout.generate(again([cut[0], cut[1].rewind(stop)]))
    assert ran == ["slow", "quick", "slow"]
    assert [results(record) for record in batch] == [[("slow", "ok")], [("quick", "ok")]]
    assert [ending(record) for record in batch] == [("COMPLETED", "eos", 2)] * 2


def test_abort_ends_the_siblings_and_keeps_what_has_ended():
    with toy(rows=2) as rollout:
        plain = rollout.generate(RolloutRequest(prompts(3).records, n=3), seed=1)

        def stop_siblings(_, record):
            if record.reason == "eos":
                rollout.abort(lambda other: other.prompt_id == record.prompt_id)

        batch = rollout.generate(RolloutRequest(prompts(3).records, n=3), seed=1, on_record=stop_siblings)
    assert any(record.reason == "aborted" for record in batch)
    answers = sum(len(record.response_ids) - 1 for record in batch)
    assert rollout.profile.least_tokens == answers + count_distinct([record.prompt_ids for record in batch])
    for before, after in zip(plain, batch, strict=True):
        if after.reason == "aborted":
            assert after.status == "TRUNCATED" and not after.is_unfinished
            assert after.tokens == before.tokens[: len(after.tokens)]
            assert after.log_probs == before.log_probs[: len(after.tokens)]
        else:
            assert after == before
    for prompt in range(3):
        mine = [record.reason for record in batch if record.prompt_id == prompt]
        assert ("aborted" in mine) <= ("eos" in mine)


@pytest.mark.parametrize("wait_for_tools", [False, True])
def test_abort_of_all_reaches_a_tool_that_hangs_and_an_aborted_record_can_go_on(wait_for_tools):
    hang, ended = threading.Event(), []

    def wait() -> str:
        """Hang."""
        rollout.abort()
        hang.wait(20)
        return "late"

    scripts = {"a": ["bye"], "b": [call("wait"), "bye"]}
    options = {"wait_for_tools": wait_for_tools, "tool_timeout_s": None}
    with make(scripts, [tool("wait", wait)], **options) as rollout:
        batch = rollout.generate(request(scripts), on_record=lambda index, record: ended.append(index))
        assert [ending(record) for record in batch] == [("COMPLETED", "eos", 1), ("TRUNCATED", "aborted", 1)]
        assert sorted(ended) == [0, 1] and rollout.finished == batch
        hang.set()
        revived = batch[1].rewind(len(batch[1].tokens))
        assert revived.status == "WAITING"


def test_a_single_turn_rollout_refuses_the_turns_of_another():
    scripts = {"go": [call("echo", text="x"), "bye"]}
    with make(scripts, [echo()]) as rollout:
        [record] = rollout.generate(request(scripts))
    single = make(scripts, [], multi_turn=False)
    with pytest.raises(ValueError, match="has 1 turn that tools answered, and this rollout is single-turn"):
        single.generate(again([record.rewind(len(record.tokens) - 1)]))


def test_a_real_model_in_float32_goes_on_with_the_same_tokens():
    """Its keys and values are computed again in other chunks, which float32 rounds differently."""
    model, tokenizer = load_tiny("start")
    records = [RolloutRecord(messages=task.messages) for task in make_tasks(4, seed=1)]
    config = fnroll.RolloutConfig(max_length=160, rows=3, max_turns=5, progress=False)
    with fnroll.Rollout(model, tokenizer, config, TINY_TOOLS) as rollout:
        whole = rollout.generate(RolloutRequest(records, n=2), seed=2)
        batch = rollout.generate(RolloutRequest(records, n=2), seed=2, max_steps=11)
        while any(record.is_unfinished for record in batch):
            batch = rollout.generate(again(batch), seed=2, max_steps=11)
    assert sum(len(record.tool_calls) for record in whole) > 4
    for left, right in zip(whole, batch, strict=True):
        assert left.replace(log_probs=right.log_probs) == right
        assert max(abs(a - b) for a, b in zip(left.log_probs, right.log_probs, strict=True)) < 1e-5


def test_a_model_of_another_size_is_refused_though_its_class_is_the_same():
    small, large = (toy_model(31, sharpness=0.05), toy_model(33, sharpness=0.05))
    config = fnroll.RolloutConfig(max_length=16, progress=False)
    with fnroll.Rollout(small, None, config) as rollout:
        batch = rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=[1, 2])]), max_steps=2)
    with (
        fnroll.Rollout(large, None, config) as rollout,
        pytest.raises(ValueError, match=r"model .*31 ids.*33 ids"),
    ):
        rollout.generate(again(batch))


def test_a_waiting_record_that_is_cut_again_before_it_is_loaded_keeps_its_turns(monkeypatch):
    stood, scripts = [], {"a": [call("echo", text="x"), "bye"]}
    with make(scripts, [echo()]) as rollout:
        [record] = rollout.generate(request(scripts))
        waiting = record.rewind(record.turns[0][1])
        monkeypatch.setattr(Saver, "save", lambda _, ended, stand, steps: stood.append(stand()))
        assert rollout.generate(again([waiting])).records == (record,)
    first = stood[0][0]  # before anything was loaded
    assert (first.status, first.num_turns) == (waiting.status, waiting.num_turns) == ("WAITING", 1)


def test_weights_do_not_change_under_a_running_rollout():
    """Its keys and values would be those of the old ones."""
    with fnroll.Rollout(toy_model(31), None, fnroll.RolloutConfig(max_length=8, progress=False)) as rollout:
        with pytest.raises(RuntimeError, match="sync_weights during generate"):
            rollout.generate(
                RolloutRequest([RolloutRecord(prompt_ids=[1])]), on_record=lambda *_: rollout.sync_weights(1)
            )
        rollout.sync_weights(1)
