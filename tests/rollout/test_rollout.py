"""Single-turn rollouts: what ends a record, what is carried, what a bad prompt or a crash leaves."""

import pytest
import torch

import fnroll.compile.steps as lowered_module
import fnroll.rollout.driver.driver as driver_module
from fnroll import (
    Rollout,
    RolloutBatch,
    RolloutConfig,
    RolloutInterrupted,
    RolloutRecord,
    RolloutRequest,
    SamplingConfig,
    generate,
)
from fnroll.models import causal_lm, toy_logits, toy_model
from fnroll.models.zoo import tiny_model
from fnroll.rollout.buffers import Buffers
from tests.rollout.scripted import forced_model


def engine(model, tokenizer=None, max_length=24, rows=2, **config):
    return Rollout(
        model, tokenizer, RolloutConfig(max_length=max_length, rows=rows, progress=False, **config)
    )


def request(prompts, n=1, **more):
    return RolloutRequest([RolloutRecord(prompt_ids=list(ids)) for ids in prompts], n, **more)


# Script 9 stops after three tokens, script 8 at once, script 7 never.
SCRIPTS = {9: [5, 6, 4, 0], 8: [5, 0], 7: [5, 6, 4, 3, 5, 6, 4, 3, 5, 6, 4, 3]}


@pytest.mark.parametrize(
    ("script", "budget", "response", "status", "reason"),
    [
        (9, {}, [6, 4, 0], "COMPLETED", "eos"),
        (8, {}, [0], "COMPLETED", "eos"),
        (9, {"max_new_tokens": 4}, [6, 4, 0], "COMPLETED", "eos"),
        # The stop id is the very last token allowed, by each of the limits.
        (9, {"max_new_tokens": 3}, [6, 4, 0], "COMPLETED", "eos"),
        (9, {"max_new_tokens_per_turn": 3}, [6, 4, 0], "COMPLETED", "eos"),
        (9, {"max_length": 5}, [6, 4, 0], "COMPLETED", "eos"),
        # One token less.
        (9, {"max_new_tokens": 2}, [6, 4], "TRUNCATED", "length"),
        (9, {"max_new_tokens_per_turn": 2}, [6, 4], "TRUNCATED", "turn_length"),
        (9, {"max_length": 4}, [6, 4], "TRUNCATED", "length"),
        (9, {"max_new_tokens": 1}, [6], "TRUNCATED", "length"),
        # The smallest limit decides; a tie is the record's limit and not the turn's.
        (7, {"max_new_tokens": 5, "max_new_tokens_per_turn": 3}, [6, 4, 3], "TRUNCATED", "turn_length"),
        (7, {"max_new_tokens": 3, "max_new_tokens_per_turn": 5}, [6, 4, 3], "TRUNCATED", "length"),
        (7, {"max_new_tokens": 3, "max_new_tokens_per_turn": 3}, [6, 4, 3], "TRUNCATED", "length"),
        (7, {"max_length": 5, "max_new_tokens_per_turn": 3}, [6, 4, 3], "TRUNCATED", "length"),
        (7, {"max_length": 3, "max_new_tokens": 9}, [6], "TRUNCATED", "length"),
    ],
)
@pytest.mark.parametrize("poll_every", [1, 4])
def test_budgets_and_stop_ids(script, budget, response, status, reason, poll_every):
    """Case eos-02: the ending stop id is kept, trained and told apart from a cut; nothing follows it."""
    sampling = dict(budget)
    max_length = sampling.pop("max_length", 24)
    model = forced_model(SCRIPTS)
    with engine(model, max_length=max_length, poll_every=poll_every) as rollout:
        batch = rollout.generate(request([[script, 5], [7, 5]]), SamplingConfig(temperature=0.0, **sampling))
    record = batch[0]
    assert record.response_ids == tuple(response)
    assert (record.status, record.reason, record.num_turns) == (status, reason, 1)
    assert record.tokens == (script, 5, *response) and record.prompt_length == 2
    assert record.loss_mask == (False, False, *[True] * len(response))
    assert record.weight_versions == (-1, -1, *[0] * len(response))
    assert record.log_probs[:2] == (0.0, 0.0) and all(-1e-6 < p <= 0 for p in record.log_probs[2:])
    assert record.num_sampled == len(response)


