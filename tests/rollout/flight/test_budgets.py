"""Budgets of whole rollouts, to the token: which turn is cut, what runs, and what the record says."""

import time

import pytest

import fnroll
from fnroll.models.chatter import chatter_tokenizer
from tests.rollout.flight.test_turns import STOP, tool
from tests.rollout.scripts import (
    call,
    encode,
    ending,
    outputs_text,
    prompt_text,
    results,
    roll,
    roll_one,
    spans,
)

CALL = call("count")
TURN = CALL + STOP
PROMPT, FIRST = len(encode(prompt_text("go"))), len(encode(TURN))
JOIN = len(encode(outputs_text("ok")))


def run(turns=(CALL, CALL, CALL, "bye"), output="ok", **options):
    """Return the record of a script and how often its tool ran."""
    ran = []
    record = roll_one(list(turns), [tool("count", lambda: ran.append(1) or output)], **options)
    return record, len(ran)


def is_prefix(record, *parts):
    """Assert that the record is the beginning of what the script gives without any budget."""
    tokens, mask = spans("go", *parts)
    count = len(record.tokens)
    assert (list(record.tokens), list(record.loss_mask)) == (tokens[:count], mask[:count])
    return True


EVERYTHING = [TURN, outputs_text("ok"), TURN, outputs_text("ok"), TURN, outputs_text("ok"), "bye" + STOP]


@pytest.mark.parametrize("batching", ["continuous", "static"])
@pytest.mark.parametrize(
    ("turn", "budget", "expected"),
    [
        ("abc", 4, ("COMPLETED", "eos", "abc" + STOP)),  # the EOS is the very last token allowed
        ("", 4, ("COMPLETED", "eos", STOP)),  # the EOS is the first token
        ("abc", 3, ("TRUNCATED", "length", "abc")),  # the budget ends one token before the EOS
        ("abc", 2, ("TRUNCATED", "length", "ab")),
        ("abc", 1, ("TRUNCATED", "length", "a")),
    ],
)
def test_the_ending_eos_is_kept_and_told_apart_from_a_cut(turn, budget, expected, batching):
    """Case eos-02 a), b), c), e): its row stays in the batch between polls, and nothing follows its EOS."""
    scripts = {"go": [turn], "so": ["a long answer that goes on"]}
    capped = PROMPT + budget
    options = {"multi_turn": True, "batching": batching, "poll_every": 3}
    for sampling, length in (({"max_new_tokens": budget}, 500), ({}, capped)):
        record = roll(scripts, sampling=sampling, max_length=length, **options)["go"]
        assert (str(record.status), str(record.reason)) == expected[:2]
        assert (list(record.tokens), list(record.loss_mask)) == spans("go", expected[2])
        assert all(log_prob == 0.0 for log_prob in record.log_probs)  # certain tokens, the EOS too


@pytest.mark.parametrize("max_turns", [1, 2, 3])
def test_a_tool_wanted_in_the_last_turn_does_not_run(max_turns):
    """Case eos-02 d): the record is TRUNCATED, never COMPLETED."""
    record, ran = run(max_turns=max_turns)
    assert (ending(record), ran) == (("TRUNCATED", "max_turns", max_turns), max_turns - 1)
    assert list(record.tokens) == spans("go", *EVERYTHING[: 2 * max_turns - 1])[0]


def test_an_answer_in_the_last_turn_completes():
    record, ran = run(turns=[CALL, "bye"], max_turns=2)
    assert (ending(record), ran) == (("COMPLETED", "eos", 2), 1)


@pytest.mark.parametrize("value", [0, -1, True, 2.5, "2"])
def test_max_turns_must_be_a_positive_int(value):
    """Case budget-04: no number of turns that is none."""
    with pytest.raises(ValueError, match=r"RolloutConfig\.max_turns is .* an int of at least 1"):
        fnroll.RolloutConfig(max_length=8, max_turns=value)


@pytest.mark.parametrize("missing", [1, 2, 15])
def test_a_cut_turn_runs_no_tool_in_turn_1(missing):
    """Case budget-04: also when the call is complete and only the stop id is missing."""
    count = FIRST - missing
    for options, reason in (
        ({"sampling": {"max_new_tokens": count}}, "length"),
        ({"max_length": PROMPT + count}, "length"),
        ({"sampling": {"max_new_tokens_per_turn": count}}, "turn_length"),
    ):
        record, ran = run(**options)
        assert (ending(record), ran) == (("TRUNCATED", reason, 1), 0)
        assert len(record.tokens) == PROMPT + count and is_prefix(record, *EVERYTHING)


