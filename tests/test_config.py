"""Every bad value is refused when the object is made, in a sentence: field, value, what is allowed."""

import math

import pytest

from fnroll import RolloutConfig, RolloutRecord, RolloutRequest, SamplingConfig

NOT_INTS = (True, 2.5, "3", None, [1])
NOT_NUMBERS = (True, "1", None, math.nan, math.inf, -math.inf, 10**400, 1j)


def cases(*rows):
    """One case for each of a field's bad values: field, value, a part of what is allowed."""
    return [
        pytest.param(field, value, allowed, id=f"{field}={str(value)[:12]}")
        for field, values, allowed in rows
        for value in values
    ]


def without(values, *dropped):
    return tuple(value for value in values if value not in dropped)


def assert_names(error, owner, field, value, allowed):
    message = str(error.value)
    assert f"{owner}.{field} is {value!r}" in message and "must be" in message and allowed in message


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    cases(
        ("temperature", (-0.1, -1, *NOT_NUMBERS), "a finite number at least 0"),
        ("top_k", (-1, *NOT_INTS), "an int of at least 0"),
        ("top_p", (0, 0.0, -0.5, 1.0001, 2, *NOT_NUMBERS), "above 0 and at most 1"),
        (
            "repetition_penalty",
            (0, -1.0, 1e-31, 1e31, *without(NOT_NUMBERS, None)),
            "at least 1e-30 and at most 1e+30, or None",
        ),
        ("max_new_tokens", (0, -1, *without(NOT_INTS, None)), "at least 1, or None"),
        ("max_new_tokens_per_turn", (0, -1, *without(NOT_INTS, None)), "at least 1, or None"),
        ("max_tool_output_chars", (-1, *without(NOT_INTS, None)), "at least 0, or None"),
        ("tool_output_keep", ("middle", "", "START", None, 1, ["start"]), "one of 'start', 'end', 'both'"),
    ),
)
def test_sampling(field, value, allowed):
    """Case sampling-01: what no distribution comes of is refused when the configuration is made."""
    with pytest.raises(ValueError) as error:
        SamplingConfig(**{field: value})
    assert_names(error, "SamplingConfig", field, value, allowed)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1e-38, "top_p": 1, "top_k": 0},
        {"top_p": 1e-9, "top_k": 2**70},
        {"repetition_penalty": 0.1, "max_new_tokens": 1, "max_new_tokens_per_turn": 1},
        {"max_tool_output_chars": 0, "tool_output_keep": "both"},
    ],
)
def test_sampling_at_its_edges_is_allowed(fields):
    config = SamplingConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    cases(
        ("max_length", (1, 0, -4, *NOT_INTS), "an int of at least 2"),
        ("rows", (0, -1, *NOT_INTS), "an int of at least 1"),
        ("batching", ("dynamic", "", None, 1), "one of 'continuous', 'static'"),
        ("backend", ("inductor", None, True), "one of 'eager', 'compiled'"),
        ("multi_turn", (1, 0, "yes"), "True or False, or None"),
        ("max_turns", (0, -1, *NOT_INTS), "an int of at least 1"),
        ("tool_call_parser", ("", None, 3), "the name of a parser, or 'auto'"),
        ("chat_template_kwargs", (None, [("a", 1)], "a"), "a mapping"),
        ("returning", ("first", "", None, 1), "one of 'front', 'back'"),
        ("poll_every", (0, -1, *NOT_INTS), "an int of at least 1"),
        ("pool", (-1, True, 2.5, [1]), "an int of at least 0, or None"),
        ("pool", ("3", "GB", "", "2 cows"), "slots as an int, or a size such as '2GB' or '512MiB', or None"),
        ("share_prefixes", (1, "yes", None), "True or False"),
        ("wait_for_tools", (1, "yes", None), "True or False"),
        ("tool_timeout_s", (0, -1.0, *without(NOT_NUMBERS, None)), "above 0, or None"),
        ("max_concurrent_tools", (0, -1, *NOT_INTS), "an int of at least 1"),
        ("return_log_probs", (None, 1, "no"), "True or False"),
        ("progress", (1, "no"), "True or False, or None"),
        ("allow_control_tokens", (1, None), "True or False"),
        ("log", (1, b"a", ""), "a path"),
        ("replay", (1, b"a", ""), "a path"),
    ),
)
def test_rollout(field, value, allowed):
    with pytest.raises(ValueError) as error:
        RolloutConfig(**{"max_length": 8, field: value})
    assert_names(error, "RolloutConfig", field, value, allowed)


def test_max_length_is_required_and_a_misspelt_field_is_refused():
    with pytest.raises(TypeError, match="max_length"):
        RolloutConfig()
    with pytest.raises(TypeError, match="temprature"):
        SamplingConfig(temprature=1.0)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    cases(
        ("n", (0, -1, *NOT_INTS), "an int of at least 1"),
        ("resume", (None, 1, "no"), "True or False"),
        ("records", (None, 7), "a sequence of RolloutRecords"),
    ),
)
def test_request(field, value, allowed):
    with pytest.raises(ValueError) as error:
        RolloutRequest(**{"records": [RolloutRecord(prompt_ids=[1])], field: value})
    assert_names(error, "RolloutRequest", field, value, allowed)