def test_a_prompt_without_room_ends_and_the_others_run():
    prompts = [[9, 5], list(range(1, 9)), [8, 5], list(range(1, 8))]
    with engine(forced_model(SCRIPTS), max_length=8) as rollout:
        batch = rollout.generate(request(prompts, n=2), SamplingConfig(temperature=0.0))
    assert [(record.status, record.reason) for record in batch[::2]] == [
        ("COMPLETED", "eos"),
        ("TRUNCATED", "prompt"),
        ("COMPLETED", "eos"),
        ("TRUNCATED", "length"),
    ]
    full = batch[2]
    assert full.tokens == tuple(prompts[1]) and full.prompt_length == 8 and full.num_turns == 0
    assert not any(full.loss_mask) and len(full.log_probs) == len(full.weight_versions) == 8
    assert full.response_ids == () and full.num_sampled == 0


def test_all_prompts_without_room():
    with engine(toy_model(), max_length=2) as rollout:
        batch = rollout.generate(request([[1, 2], [3, 4, 5]], n=2))
    assert [record.reason for record in batch] == ["prompt"] * 4
    assert rollout.profile.forwards == rollout.profile.tokens == 0


def test_zero_prompts():
    """Case padding-04."""
    with engine(toy_model()) as rollout:
        batch = rollout.generate(RolloutRequest([]))
        assert len(batch) == 0 and list(batch) == [] and rollout.finished.records == ()
        profile = rollout.profile
        assert (profile.steps, profile.tokens, profile.mean_live_rows, profile.records) == (0, 0, 0.0, 0)
        assert profile.to_dict()["tokens_per_s"] == 0.0
    assert generate(toy_model(), None, [], max_length=8).records == ()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (RolloutRecord(prompt_ids=[]), r"record 1/0: the prompt is empty; it must hold at least one token"),
        (
            RolloutRecord(prompt_ids=[1, 16]),
            r"record 1/0: prompt_ids\[1\] is 16; ids must be ints from 0 to 15",
        ),
        (RolloutRecord(prompt_ids=[-1]), r"prompt_ids\[0\] is -1"),
        (RolloutRecord(prompt_ids=[1, True]), r"prompt_ids\[1\] is True"),
        (RolloutRecord(prompt_ids=[1, 2.0]), r"prompt_ids\[1\] is 2.0"),
        (RolloutRecord(prompt_ids=["1"]), r"prompt_ids\[0\] is '1'"),
        (RolloutRecord(messages=[{"role": "user", "content": "hi"}]), r"record 1/0: .*needs a tokenizer"),
        (RolloutRecord(messages=[]), r"record 1/0: the prompt is empty; it must hold at least one message"),
    ],
)
def test_a_bad_prompt_is_named_before_anything_runs(record, message):
    forwards = []
    model = forced_model(SCRIPTS, vocab_size=16, forwards=forwards)
    with engine(model) as rollout:
        with pytest.raises(ValueError, match=message):
            rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=[1]), record]))
        assert forwards == []
        assert len(rollout.generate(request([[9, 5]]))) == 1


class Words:
    """As much of a tokenizer as a single-turn rollout asks for."""

    def __init__(self, eos=0, pad=None):
        self.eos_token_id, self.pad_token_id = eos, pad

    def encode(self, text):
        return [int(word) for word in text.split()]

    def decode(self, ids):
        return " ".join(map(str, ids))


def test_text_prompts_and_responses_without_a_chat_template():
    with engine(forced_model(SCRIPTS), Words()) as rollout:
        batch = rollout.generate(
            RolloutRequest([RolloutRecord(messages=[{"role": "user", "content": "9 5"}])]),
            SamplingConfig(temperature=0.0),
        )
    assert batch[0].tokens == (9, 5, 6, 4, 0) and batch[0].response == "6 4 0"


