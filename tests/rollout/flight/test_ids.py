"""The ids of calls: what the model wrote is what its tool messages carry."""

import pytest
import torch

import fnroll
from fnroll import RolloutRecord, RolloutRequest
from fnroll.models.chatter import CHATTER_TEMPLATE, chatter_tokenizer
from fnroll.rollout.flight.join import call_ids
from tests.rollout.flight.test_turns import STOP, echo
from tests.rollout.scripts import encode, make, plain, request, roll_one

# As in Kimi K2: a tool message names the call that it answers.
RETURNS = CHATTER_TEMPLATE.replace(
    "{{ m.content }}",
    "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}",
)
# As in Mistral's templates: any other id is refused.
NINE = RETURNS.replace(
    "## Return of",
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}## Return of",
)


def spelling(template):
    used = chatter_tokenizer()
    used.chat_template = template
    return used


def kimi(identity, text, arguments=None):
    body = f'{{"text": "{text}"}}' if arguments is None else arguments
    return f"<|tool_call_begin|>{identity}<|tool_call_argument_begin|>{body}<|tool_call_end|>"


def array(*pairs):
    calls = (f'{{"name": "echo", "arguments": {{"text": "{text}"}}, "id": "{own}"}}' for own, text in pairs)
    return f"[TOOL_CALLS][{', '.join(calls)}]"


def compact(identity, text):
    return f'[TOOL_CALLS]echo[CALL_ID]{identity}[ARGS]{{"text": "{text}"}}'


def returns(record):
    """The ids that the tool messages carry, in order."""
    lines = record.response.split("## Return of ")[1:]
    return [line.split("\n")[0] for line in lines]


def ids(record):
    return [call.get("id") for call in record.tool_calls]


def run(turn, parser, template=RETURNS, **options):
    turns = [turn] if isinstance(turn, str) else turn
    return roll_one([*turns, "bye"], [echo()], tokens=spelling(template), tool_call_parser=parser, **options)


@pytest.mark.parametrize(
    ("parser", "template", "turn", "written"),
    [
        ("kimi", RETURNS, kimi("functions.echo:0", "a"), ["functions.echo:0"]),
        (
            "kimi",
            RETURNS,
            kimi("functions.echo:0", "a") + kimi("functions.echo:1", "b"),
            ["functions.echo:0", "functions.echo:1"],
        ),
        ("kimi", RETURNS, kimi("echo", "a"), ["echo"]),
        ("mistral", NINE, array(("VvvODy9mT", "a")), ["VvvODy9mT"]),
        ("mistral", NINE, array(("VvvODy9mT", "a"), ("000000001", "b")), ["VvvODy9mT", "000000001"]),
        ("mistral", NINE, compact("VvvODy9mT", "a"), ["VvvODy9mT"]),
        (
            "mistral",
            NINE,
            compact("VvvODy9mT", "a") + compact("aaaaaaaaa", "b"),
            ["VvvODy9mT", "aaaaaaaaa"],
        ),
    ],
)
def test_a_tool_message_carries_the_id_that_the_model_wrote(parser, template, turn, written):
    """Case fresh-05."""
    record = run(turn, parser, template)
    assert returns(record) == ids(record) == written
    assert [call["status"] for call in record.tool_calls] == ["ok"] * len(written)


def test_ids_of_several_turns_are_each_turns_own():
    """Case fresh-05: models begin to count anew in each turn."""
    record = run([kimi("functions.echo:0", "a"), kimi("functions.echo:0", "b")], "kimi")
    assert returns(record) == ids(record) == ["functions.echo:0"] * 2


def test_an_id_is_invented_only_where_none_was_written():
    """Case fresh-05."""
    turn = '[TOOL_CALLS]echo[ARGS]{"text": "a"}' + compact("VvvODy9mT", "b")
    record = run(turn, "mistral", NINE)
    assert returns(record) == ["c00000000", "VvvODy9mT"]
    assert ids(record) == [None, "VvvODy9mT"] and "id" not in record.tool_calls[0]


def test_a_broken_call_is_answered_under_its_own_id():
    """Case fresh-05."""
    turn = kimi("functions.echo:0", "", "{oops") + kimi("functions.echo:1", "b")
    record = run(turn, "kimi")
    assert returns(record) == ids(record) == ["functions.echo:0", "functions.echo:1"]
    assert [call["status"] for call in record.tool_calls] == ["parse_error", "ok"]


def test_ids_that_a_template_refuses_are_replaced_and_the_record_goes_on():
    """Case fresh-05: eight letters where the template wants nine; the record still says what was written."""
    record = run(array(("VvvODy9m", "a"), ("VvvODy9mT", "b")), "mistral", NINE)
    assert returns(record) == ["c00000000", "c00000001"]
    assert ids(record) == ["VvvODy9m", "VvvODy9mT"]
    assert record.num_turns == 2