@pytest.mark.parametrize("missing", [1, 2, 15])
def test_a_cut_turn_runs_no_tool_in_turn_2(missing):
    count = FIRST - missing
    turns, whole = [call("count"), CALL + "  "], [TURN, outputs_text("ok"), CALL + "  " + STOP]
    for options, reason, length in (
        ({"sampling": {"max_new_tokens": FIRST + count}}, "length", count),
        ({"max_length": PROMPT + FIRST + JOIN + count}, "length", count),
        ({"sampling": {"max_new_tokens_per_turn": FIRST}}, "turn_length", FIRST),
    ):
        record, ran = run(turns=turns, **options)
        assert (ending(record), ran) == (("TRUNCATED", reason, 2), 1)
        assert len(record.tokens) == PROMPT + FIRST + JOIN + length and is_prefix(record, *whole)


def test_a_cut_turn_with_complete_and_cut_calls_executes_nothing():
    """Case budget-04."""
    record, ran = run(turns=[CALL * 3], sampling={"max_new_tokens": 2 * len(encode(CALL)) + 10})
    assert (ending(record), ran) == (("TRUNCATED", "length", 1), 0)


def test_a_final_answer_that_exactly_fills_the_cap_completes():
    length = PROMPT + FIRST + JOIN + len("bye") + 1
    record, _ = run(turns=[CALL, "bye"], max_length=length)
    assert (ending(record), len(record.tokens)) == (("COMPLETED", "eos", 2), length)
    sampled = FIRST + len("bye") + 1
    record, _ = run(turns=[CALL, "bye"], sampling={"max_new_tokens": sampled})
    assert (ending(record), record.num_sampled) == (("COMPLETED", "eos", 2), sampled)


def test_max_new_tokens_counts_sampled_tokens_over_all_turns():
    for most in range(2 * FIRST, 2 * FIRST + 4):
        record, ran = run(output="x" * 50, sampling={"max_new_tokens": most})
        assert (record.num_sampled, str(record.reason)) == (most, "length")
        # A budget that the calls themselves exhaust leaves nobody to read the answer.
        assert ran == (1 if most == 2 * FIRST else 2)


def test_a_tool_output_that_does_not_fit_is_dropped_whole():
    """Case budget-03: with a token to sample after it, or not at all."""
    fits = PROMPT + FIRST + JOIN + 1
    record, ran = run(max_length=fits)
    assert (ending(record), len(record.tokens), ran) == (("TRUNCATED", "length", 2), fits, 1)
    for length in (fits - 1, fits - 2, PROMPT + FIRST + 2):
        record, ran = run(max_length=length)
        assert (ending(record), ran) == (("TRUNCATED", "tool_output", 1), 1)
        assert (list(record.tokens), list(record.loss_mask)) == spans("go", TURN)


@pytest.mark.parametrize("room", [0, 1])
def test_a_tool_does_not_run_where_nothing_it_says_could_be_read(room):
    record, ran = run(max_length=PROMPT + FIRST + room)
    assert (ending(record), ran) == (("TRUNCATED", "tool_output", 1), 0)


def test_an_output_that_fits_in_characters_but_not_in_tokens_is_dropped():
    """Case budget-03: 512 emoji are 2048 tokens here, and combining marks and CRLF are not split."""
    record, _ = run(output="🌸" * 512, sampling={"max_tool_output_chars": 512}, max_length=1500)
    assert (ending(record), record.num_tool_outputs_truncated) == (("TRUNCATED", "tool_output", 1), 0)
    record, _ = run(turns=[CALL, "bye"], output="🌸" * 513, sampling={"max_tool_output_chars": 100})
    assert results(record) == [("🌸" * 86 + "...(truncated)", "ok")]
    assert (ending(record), record.num_tool_outputs_truncated) == (("COMPLETED", "eos", 2), 1)
    text = "e\u0301\r\n" * 20
    record, _ = run(turns=[CALL, "bye"], output=text, sampling={"max_tool_output_chars": 3})
    assert results(record) == [("e\u0301", "ok")]


THREE_LINES = "compiling\nlinking\nerror: no such file"