def test_several_messages_need_a_chat_template():
    messages = [{"role": "system", "content": "1"}, {"role": "user", "content": "2"}]
    with engine(toy_model(), Words()) as rollout, pytest.raises(ValueError, match="no chat template"):
        rollout.generate(RolloutRequest([RolloutRecord(messages=messages)]))


def test_a_tokenizer_with_neither_pad_nor_eos():
    with pytest.raises(ValueError, match=r"neither an EOS nor a pad token.*tokenizer\.eos_token"):
        engine(toy_model(), Words(eos=None))
    with pytest.raises(ValueError, match="no stop id"):
        engine(toy_model(stop_ids=()), Words(eos=None, pad=3))
    assert engine(toy_model(stop_ids=(3,)), Words(eos=None, pad=3)).stop_ids == [3]
    assert engine(toy_model(stop_ids=(3,)), Words(eos=7)).stop_ids == [3, 7]


def test_both_the_model_s_and_the_tokenizer_s_stop_ids_end_a_turn():
    model = forced_model({9: [5, 6, 3], 8: [5, 4, 2]}, stop_ids=(3,))
    with engine(model, Words(eos=2)) as rollout:
        batch = rollout.generate(request([[9, 5], [8, 5]]), SamplingConfig(temperature=0.0))
    assert [record.response_ids for record in batch] == [(6, 3), (4, 2)]
    assert [record.reason for record in batch] == ["eos", "eos"]


def test_max_length_above_the_model_s_positions():
    with pytest.raises(ValueError, match="max_length is 65; GPT2LMHeadModel has positions for at most 64"):
        engine(tiny_model("gpt2"), max_length=65)
    with engine(tiny_model("gpt2"), max_length=64) as rollout:
        batch = rollout.generate(request([[3] * 60]), SamplingConfig(temperature=0.0))
    assert len(batch[0].tokens) <= 64


def test_huge_values_of_top_k_are_the_vocabulary():
    """Case sampling-01."""
    with engine(toy_model()) as rollout:
        plain = rollout.generate(request([[1, 2]], n=4))
        assert rollout.generate(request([[1, 2]], n=4), SamplingConfig(top_k=2**80)) == plain


def test_samples_differ_and_repeat():
    """Case sampling-03: copies differ, the same call repeats exactly, another step or seed does not."""
    model = toy_model(31, sharpness=0.1)
    with engine(model, rows=3) as rollout:
        first = rollout.generate(request([[1, 2], [5]], n=8), seed=7)
        assert len({record.response_ids for record in first[:8]}) == 8
        assert rollout.generate(request([[1, 2], [5]], n=8), seed=7) == first
        for other in ({"seed": 7, "step": 1}, {"seed": 8}):
            changed = rollout.generate(request([[1, 2], [5]], n=8), **other)
            assert not {record.response_ids for record in first} & {r.response_ids for r in changed}
    with engine(model, rows=5, batching="static", poll_every=3) as rollout:
        assert rollout.generate(request([[1, 2], [5]], n=8), seed=7) == first


def test_first_tokens_follow_the_distribution():
    """Case sampling-03: 2000 samples of one prompt against softmax, chi-square with 6 degrees of freedom,
    p > 0.001."""
    model = toy_model(7, sharpness=0.7)
    with engine(model, rows=64) as rollout:
        batch = rollout.generate(request([[1, 2]], n=2000), SamplingConfig(max_new_tokens=1))
    counts = torch.bincount(torch.tensor([record.response_ids[0] for record in batch]), minlength=7)
    expected = 2000 * torch.tensor(toy_logits([1, 2], 7, 0.7)).softmax(-1)
    assert float(((counts - expected) ** 2 / expected).sum()) < 22.46