def test_a_request_names_the_record_that_is_none():
    good = RolloutRecord(prompt_ids=[1])
    with pytest.raises(ValueError, match=r"records\[1\] is a list; it must be a RolloutRecord"):
        RolloutRequest([good, [1, 2]])
    rolled = good.replace(tokens=(1, 2), prompt_length=1, status="COMPLETED")
    with pytest.raises(
        ValueError, match=r"records\[1\] already holds a rollout \(status COMPLETED\).*resume"
    ):
        RolloutRequest([good, rolled])
    assert RolloutRequest([good, rolled], resume=True).n == 1


def test_a_request_keeps_what_a_generator_gives():
    request = RolloutRequest(RolloutRecord(prompt_ids=[i]) for i in range(3))
    assert len(request.records) == len(request.expand()) == 3


def test_two_records_of_one_identity_are_refused():
    records = [RolloutRecord(prompt_ids=[1], prompt_id="a"), RolloutRecord(prompt_ids=[2], prompt_id="a")]
    with pytest.raises(ValueError, match=r"records 0 and 2 both are prompt_id 'a', sample 0.*same noise"):
        RolloutRequest(records, n=2).expand()


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    cases(
        ("sample", (-1, *without(NOT_INTS, None)), "an int of at least 0"),
        ("prompt_id", (True, 1.5, [1]), "an int or a str"),
        ("group", (True, 1.5, "a"), "an int"),
        ("status", ("DONE", "completed", 1), "'WAITING', 'COMPLETED', 'TRUNCATED', 'FAILED'"),
        ("reason", ("stop", 1), "one of 'eos'"),
        ("num_turns", (-1, *NOT_INTS), "an int of at least 0"),
        ("num_tool_outputs_truncated", (-1, *NOT_INTS), "an int of at least 0"),
        ("reward", ("1", [1.0]), "a number"),
    ),
)
def test_record(field, value, allowed):
    with pytest.raises(ValueError) as error:
        RolloutRecord(**{"prompt_ids": [1], field: value})
    assert_names(error, "RolloutRecord", field, value, allowed)


@pytest.mark.parametrize("messages", ["hello", [1], ["hello"], {"role": "user"}, 3])
def test_messages_are_a_list_of_mappings(messages):
    with pytest.raises(ValueError, match=r"RolloutRecord\.messages is .*must be a list of messages"):
        RolloutRecord(messages=messages)


@pytest.mark.parametrize("ids", ["12", 3, {1: 2}])
def test_prompt_ids_are_a_list(ids):
    with pytest.raises(ValueError, match=r"RolloutRecord\.prompt_ids is .*must be a list of ids"):
        RolloutRecord(prompt_ids=ids)


def test_a_record_needs_one_prompt():
    with pytest.raises(ValueError, match="needs either messages or prompt_ids, neither given"):
        RolloutRecord()
    with pytest.raises(ValueError, match=r"record q/2.*needs either messages or prompt_ids, both given"):
        RolloutRecord(messages=[{"role": "user"}], prompt_ids=[1], prompt_id="q", sample=2)


ROLLED = {
    "prompt_ids": [1, 2],
    "prompt_id": 7,
    "tokens": (1, 2, 3),
    "prompt_length": 2,
    "loss_mask": (False, False, True),
    "log_probs": (0.0, 0.0, -1.0),
    "weight_versions": (-1, -1, 0),
}


@pytest.mark.parametrize("name", ["tokens", "loss_mask", "log_probs", "weight_versions"])
@pytest.mark.parametrize("change", [lambda values: values[:-1], lambda values: (*values, values[-1])])
def test_fields_of_a_record_that_got_out_of_step(name, change):
    """Case logprob-03: never padded, never shortened; the record is named."""
    RolloutRecord(**ROLLED)
    with pytest.raises(ValueError, match=rf"record 7/0: .*differ in length: .*{name} [24]"):
        RolloutRecord(**{**ROLLED, name: change(ROLLED[name])})


@pytest.mark.parametrize("length", [-1, 4, True, 1.5])
def test_a_prompt_is_no_longer_than_its_record(length):
    with pytest.raises(ValueError, match=r"RolloutRecord\.prompt_length is .*must be an int from 0 to 3"):
        RolloutRecord(**{**ROLLED, "prompt_length": length})


@pytest.mark.parametrize("prompts", ["hello", 5, None])
def test_prompts_of_the_one_liner_are_a_list(prompts):
    from fnroll import generate
    from fnroll.models import toy_model

    with pytest.raises(ValueError, match=r"prompts is .*must be a list of prompts"):
        generate(toy_model(), None, prompts, max_length=8)


@pytest.mark.parametrize("prompt", ["", 5, None, [1, "a"], [{"role": "user"}, 3]])
def test_a_prompt_of_the_one_liner_is_text_messages_or_ids(prompt):
    from fnroll import generate
    from fnroll.models import toy_model

    with pytest.raises(ValueError, match="a prompt is"):
        generate(toy_model(), None, [prompt], max_length=8)


@pytest.mark.parametrize("field", ["seed", "step"])
@pytest.mark.parametrize("value", [-1, True, 1.5, "0", None])
def test_seed_and_step(field, value):
    from fnroll.models import toy_model
    from fnroll.rollout.rollout import Rollout

    with Rollout(toy_model(), None, RolloutConfig(max_length=8)) as rollout:
        with pytest.raises(ValueError) as error:
            rollout.generate(RolloutRequest([RolloutRecord(prompt_ids=[1])]), **{field: value})
        assert_names(error, "generate", field, value, "an int of at least 0")