@pytest.mark.parametrize(
    ("chars", "keep", "text", "cut"),
    [
        (32, "start", "compiling\nlinking\n...(truncated)", 1),
        (32, "end", "...(truncated)rror: no such file", 1),
        (32, "both", "compiling...(truncated)such file", 1),
        (len(THREE_LINES), "end", THREE_LINES, 0),
        (0, "both", "", 1),
        (1, "start", "c", 1),
        (1, "end", "e", 1),
    ],
)
def test_the_named_end_of_a_tool_output_is_kept_and_counted(chars, keep, text, cut):
    """Case budget-03: every output is cut by itself, errors too, before the template sees it."""
    sampling = {"max_tool_output_chars": chars, "tool_output_keep": keep}
    record, _ = run(turns=[CALL + CALL, "bye"], output=THREE_LINES, sampling=sampling)
    assert results(record) == [(text, "ok")] * 2
    assert record.num_tool_outputs_truncated == 2 * cut
    assert list(record.tokens) == spans("go", CALL + TURN, outputs_text(text, text), "bye" + STOP)[0]


@pytest.mark.parametrize(
    "text", ["x" * 10_000_000, "a b " * 2_500_000, "<|im_end|>" * 1_000_000, "🌸" * 10**6]
)
def test_ten_megabytes_of_tool_output_stall_nothing(text):
    """Case budget-03: no walk through all of it with a limit, and none without."""
    for sampling, expected in (
        ({"max_tool_output_chars": 100}, ("COMPLETED", "eos", 2)),
        ({}, ("TRUNCATED", "tool_output", 1)),
    ):
        start = time.monotonic()
        record, ran = run(turns=[CALL, "bye"], output=text, sampling=sampling)
        assert time.monotonic() - start < 3
        assert (ending(record), ran) == (expected, 1)
        assert record.num_tool_outputs_truncated == len(sampling)


def test_many_outputs_that_are_huge_only_together_stall_nothing():
    start = time.monotonic()
    record, ran = run(turns=[CALL * 20, "bye"], output="y " * 250_000, tokens=flood(20))
    assert time.monotonic() - start < 3
    assert (ending(record), ran) == (("TRUNCATED", "tool_output", 1), 20)


def flood(count):
    """Return a tokenizer in which one token spells many calls, so that the turn costs no time."""
    used = chatter_tokenizer()
    used.add_tokens([CALL * count])
    return used


def test_a_flood_of_calls_in_one_turn_ends_soon_and_says_so():
    """Case budget-04: 3000 calls."""
    used, count = flood(3000), 3000
    records = []
    for _ in range(2):
        start = time.monotonic()
        record, ran = run(turns=[CALL * count, "bye"], tokens=used)
        assert time.monotonic() - start < 3
        assert (ending(record), ran) == (("COMPLETED", "eos", 2), 64)
        records.append(record)
    assert records[0] == records[1]
    answers = [*["ok"] * 64, "Error: a turn may make at most 64 tool calls; the other 2936 were not run."]
    assert [text for text, _ in results(records[0])] == answers
    assert encode(outputs_text(*answers)) == list(records[0].response_ids[2:-4])


def test_a_flood_of_calls_without_a_limit_ends_at_the_cap():
    """Case budget-04: the tools run, and what they say is dropped whole."""
    start = time.monotonic()
    record, ran = run(turns=[CALL * 3000, "bye"], tokens=flood(3000), max_calls_per_turn=None)
    assert time.monotonic() - start < 10
    assert (ending(record), ran) == (("TRUNCATED", "tool_output", 1), 3000)
    assert len(record.response_ids) == 2


@pytest.mark.parametrize("most", [1, 2, 3])
def test_calls_above_the_limit_of_a_turn_get_one_answer(most):
    record, ran = run(turns=[CALL * 3, CALL, "bye"], max_calls_per_turn=most)
    told = f"Error: a turn may make at most {most} tool calls; the other {3 - most} were not run."
    answers = ["ok"] * most + [told] * (most < 3)
    assert ([text for text, _ in results(record)], ran) == ([*answers, "ok"], most + 1)
    assert (
        list(record.tokens)
        == spans("go", CALL * 2 + TURN, outputs_text(*answers), TURN, outputs_text("ok"), "bye" + STOP)[0]
    )


def test_a_model_that_calls_for_ever_is_ended_by_max_turns():
    """Case budget-04."""
    start = time.monotonic()
    record, ran = run(turns=[CALL] * 50, tokens=flood(1), max_length=2000)
    assert (ending(record), ran) == (("TRUNCATED", "max_turns", 16), 15)
    assert time.monotonic() - start < 3