def test_a_record_does_not_depend_on_its_company():
    """Alone, with others, in another place of another request: identity decides, and nothing else."""
    model = toy_model(31, sharpness=0.1)
    wanted = RolloutRecord(prompt_ids=[4, 5], prompt_id="the one")
    others = [RolloutRecord(prompt_ids=[i, 1], prompt_id=i) for i in range(7)]
    with engine(model, rows=3) as rollout:
        alone = rollout.generate(RolloutRequest([wanted]), seed=2)[0]
        among = rollout.generate(RolloutRequest([*others, wanted], 2), seed=2)
    assert among[14].response_ids == alone.response_ids and among[14].prompt_id == "the one"
    assert among[15].response_ids != alone.response_ids


def test_identity_and_metadata_are_carried():
    """Case schedule-03: record i belongs to prompt i, though they end out of order."""
    tags = [{"tag": i, "object": object()} for i in range(3)]
    prompts = [RolloutRecord(prompt_ids=[7 + i, 5], metadata=tag) for i, tag in enumerate(tags)]
    prompts[1] = prompts[1].replace(prompt_id="q", group=40, sample=3)
    with engine(forced_model(SCRIPTS)) as rollout:
        for _ in range(2):
            batch = rollout.generate(RolloutRequest(prompts, n=2), SamplingConfig(temperature=0.0))
            assert [record.prompt_id for record in batch] == [0, 0, "q", "q", 2, 2]
            assert [record.group for record in batch] == [0, 0, 40, 40, 2, 2]
            assert [record.sample for record in batch] == [0, 1, 3, 4, 0, 1]
            assert all(record.metadata is tags[place // 2] for place, record in enumerate(batch))
            assert [record.prompt_ids[0] for record in batch] == [7, 7, 8, 8, 9, 9]
            assert [len(record.response_ids) for record in batch] == [22, 22, 1, 1, 3, 3]
        assert prompts[0].tokens is None


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_on_record_hears_of_each_record_once_as_it_ends(batching):
    heard = []
    with engine(forced_model(SCRIPTS), max_length=10, batching=batching) as rollout:
        batch = rollout.generate(
            request([[7, 5], [8, 5], [9, 5], [1] * 10]),
            SamplingConfig(temperature=0.0),
            on_record=lambda place, record: heard.append((place, record)),
        )
    assert [place for place, _ in heard] == ([3, 1, 2, 0] if batching == "continuous" else [3, 1, 0, 2])
    assert all(batch[place] is record for place, record in heard)


def interrupt_after(count):
    heard = []

    def listen(place, record):
        heard.append(place)
        if len(heard) == count:
            raise KeyboardInterrupt

    return listen


def test_ctrl_c_keeps_what_had_ended_and_the_rollout_goes_on_working():
    # The second ends before the first; two have ended then, and two have not.
    prompts = [[9, 5], [8, 5], [7, 5], [8, 6]]
    with engine(forced_model(SCRIPTS)) as rollout:
        whole = rollout.generate(request(prompts), SamplingConfig(temperature=0.0))
        with pytest.raises(RolloutInterrupted, match="2 of 4 records had ended") as caught:
            rollout.generate(request(prompts), SamplingConfig(temperature=0.0), on_record=interrupt_after(2))
        assert isinstance(caught.value, KeyboardInterrupt)
        assert caught.value.batch == rollout.finished == RolloutBatch((whole[0], whole[1]))
        assert rollout.generate(request(prompts), SamplingConfig(temperature=0.0)) == whole


@pytest.mark.parametrize(("fail_at", "finished"), [(0, []), (1, []), (2, [8]), (5, [8]), (6, [8, 9])])
def test_a_model_error_leaves_what_had_ended_and_a_usable_rollout(fail_at, finished):
    class OutOfMemoryError(Exception):
        pass

    class Failing(list):
        armed = True

        def append(self, shape):
            super().append(shape)
            if self.armed and len(self) > fail_at:
                raise OutOfMemoryError

    forwards = Failing()
    prompts = [[7, 5], [8, 5], [9, 5], [8, 6]]
    with engine(forced_model(SCRIPTS, forwards=forwards)) as rollout:
        with pytest.raises(OutOfMemoryError):
            rollout.generate(request(prompts), SamplingConfig(temperature=0.0))
        assert [record.prompt_ids[0] for record in rollout.finished] == finished
        forwards.armed = False
        again = rollout.generate(request(prompts), SamplingConfig(temperature=0.0))
    with engine(forced_model(SCRIPTS)) as fresh:
        assert again == fresh.generate(request(prompts), SamplingConfig(temperature=0.0))


def test_an_error_in_on_record_is_the_caller_s_and_nothing_is_lost():
    def fail(place, record):
        raise OSError("disk full")

    with engine(forced_model(SCRIPTS)) as rollout:
        with pytest.raises(OSError, match="disk full"):
            rollout.generate(request([[7, 5], [8, 5]]), SamplingConfig(temperature=0.0), on_record=fail)
        assert [record.prompt_ids[0] for record in rollout.finished] == [8]


def test_an_interrupted_request_is_resumed():
    prompts = [[7, 5], [8, 5], [9, 5], [8, 6]]
    model = toy_model(31, sharpness=0.1)
    with engine(model) as rollout:
        whole = rollout.generate(request(prompts), seed=3)
        with pytest.raises(RolloutInterrupted) as caught:
            rollout.generate(request(prompts), seed=3, on_record=interrupt_after(2))
        ended = {record.prompt_id: record for record in caught.value.batch}
        rest = [ended.get(i, RolloutRecord(prompt_ids=ids, prompt_id=i)) for i, ids in enumerate(prompts)]
        heard = []
        resumed = rollout.generate(
            RolloutRequest(rest, resume=True), seed=3, on_record=lambda place, _: heard.append(place)
        )
        assert resumed.records == whole.records
        assert sorted(heard) == [0, 1, 2, 3]
        assert rollout.profile.records == 2
        assert all(
            any(record is kept for kept in ended.values()) for record in resumed if record.prompt_id in ended
        )


def test_resume_rolls_failed_records_out_again_as_the_samples_they_are():
    model = toy_model(31, sharpness=0.1)
    with engine(model) as rollout:
        whole = rollout.generate(request([[1, 2], [3]], n=3), seed=3)
        damaged = [*whole[:1], whole[1].replace(status="FAILED", reason="aborted"), *whole[2:]]
        resumed = rollout.generate(RolloutRequest(damaged, n=3, resume=True), seed=3)
    assert resumed.records == whole.records
    assert rollout.profile.records == 1


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_lines_of_finished_records_are_used_again(monkeypatch, batching):
    """One row has 8 lines here; 40 records of unequal lengths pass through them."""
    model = toy_model(31, sharpness=0.2, stop_ids=(0, 1, 2, 3))
    prompts = [[5 + i % 9] * (1 + i % 4) for i in range(20)]
    with engine(model, rows=7) as rollout:
        plain = rollout.generate(request(prompts, n=2), seed=1)
    monkeypatch.setattr(lowered_module, "_MIN_LINES", 1)
    taken = []
    init = Buffers.init_state

    def watch(self, lines, *given):
        taken.append(lines)
        return init(self, lines, *given)

    monkeypatch.setattr(Buffers, "init_state", watch)
    with engine(model, rows=1, batching=batching) as rollout:
        assert rollout.generate(request(prompts, n=2), seed=1) == plain
    assert taken == [8]


@pytest.mark.parametrize("poll_every", [1, 2, 5, 100])
def test_polling_changes_no_record(poll_every):
    model = toy_model(31, sharpness=0.2, stop_ids=(0, 1, 2, 3))
    prompts = [[5 + i] * (1 + i % 4) for i in range(9)]
    with engine(model, rows=4) as rollout:
        plain = rollout.generate(request(prompts), seed=1)
        steps = rollout.profile.steps
    with engine(model, rows=4, poll_every=poll_every) as rollout:
        assert rollout.generate(request(prompts), seed=1) == plain
        assert rollout.profile.steps >= steps


@pytest.mark.parametrize("poll_every", [1, 3])
@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_profile_numbers_add_up(batching, poll_every):
    forwards = []
    prompts = [[7, *[5] * i] for i in range(5)] + [[9, 5]]
    model = forced_model(SCRIPTS, forwards=forwards)
    decodes = []
    with engine(model, rows=3, batching=batching, poll_every=poll_every) as rollout:
        decode = rollout._steps.decode
        rollout._steps.decode = lambda *args: (decodes.append(len(forwards)), decode(*args))[1]
        batch = rollout.generate(request(prompts, n=2), SamplingConfig(temperature=0.0, max_new_tokens=9))
        profile = rollout.profile
    assert profile.records == len(batch) == 12
    assert profile.tokens == sum(record.num_sampled for record in batch)
    assert profile.forwards == len(forwards)
    assert profile.steps == len(decodes)
    assert {forwards[place][1] for place in decodes} == {1}
    assert forwards[decodes[-1]][0] < 3  # the last record does not take the others' rows along
    # Each token but a record's last is fed once; all other columns are padding.
    assert profile.fed_tokens == sum(len(record.tokens) - 1 for record in batch)
    assert profile.fed_tokens + profile.padded_tokens == sum(rows * columns for rows, columns in forwards)
    assert profile.mean_live_rows == profile.tokens / profile.steps <= 3
    assert set(profile.seconds) >= {"render", "load", "admit", "prefill", "decode", "poll"}
    assert 0 < sum(profile.seconds.values()) <= profile.wall_s
    assert profile.tokens_per_s == profile.tokens / profile.wall_s


def test_static_batching_admits_only_when_all_rows_are_free():
    """Lengths 1 and 12 in two rows, twice: static takes 2 x 12 steps, continuous lets one row go on."""
    prompts = [[7, 5], [8, 5], [7, 6], [8, 6]]
    sampling = SamplingConfig(temperature=0.0, max_new_tokens=12)
    with engine(forced_model(SCRIPTS), batching="static") as rollout:
        static = rollout.generate(request(prompts), sampling)
        assert rollout.profile.steps == 24
    with engine(forced_model(SCRIPTS)) as rollout:
        continuous = rollout.generate(request(prompts), sampling)
        assert rollout.profile.steps == 13
    assert static == continuous


@pytest.mark.parametrize(("poll_every", "joins"), [(1, True), (5, False)])
def test_rows_that_are_free_wait_a_few_steps_to_share_a_prefill(poll_every, joins, monkeypatch):
    """Four records end a step apart: rows are filled in pairs, or alone where a wait would be too long."""
    model = toy_model(61, sharpness=0.0, stop_ids=(60,))
    work = [RolloutRecord(prompt_ids=[1 + i] * (13 - i % 4)) for i in range(12)]
    counts = {}
    for rows_to_join in (2, 100):
        monkeypatch.setattr(driver_module, "ROWS_TO_JOIN", rows_to_join)
        config = RolloutConfig(max_length=16, rows=4, poll_every=poll_every, share_prefixes=False)
        with Rollout(model, None, config) as rollout:
            batch = rollout.generate(RolloutRequest(work))
            counts[rows_to_join] = rollout.profile.forwards - rollout.profile.steps, batch
    (few, joined), (many, alone) = counts[2], counts[100]
    assert joined == alone and (few < many if joins else few == many)


def test_a_second_call_is_as_good_as_a_first():
    """Case schedule-03: 3 and then 5 records on one engine, buffers used again, equal to solo runs."""
    model = causal_lm(tiny_model("llama"))
    prompts = [[5], [7, 8, 9, 10, 11, 12], [4, 4], [30], [31, 32, 33]]
    with engine(model, rows=2) as rollout:
        rollout.generate(request([ids * 2 for ids in prompts[:3]]), seed=9)
        batch = rollout.generate(request(prompts), seed=1)
    for place, record in enumerate(batch):
        with engine(model, rows=1) as fresh:
            solo = RolloutRecord(prompt_ids=prompts[place], prompt_id=place)
            alone = fresh.generate(RolloutRequest([solo]), seed=1)[0]
        assert (record.tokens, record.status) == (alone.tokens, alone.status)


def test_a_rollout_can_be_used_after_shutdown():
    rollout = engine(toy_model())
    first = rollout.generate(request([[1, 2]]))
    rollout.shutdown()
    assert rollout.generate(request([[1, 2]])) == first


def test_without_log_probs():
    with engine(toy_model(), max_length=6, return_log_probs=False) as rollout:
        batch = rollout.generate(request([[1, 2], [1] * 6]))
    assert [record.log_probs for record in batch] == [None, None]
    assert all(len(record.tokens) == len(record.loss_mask) for record in batch)


def test_the_one_liner():
    model = toy_model(31, sharpness=0.1)
    batch = generate(model, None, [[1, 2], torch.tensor([3])], max_length=9, n=2, temperature=0.0, rows=1)
    assert [record.prompt_ids for record in batch] == [[1, 2], [1, 2], [3], [3]]
    assert batch[0].tokens == batch[1].tokens
    own = generate(model, None, [[1, 2]], config=RolloutConfig(max_length=5))
    assert len(own[0].tokens) <= 5
    with pytest.raises(ValueError, match=r"max_length is 99 and config.max_length is 5"):
        generate(model, None, [[1, 2]], max_length=99, config=RolloutConfig(max_length=5))
    with pytest.raises(ValueError, match="needs max_length"):
        generate(model, None, [[1, 2]])


def test_the_global_generator_is_neither_read_nor_moved():
    with engine(toy_model(31, sharpness=0.1)) as rollout:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        first = rollout.generate(request([[1, 2]], n=3))
        assert torch.equal(before, torch.get_rng_state())
        torch.manual_seed(1)
        assert rollout.generate(request([[1, 2]], n=3)) == first


def test_a_penalty_sees_the_record_s_own_tokens_only():
    """Case sampling-06: one row for three records, and three rows for three."""
    model = causal_lm(tiny_model("gpt2"))
    sampling = SamplingConfig(temperature=0.0, repetition_penalty=1.5)
    prompts = [[5, 6, 7, 8], [9], [10, 11]]
    with engine(model, rows=1) as one, engine(model, rows=3, batching="static") as three:
        left, right = (rollout.generate(request(prompts), sampling) for rollout in (one, three))
    assert [record.tokens for record in left] == [record.tokens for record in right]


def test_records_that_ended_at_the_same_poll_survive_an_interrupt():
    """The interrupt comes while the first of four is handed out; the other three are kept all the same."""

    def interrupt(index, record):
        raise KeyboardInterrupt

    with pytest.raises(RolloutInterrupted) as caught:
        engine(forced_model(SCRIPTS), rows=4, poll_every=16).generate(request([[9]] * 4), on_record=interrupt)
    assert [record.response_ids for record in caught.value.batch] == [(5, 6, 4, 0)] * 4


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("out of memory")])
def test_records_that_ended_since_the_last_poll_survive(error):
    model, calls = forced_model(SCRIPTS), []

    def failing(params, chunk, cache):
        calls.append(chunk)
        if len(calls) == 6:
            raise error
        return model.fn(params, chunk, cache)

    rollout = engine(model.__class__(**{**vars(model), "fn": failing}), rows=3, poll_every=64)
    with pytest.raises((RolloutInterrupted, RuntimeError)):
        rollout.generate(request([[9], [7], [8]]))
    assert [(r.prompt_id, r.response_ids, r.reason) for r in rollout.finished] == [
        (0, (5, 6, 4, 0), "eos"),
        (2, (5, 0), "eos"),
    ]


def test_all_prompts_are_checked_before_any_record_is_handed_out():
    seen = []
    with pytest.raises(ValueError, match=r"record 1/0.*99"):
        engine(toy_model(16), max_length=4).generate(
            request([[1] * 9, [99]]), on_record=lambda index, record: seen.append(index)
        )
    assert seen == []
