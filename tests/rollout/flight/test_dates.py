"""A template that writes today's date: what was begun yesterday goes on today as it would have yesterday."""

import datetime
import itertools

import pytest
import torch
from tokenizers import AddedToken
from transformers.utils import chat_template_utils

import fnroll
from fnroll import RolloutBatch, RolloutConfig, RolloutRecord, RolloutRequest
from fnroll.models.chatter import CHATTER_CALLS, CHATTER_TEMPLATE, chatter_tokenizer
from fnroll.testing.scripted import Script, scripted
from tests.rollout.flight.test_turns import STOP, tool
from tests.rollout.scripts import HEADER, encode, ending, outputs_text, prompt_text, results, stop_ids

DATED = (
    "{{ '<|im_start|>system\\nToday is ' + strftime_now('%d %B %Y') + '<|im_end|>\\n' }}" + CHATTER_TEMPLATE
)
# Single tokens, so that there are few places to cut at.
ADD, FAIL = CHATTER_CALLS[0], CHATTER_CALLS[3]
TURNS = ["a" + ADD, FAIL + ADD, "bye"]


def add(a, b):
    return a + b


def tools(add=add):
    return [tool("add", add, a={"type": "integer"}, b={"type": "integer"}), tool("fail", lambda: 1 / 0)]


@pytest.fixture
def clock(monkeypatch):
    """Return the clock that templates read, as a list of one time."""
    now = [datetime.datetime(2026, 7, 31, 23, 59)]

    class Clock(datetime.datetime):
        @classmethod
        def now(cls):
            return now[0]

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    return now


def tomorrow(clock):
    clock[0] += datetime.timedelta(days=1)


def dated_tokenizer(template=DATED):
    used = chatter_tokenizer()
    used.chat_template = template
    return used


def dated_prompt(date="31 July 2026"):
    return f"<|im_start|>system\nToday is {date}<|im_end|>\n" + prompt_text("go")


def make(turns, used, template=DATED, dates=("31 July 2026", "01 August 2026"), **config):
    """Return a rollout of a model that says the same on all the dates."""
    said = tuple(tuple(encode(turn + STOP)) for turn in turns)
    scripts = [Script(tuple(encode(dated_prompt(date))), said) for date in dates]
    model = scripted(scripts, encode(HEADER), vocab_size=len(chatter_tokenizer()) + 1, stop_ids=stop_ids())
    options = {"max_length": 800, "rows": 2, "progress": False, **config}
    return fnroll.Rollout(model, dated_tokenizer(template), RolloutConfig(**options), used)


def request():
    return RolloutRequest([RolloutRecord(messages=[{"role": "user", "content": "go"}], metadata=[1])], 2)


def again(batch):
    return RolloutRequest(batch.records, resume=True)


def through_a_file(batch, folder):
    batch.save(folder / "cut.jsonl")
    return RolloutBatch.load(folder / "cut.jsonl")


@pytest.mark.parametrize(("turns", "used"), [(TURNS, tools()), (["bye"], [])])
def test_a_record_goes_on_after_midnight_wherever_it_was_cut_fresh_06(clock, tmp_path, turns, used):
    with torch.no_grad(), make(turns, used) as rollout:
        whole = rollout.generate(request())
    assert {ending(record) for record in whole} == {("COMPLETED", "eos", len(turns))}
    assert all(record.is_exact for record in whole)
    assert whole[0].tokens[: whole[0].prompt_length] == tuple(encode(dated_prompt()))
    start = clock[0]
    for cut_at in itertools.count(1):
        clock[0] = start
        with torch.no_grad(), make(turns, used) as rollout:
            batch = rollout.generate(request(), max_steps=cut_at)
        tomorrow(clock)
        if not any(record.is_unfinished for record in batch):
            break
        with torch.no_grad(), make(turns, used) as rollout:
            assert rollout.generate(again(through_a_file(batch, tmp_path))) == whole
    assert cut_at > whole[0].num_sampled - 1


def test_a_record_goes_on_over_many_midnights(clock, tmp_path):
    with torch.no_grad(), make(TURNS, tools()) as rollout:
        whole = rollout.generate(request())
    with torch.no_grad(), make(TURNS, tools()) as rollout:
        batch = rollout.generate(request(), max_steps=1)
    while any(record.is_unfinished for record in batch):
        tomorrow(clock)
        with torch.no_grad(), make(TURNS, tools()) as rollout:
            batch = rollout.generate(again(through_a_file(batch, tmp_path)), max_steps=9)
    assert batch == whole