def test_markup_in_an_id_is_data():
    """Case fresh-05: an id is text of the model in a message of ours."""
    [end] = encode(STOP)
    record = roll_one(
        [[*plain(kimi(f"echo{STOP}", "a")), end], "bye"],
        [echo()],
        tokens=spelling(RETURNS),
        tool_call_parser="kimi",
    )
    # Of the prompt, of both turns, of the tool message; none that the id spells.
    assert sum(token == end for token in record.tokens) == 4
    assert ids(record) == [f"echo{STOP}"]


@pytest.mark.parametrize(
    ("written", "given"),
    [
        (["a", "a"], ["a", "c00000001"]),
        (["a", "a", "a"], ["a", "c00000001", "c00000002"]),
        ([None, None], ["c00000000", "c00000001"]),
        ([None, "c00000000"], ["c00000001", "c00000000"]),
        (["c00000001", "c00000001"], ["c00000001", "c00000002"]),
        ([None, "c00000001", "c00000000", None], ["c00000002", "c00000001", "c00000000", "c00000003"]),
        ([], []),
    ],
)
def test_calls_of_a_turn_have_different_ids(written, given):
    """Case fresh-05: templates pair calls and outputs by their ids."""
    assert call_ids(0, written) == given


def test_many_calls_have_different_ids():
    given = call_ids(3, [None] * 20_001)
    assert len(set(given)) == 20_001 and {len(own) for own in given} == {9}
    assert given[:2] == ["c00030000", "c00030001"]


def test_a_double_id_is_written_once():
    record = run(kimi("functions.echo:0", "a") + kimi("functions.echo:0", "b"), "kimi")
    assert returns(record) == ["functions.echo:0", "c00000001"]
    assert [call["result"] for call in record.tool_calls] == ["a", "b"]


TURNS = [
    kimi("functions.echo:0", "a") + kimi("functions.echo:0", "b") + kimi("functions.echo:1", "", "{"),
    kimi("functions.echo:2", "c"),
    "bye",
]


def unfinished(rollout, steps):
    with torch.no_grad():
        [cut] = rollout.generate(request({"go": TURNS}), max_steps=steps)
    return RolloutRecord.from_dict(cut.to_dict())


@pytest.mark.parametrize("part", [0.8, 0.97])
def test_a_resumed_record_is_joined_with_the_ids_that_it_was_begun_with(part):
    """Case fresh-05."""
    config = {"tokens": spelling(RETURNS), "tool_call_parser": "kimi"}
    with torch.no_grad(), make({"go": TURNS}, [echo()], **config) as rollout:
        [whole] = rollout.generate(request({"go": TURNS}))
        cut = unfinished(rollout, int(part * sum(whole.loss_mask)))
        assert cut.is_unfinished and ids(cut)[:3] == ["functions.echo:0"] * 2 + ["functions.echo:1"]
        [resumed] = rollout.generate(RolloutRequest((cut,), resume=True))
    assert resumed == whole


def test_a_record_without_ids_is_joined_with_invented_ones():
    """Case fresh-05: a record of before, when ids were always invented."""
    turns = ['[TOOL_CALLS]echo[ARGS]{"text": "a"}', "bye, and a long one"]
    config = {"tokens": spelling(RETURNS), "tool_call_parser": "mistral"}
    with torch.no_grad(), make({"go": turns}, [echo()], **config) as rollout:
        [whole] = rollout.generate(request({"go": turns}))
        [cut] = rollout.generate(request({"go": turns}), max_steps=sum(whole.loss_mask) - 5)
        assert cut.tool_calls and not any("id" in call for call in cut.tool_calls)
        [resumed] = rollout.generate(RolloutRequest((cut,), resume=True))
    assert resumed == whole and returns(whole) == ["c00000000"]


def test_a_record_with_another_id_is_refused():
    """Case fresh-05: the id is part of what the template wrote."""
    config = {"tokens": spelling(RETURNS), "tool_call_parser": "kimi"}
    with torch.no_grad(), make({"go": TURNS}, [echo()], **config) as rollout:
        [whole] = rollout.generate(request({"go": TURNS}))
        cut = unfinished(rollout, int(0.9 * sum(whole.loss_mask)))
        calls = tuple({**call, "id": "other"} for call in cut.tool_calls)
        with pytest.raises(ValueError, match="not what the chat template writes for the tool calls"):
            rollout.generate(RolloutRequest((cut.replace(tool_calls=calls),), resume=True))


def test_the_public_type_names_the_id():
    call = fnroll.ToolCall("f", {}, (0, 1))
    assert call.id is None and fnroll.ToolCall("f", {}, (0, 1), "x").id == "x"
