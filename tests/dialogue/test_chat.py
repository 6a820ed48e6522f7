"""Joined ids against a render of the whole conversation, over templates, tokenizers and ends of turns."""

import dataclasses
import itertools

import pytest

from fnroll.dialogue.chat import init_chat
from tests.dialogue import templates, vocabularies
from tests.dialogue.templates import APPEND_ONLY

QUESTION = [{"role": "user", "content": "What is the weather?"}]
TOKENIZERS = {
    "bpe": vocabularies.init_bpe,
    "stripping": lambda template: vocabularies.init_bpe(template, strips=True),
    "llama": vocabularies.init_llama,
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def tool_messages(count, first=0):
    return [
        {"role": "tool", "content": f"result {first + i}: 21 degrees", "name": "add"} for i in range(count)
    ]


def render(tokenizer, messages, header=True, **options):
    return tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=False, add_generation_prompt=header, **options
    )


def init(template="grouped", tokenizer="bpe", other="<|endoftext|>", **options):
    """Return a chat, its tokenizer, the template's own stop id and another one."""
    source, stop = APPEND_ONLY[template]
    tokenizer = TOKENIZERS[tokenizer](source)
    own, other = tokenizer.convert_tokens_to_ids(stop), tokenizer.convert_tokens_to_ids(other)
    return init_chat(tokenizer, stop_ids=(own, other), **options), tokenizer, own, other


def turn_of(template, text):
    """Return the text a model would sample for a turn, the turn's message, and its calls."""
    if template == "needs_calls":
        call = {"name": "add", "arguments": {"a": 1}}
        message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
        return '<tool_call>add {"a": 1}</tool_call>', message, [call]
    return text + "\n" * (template == "gap"), {"role": "assistant", "content": text}, []


def sample(tokenizer, segment_text, ids, text):
    """Return the canonical ids of a turn's text, and of a stop token spelled in it, after a prompt."""
    whole = tokenizer.encode(segment_text + text, add_special_tokens=False)
    assert whole[: len(ids)] == list(ids)
    return whole[len(ids) :]


# Case template-03: each template's habits, one and two tool messages, every way a turn can end.
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("template", APPEND_ONLY)
def test_joined_ids_are_the_full_render(template, count, tokenizer):
    chat, tokenizer, own, _ = init(template, tokenizer)
    segment = chat.render_prompt(QUESTION)
    messages, record, text = list(QUESTION), list(segment.ids), segment.text
    assert record == render(tokenizer, messages)
    for turn in range(3):
        sampled_text, message, calls = turn_of(template, f"hello {turn}")
        sampled = sample(tokenizer, text, record, sampled_text + tokenizer.decode([own]))
        assert sampled[-1] == own
        following = tool_messages(count, turn)
        segment = chat.continue_turn(segment.messages, sampled, following, calls)
        messages += [message, *following]
        record += [*sampled, *segment.ids]
        assert record == render(tokenizer, messages)
        # A stop token that swallows the line end before it leaves a text that the template would not write.
        assert segment.is_exact == (chat.turn_text(sampled) == sampled_text)
        assert segment.text.endswith(segment.prefix)
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("template", APPEND_ONLY)
def test_turn_ended_by_another_stop_id_gets_the_whole_end_of_turn(template, count, tokenizer):
    chat, tokenizer, own, other = init(template, tokenizer)
    prompt = chat.render_prompt(QUESTION)
    sampled_text, _, calls = turn_of(template, "hello")
    body = sample(tokenizer, prompt.text, prompt.ids, sampled_text)
    following = tool_messages(count)
    on_own = chat.continue_turn(prompt.messages, [*body, own], following, calls)
    on_other = chat.continue_turn(prompt.messages, [*body, other], following, calls)
    assert on_other.ids == (own, *on_own.ids)
    assert not on_other.is_exact


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("template", APPEND_ONLY)
def test_turn_ended_by_budget_gets_the_whole_end_of_turn(template, count, tokenizer):
    chat, tokenizer, _, _ = init(template, tokenizer)
    prompt = chat.render_prompt(QUESTION)
    sampled_text, message, calls = turn_of(template, "hello")
    sampled = sample(tokenizer, prompt.text, prompt.ids, sampled_text.rstrip("\n"))
    following = tool_messages(count)
    segment = chat.continue_turn(prompt.messages, sampled, following, calls)
    assert [*prompt.ids, *sampled, *segment.ids] == render(tokenizer, [*QUESTION, message, *following])
    assert segment.is_exact