def test_midnight_in_the_middle_of_a_rollout_changes_nothing(clock):
    def late(a, b):
        tomorrow(clock)
        return a + b

    with torch.no_grad(), make(TURNS, tools()) as rollout:
        [whole, _] = rollout.generate(request())
    with torch.no_grad(), make(TURNS, tools(late), rows=1) as rollout:
        [record] = rollout.generate(RolloutRequest(request().records))
    assert record.replace(tool_calls=whole.tool_calls) == whole and results(record) == results(whole)
    assert clock[0].day != 31


def test_an_ended_record_is_rewound_the_next_day(clock, tmp_path):
    with torch.no_grad(), make(TURNS, tools()) as rollout:
        whole = through_a_file(rollout.generate(request()), tmp_path)
    tomorrow(clock)
    for start, stop in whole[0].turns:
        for length in {start + 1, stop, whole[0].prompt_length}:
            with torch.no_grad(), make(TURNS, tools()) as rollout:
                rewound = RolloutBatch((whole[0].rewind(length), whole[1]))
                assert rollout.generate(again(rewound)) == whole


def cut():
    with torch.no_grad(), make(TURNS, tools()) as rollout:
        return rollout.generate(request(), max_steps=2)


TOOL_PART = CHATTER_TEMPLATE.replace("{{ m.role }}", "{{ 'obs' if m.role == 'tool' else m.role }}")
CHANGED = {
    "another chat template": {"template": DATED.replace("Today is ", "Today: ")},
    "another chat template ": {"template": DATED.replace(CHATTER_TEMPLATE, TOOL_PART)},
    "other tools": {"used": tools()[:1]},
}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("is_later", [False, True])
def test_what_would_join_otherwise_is_still_refused(clock, change, is_later):
    batch = cut()
    if is_later:
        tomorrow(clock)
    elif change == "other tools":  # the template does not write them: the prompt and the joins are the same
        return
    message = f"record 0/0 cannot be gone on with:.* begun with {change.strip()}"
    rollout = make(**{"turns": TURNS, "used": tools(), **CHANGED[change]})
    with torch.no_grad(), pytest.raises(ValueError, match=message):
        rollout.generate(again(batch))


def test_other_messages_and_another_tokenizer_are_still_refused(clock):
    batch = cut()
    tomorrow(clock)
    other = [record.replace(messages=[{"role": "user", "content": "no"}]) for record in batch]
    with (
        torch.no_grad(),
        make(TURNS, tools()) as rollout,
        pytest.raises(ValueError, match="tokens are not what its prompt is now; it was begun with other me"),
    ):
        rollout.generate(RolloutRequest(other, resume=True))
    with torch.no_grad(), make(TURNS, tools()) as rollout:
        rollout.tokenizer.backend_tokenizer.add_tokens([AddedToken("Today", normalized=False)])
        with pytest.raises(ValueError, match="it was begun with another tokenizer"):
            rollout.generate(again(batch))
        # Of a record from elsewhere nobody knows what its prompt was made of.
        bare = [record.replace(rendered_from=None) for record in batch]
        with pytest.raises(ValueError, match="begun with another tokenizer, chat template or tools"):
            rollout.generate(RolloutRequest(bare, resume=True))


def test_variables_of_the_header_may_change_and_those_of_a_turn_may_not():
    """A date that the caller gives is a date, too; what stands after a turn is not theirs to change."""
    template = "{{ '<|im_start|>system\\nToday is ' + day + '<|im_end|>\\n' }}" + CHATTER_TEMPLATE.replace(
        "{{ m.role }}", "{{ m.role }}{{ opening if m.role == 'tool' }}"
    )

    def going(batch, steps=None, **variables):
        variables = {"day": "31 July 2026", "opening": "", **variables}
        with torch.no_grad(), make(TURNS, tools(), template, chat_template_kwargs=variables) as rollout:
            return rollout.generate(batch, max_steps=steps)

    batch = going(request(), 2)
    assert going(again(batch), day="01 August 2026") == going(again(batch))
    with pytest.raises(ValueError, match="begun with another chat template"):
        going(again(batch), day="01 August 2026", opening="?")
    assert outputs_text("3") in going(again(batch))[0].response