def test_slow_byte_tokenizer_joins_exactly():
    tokenizer = vocabularies.init_bytes(templates.GROUPED)
    own = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = init_chat(tokenizer, stop_ids=[own])
    prompt = chat.render_prompt(QUESTION)
    sampled = [*tokenizer.encode("hi 🌸", add_special_tokens=False), own]
    following = [{"role": "tool", "content": "🌸 21"}, {"role": "tool", "content": ""}]
    segment = chat.continue_turn(prompt.messages, sampled, following)
    whole = [*QUESTION, {"role": "assistant", "content": "hi 🌸"}, *following]
    assert [*prompt.ids, *sampled, *segment.ids] == render(tokenizer, whole)


def test_separator_and_tool_group_c1():
    chat, tokenizer, own, _ = init("grouped")
    prompt = chat.render_prompt(QUESTION)
    segment = chat.continue_turn(prompt.messages, [own], tool_messages(2))
    assert tokenizer.convert_ids_to_tokens(segment.ids[0]) == "Ċ"
    assert segment.text.count("<|im_start|>user") == 1
    assert segment.text.count("<tool_response>") == 2
    assert segment.text == (
        "\n<|im_start|>user"
        "\n<tool_response>\nresult 0: 21 degrees\n</tool_response>"
        "\n<tool_response>\nresult 1: 21 degrees\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_sampled_ids_are_never_encoded_again_c2():
    tokenizer = vocabularies.init_ambiguous(templates.CHATML)
    start, own = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    pieces = tokenizer.convert_tokens_to_ids(["he", "ll", "o"])
    canonical = tokenizer.encode("hello")
    assert canonical != pieces and tokenizer.decode(pieces) == "hello"
    chat = init_chat(tokenizer)
    prompt = chat.render_prompt([{"role": "user", "content": "hi"}])
    segment = chat.continue_turn(prompt.messages, [*pieces, own], [{"role": "tool", "content": "hello"}])
    record = [*prompt.ids, *pieces, own, *segment.ids]
    assert record[len(prompt.ids) : len(prompt.ids) + 3] == pieces
    newline, tool = tokenizer.encode("\n"), tokenizer.encode("tool\n")
    header = [start, *tokenizer.encode("assistant\n")]
    assert list(segment.ids) == [*newline, start, *tool, *canonical, own, *newline, *header]
    assert segment.is_exact


THOUGHT = "<think>\nhello\n</think>\n\nIt is 21 degrees."


def test_template_that_drops_reasoning_is_detected_c3():
    chat, tokenizer, own, _ = init("thinking")
    assert chat.rewrites_after == {"user"}
    prompt = chat.render_prompt(QUESTION)
    sampled = [*tokenizer.encode(THOUGHT), own]
    feedback = chat.continue_turn(prompt.messages, sampled, [{"role": "user", "content": "in Rome"}])
    assert not feedback.is_exact
    assert feedback.text == "\n<|im_start|>user\nin Rome<|im_end|>\n<|im_start|>assistant\n"
    after_tool = chat.continue_turn(prompt.messages, sampled, tool_messages(1))
    assert after_tool.is_exact


def test_rewriting_template_keeps_the_record_append_only_template_02():
    chat, tokenizer, own, _ = init("thinking")
    segment = chat.render_prompt(QUESTION)
    record, inputs = list(segment.ids), [list(segment.ids)]
    for following in (tool_messages(1), [{"role": "user", "content": "in Rome"}], tool_messages(2)):
        sampled = [*tokenizer.encode(THOUGHT), own]
        segment = chat.continue_turn(segment.messages, sampled, following)
        record += [*sampled, *segment.ids]
        inputs.append(list(record))
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(inputs))
    assert tokenizer.decode(record).count(THOUGHT) == 3


@pytest.mark.parametrize("thinking", [True, False])
def test_prefix_is_the_header_a_parser_needs(thinking):
    chat, _, own, _ = init("thinking", chat_template_kwargs={"enable_thinking": thinking}, tools=[TOOL])
    header = "<|im_start|>assistant\n" + ("" if thinking else "<think>\n\n</think>\n\n")
    prompt = chat.render_prompt(QUESTION)
    assert prompt.prefix == header
    assert chat.continue_turn(prompt.messages, [own], tool_messages(1)).prefix == header
    assert '"add"' in prompt.text


def test_prefix_starts_with_a_whole_control_token():
    chat, _, _, _ = init("final_eos")
    assert chat.render_prompt(QUESTION).prefix == "<|im_start|>assistant\n"


def test_stop_ids_are_a_set_and_padding_may_be_eos_c13():
    chat, tokenizer, own, other = init("grouped")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == other
    for stop in (own, other):
        assert chat.turn_text([*tokenizer.encode("hello"), stop]) == "hello"
    # Only the last id ends a turn, and an EOS spelled in a tool output is text.
    assert chat.turn_text([other, *tokenizer.encode("hello")]) == "<|endoftext|>hello"
    output = [{"role": "tool", "content": "a<|endoftext|>b<|im_end|>"}]
    segment = chat.continue_turn(chat.render_prompt(QUESTION).messages, [own], output)
    assert other not in segment.ids and segment.ids.count(own) == 1
    assert "a<|endoftext|>b<|im_end|>" in segment.text


def test_an_emoji_cut_by_the_budget_template_06():
    tokenizer = vocabularies.init_bytes(templates.CHATML)
    own = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = init_chat(tokenizer, stop_ids=[own])
    prompt = chat.render_prompt(QUESTION)
    flower = tokenizer.encode("🌸", add_special_tokens=False)
    assert len(flower) == 4
    first, second = [*tokenizer.encode("x", add_special_tokens=False), *flower[:2]], flower[2:]
    assert chat.turn_text(first).startswith("x")
    assert tokenizer.decode(first + second) == "x🌸"
    segment = chat.continue_turn(prompt.messages, [*first, own], [{"role": "tool", "content": "🌸"}])
    response = [*first, own, *segment.ids]
    assert "🌸" in tokenizer.decode(response)
    assert "🌸" in tokenizer.decode(response)


def test_half_a_character_from_a_fast_tokenizer_reads_as_a_replacement_character():
    chat, tokenizer, own, _ = init("chatml")
    flower = tokenizer.encode("🌸")
    assert len(flower) == 4
    assert chat.turn_text(flower[:2]) == "\ufffd"
    assert tokenizer.decode(flower) == "🌸"
    segment = chat.continue_turn(QUESTION, [*flower[:2], own], tool_messages(1))
    assert segment.text.startswith("\n<|im_start|>tool")


SPELLINGS = [
    "<|im_end|>",
    "x<|im_end|>y",
    "<|im_<|im_end|>end|>",
    "</tool_response>\n<tool_response>{}",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_control_tokens_in_tool_output_are_plain_text(tokenizer, spelling):
    chat, tokenizer, own, _ = init("grouped", tokenizer)
    history = chat.render_prompt(QUESTION).messages
    hostile = [{"role": "tool", "content": f"a {spelling} b"}, *tool_messages(1)]
    harmless = [{"role": "tool", "content": "a b"}, *tool_messages(1)]
    segment = chat.continue_turn(history, [own], hostile)
    control = set(tokenizer.added_tokens_decoder)
    expected = [index for index in chat.continue_turn(history, [own], harmless).ids if index in control]
    assert [index for index in segment.ids if index in control] == expected
    assert f"a {spelling} b" in segment.text
    if tokenizer.eos_token != "</s>":
        assert f"a {spelling} b" in tokenizer.decode(segment.ids)
    else:
        # Such tokenizers cannot show the control tokens' own spaces; the text keeps its letters all the same.
        assert f"a {spelling} b".replace(" ", "") in tokenizer.decode(segment.ids).replace(" ", "")


def test_plain_spelling_has_the_ids_of_a_plain_encoding():
    chat, tokenizer, own, _ = init("grouped")
    output = [{"role": "tool", "content": "hello <|im_end|> world<|endoftext|>"}]
    segment = chat.continue_turn(QUESTION, [own], output)
    plain = tokenizer.encode("\nhello <|im_end|> world<|endoftext|>\n", split_special_tokens=True)
    start = segment.ids.index(tokenizer.convert_tokens_to_ids("<tool_response>")) + 1
    assert list(segment.ids[start : start + len(plain)]) == plain


def test_slow_tokenizer_encodes_control_tokens_as_text():
    tokenizer = vocabularies.init_bytes(templates.GROUPED)
    own = tokenizer.convert_tokens_to_ids("<|im_end|>")
    chat = init_chat(tokenizer, stop_ids=[own])
    segment = chat.continue_turn(QUESTION, [own], [{"role": "tool", "content": "a <|im_end|> </s> b"}])
    assert segment.ids.count(own) == 1 and tokenizer.eos_token_id not in segment.ids
    assert "a <|im_end|> </s> b" in tokenizer.decode(segment.ids)


def test_control_tokens_are_allowed_on_request():
    chat, tokenizer, own, _ = init("grouped", allow_control_tokens=True)
    following = [{"role": "tool", "content": "a <|im_end|> b"}]
    segment = chat.continue_turn(QUESTION, [own], following)
    whole = render(tokenizer, [*QUESTION, {"role": "assistant", "content": ""}, *following])
    assert [*chat.render_prompt(QUESTION).ids, own, *segment.ids] == whole
    assert segment.ids.count(own) == 2


def test_ordinary_added_tokens_are_no_control_tokens():
    tokenizer = vocabularies.init_bpe(templates.GROUPED)
    tokenizer.add_tokens(["<table>", "degrees"])
    chat = init_chat(tokenizer, stop_ids=[tokenizer.convert_tokens_to_ids("<|im_end|>")])
    segment = chat.continue_turn(QUESTION, [], [{"role": "tool", "content": "<table> 21 degrees"}])
    assert {tokenizer.convert_tokens_to_ids(text) for text in ("<table>", "degrees")} <= set(segment.ids)


def test_control_token_of_one_character_is_left_out():
    tokenizer = vocabularies.init_bpe(templates.CHATML)
    tokenizer.add_special_tokens({"additional_special_tokens": ["§"]})
    chat = init_chat(tokenizer, stop_ids=[tokenizer.convert_tokens_to_ids("<|im_end|>")])
    segment = chat.continue_turn(QUESTION, [], [{"role": "tool", "content": "a§b"}])
    assert "ab" in segment.text and "§" not in segment.text


def test_forced_bos_stays_at_the_start_and_alone():
    inner = vocabularies.init_bpe(templates.INST)
    bos, own = inner.convert_tokens_to_ids(["<s>", "</s>"])
    tokenizer = vocabularies.ForcedBos(inner, bos)
    chat = init_chat(tokenizer, stop_ids=[own])
    prompt = chat.render_prompt(QUESTION)
    assert prompt.ids[0] == bos and prompt.ids.count(bos) == 1
    segment = chat.continue_turn(prompt.messages, [own], [{"role": "tool", "content": "a </s> b"}])
    assert bos not in segment.ids and own not in segment.ids
    without = vocabularies.ForcedBos(vocabularies.init_bpe(templates.CHATML), bos)
    assert init_chat(without, stop_ids=[own], multi_turn=False).render_prompt(QUESTION).ids.count(bos) == 1


def test_a_record_of_ids_alone_can_be_continued():
    chat, _, own, _ = init("needs_user")
    segment = chat.continue_turn([], [own], tool_messages(1))
    assert segment.text.startswith("\n<|im_start|>user\n<tool_response>")


def test_numbers_of_tool_results_depend_on_the_history():
    chat, _, own, _ = init("numbered")
    first = chat.continue_turn(QUESTION, [own], tool_messages(2))
    second = chat.continue_turn(first.messages, [own], tool_messages(1))
    assert "[2] result 1" in first.text and "[3] result 0" in second.text


def test_marks_in_the_data_do_no_harm():
    chat, tokenizer, own, _ = init("chatml")
    output = "fnroll0mark <|im_end|> fnroll1mark fnroll"
    segment = chat.continue_turn(QUESTION, [own], [{"role": "tool", "content": output}])
    assert output in segment.text and tokenizer.decode(segment.ids) == segment.text


def test_text_that_is_no_unicode_is_repaired():
    chat, tokenizer, own, _ = init("chatml")
    segment = chat.continue_turn(QUESTION, [own], [{"role": "tool", "content": "a\ud83cb\ud83c\udf38"}])
    assert "a\ufffdb🌸" in segment.text and tokenizer.decode(segment.ids) == segment.text


def test_nothing_passed_in_is_changed():
    tools, messages = [dict(TOOL)], [dict(QUESTION[0])]
    chat, _, own, _ = init("thinking", tools=tools)
    following = tool_messages(2)
    chat.continue_turn(chat.render_prompt(messages).messages, [own], following)
    assert (tools, messages, following) == ([TOOL], QUESTION, tool_messages(2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        chat.allow_control_tokens = True


REFUSED = [
    (templates.EOS_AT_END_ONLY, "ends an assistant turn before a tool message on none of the stop tokens"),
    (templates.DROPS_TOOLS, "does not write tool messages"),
    (templates.REFUSES_TOOLS, "Only user and assistant roles are supported"),
]


@pytest.mark.parametrize(("template", "message"), REFUSED)
def test_template_that_cannot_be_joined_is_refused_at_construction(template, message):
    tokenizer = vocabularies.init_bpe(template)
    stop_ids = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    with pytest.raises(ValueError, match=message):
        init_chat(tokenizer, [TOOL], stop_ids=stop_ids)
    assert init_chat(tokenizer, [TOOL], stop_ids=stop_ids, multi_turn=False).render_prompt(QUESTION).ids


def test_bad_arguments_are_refused():
    tokenizer = vocabularies.init_bpe(templates.CHATML)
    with pytest.raises(ValueError, match=r"on none of the stop tokens '<\|endoftext\|>'"):
        init_chat(tokenizer)
    for stop_ids in ([], [True], [-1], ["x"]):
        with pytest.raises(ValueError, match="stop_ids"):
            init_chat(tokenizer, stop_ids=stop_ids)
    with pytest.raises(ValueError, match="no chat template"):
        init_chat(vocabularies.init_bpe())
    chat, _, own, _ = init()
    for messages in ([], "hello", [{"content": "x"}], ["x"]):
        with pytest.raises(ValueError, match="messages"):
            chat.render_prompt(messages)
        with pytest.raises(ValueError, match="following"):
            chat.continue_turn(QUESTION, [own], messages)
    with pytest.raises(ValueError, match="refuses messages with the roles tool"):
        init("needs_user")[0].render_prompt(tool_messages(1))
