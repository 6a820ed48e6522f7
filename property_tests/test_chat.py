"""Laws of joined turns and of cuts, for conversations that Hypothesis makes up."""

import functools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fnroll.dialogue.chat import init_chat
from fnroll.dialogue.cut import MARKER, cut_output
from tests.dialogue import vocabularies
from tests.dialogue.templates import APPEND_ONLY

TEMPLATES = sorted(APPEND_ONLY.keys() - {"needs_calls"})
CHARS = "ab é中🌸\n\t\"'{}0123456789<|>_/.▁"
OUTPUTS = st.text(CHARS, max_size=12) | st.sampled_from(
    ["hello world", "<tool", "\r\n", " x ", "fnroll0mark"]
)
# Canonical answers: templates may strip the spaces around an answer or cut it at a reasoning tag.
ANSWERS = st.text("ab é中🌸\n{}0123456789.", min_size=1, max_size=12).map(str.strip).filter(bool)
TURNS = st.lists(st.tuples(ANSWERS, st.lists(OUTPUTS, min_size=1, max_size=3)), min_size=1, max_size=4)
SPELLINGS = st.sampled_from(
    ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "</s>", "[INST]", "<|im_", "end|>"]
)
HOSTILE = st.lists(SPELLINGS | st.text(CHARS, max_size=4), min_size=1, max_size=6).map("".join)


@functools.cache
def chat_of(name, kind):
    template, stop = APPEND_ONLY[name]
    tokenizer = {"bpe": vocabularies.init_bpe, "llama": vocabularies.init_llama}[kind](template)
    stop_id = tokenizer.convert_tokens_to_ids(stop)
    return init_chat(tokenizer, stop_ids=(stop_id, tokenizer.eos_token_id)), tokenizer, stop_id


def render(tokenizer, messages):
    return tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=False, add_generation_prompt=True
    )


def canonical(tokenizer, messages, record, text):
    """Return the ids the tokenizer gives a turn's text where it stands; the header may not merge with it."""
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.encode(prompt + text, add_special_tokens=False)
    assume(whole[: len(record)] == record)
    return whole[len(record) :]


@pytest.mark.parametrize("kind", ["bpe", "llama"])
@pytest.mark.parametrize("name", TEMPLATES)
@given(turns=TURNS)
def test_joined_ids_are_the_full_render(name, kind, turns):
    chat, tokenizer, stop_id = chat_of(name, kind)
    messages = [{"role": "user", "content": "hello"}]
    segment = chat.render_prompt(messages)
    record = list(segment.ids)
    for answer, outputs in turns:
        gap = "\n" * (name == "gap")
        sampled = [*canonical(tokenizer, messages, record, answer + gap), stop_id]
        following = [{"role": "tool", "content": output} for output in outputs]
        segment = chat.continue_turn(segment.messages, sampled, following)
        messages += [{"role": "assistant", "content": answer}, *following]
        record += [*sampled, *segment.ids]
        assert record == render(tokenizer, messages)
        assert segment.is_exact


# Whatever is sampled, and whatever the template rewrites, the next turn sees the record and nothing else.
@given(data=st.data(), name=st.sampled_from(TEMPLATES), role=st.sampled_from(["tool", "user"]))
def test_joins_depend_on_text_alone_and_only_append(data, name, role):
    chat, tokenizer, stop_id = chat_of(name, "bpe")
    history = chat.render_prompt([{"role": "user", "content": "hello"}]).messages
    ids = st.integers(0, len(tokenizer) - 1)
    sampled = data.draw(st.lists(ids, max_size=6))
    following = [{"role": role, "content": data.draw(HOSTILE)}]
    segment = chat.continue_turn(history, [*sampled, stop_id], following)
    assert tokenizer.decode(segment.ids) == segment.text
    assert segment.text.endswith(segment.prefix)
    again = chat.continue_turn(history, [stop_id], following)
    assert again.ids == segment.ids


@pytest.mark.parametrize("kind", ["bpe", "llama"])
@given(outputs=st.lists(HOSTILE, min_size=1, max_size=3))
def test_no_output_makes_a_control_token(kind, outputs):
    chat, tokenizer, stop_id = chat_of("grouped", kind)
    history = [{"role": "user", "content": "hello"}]
    harmless = [{"role": "tool", "content": "x"} for _ in outputs]
    hostile = [{"role": "tool", "content": output} for output in outputs]
    control = set(tokenizer.added_tokens_decoder)

    def controls(following):
        return [index for index in chat.continue_turn(history, [stop_id], following).ids if index in control]

    assert controls(hostile) == controls(harmless)


# The text of a response is one decode of its ids: halves of characters in neighbouring turns join again.
@given(text=st.text("a🌸é中", min_size=1, max_size=8), cut=st.integers(0, 32))
def test_response_text_is_one_decode(text, cut):
    chat, tokenizer, _ = chat_of("chatml", "bpe")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    halves = chat.turn_text(ids[:cut]) + chat.turn_text(ids[cut:])
    assert halves == text or "\ufffd" in halves


KEEPS = st.sampled_from(["start", "end", "both"])
CLUSTERS = ["a", "e\u0301", "\r\n", "👍🏽", "👨\u200d👩\u200d👧", "🇫🇷", "1\ufe0f\u20e3", "한", "\ud83c\udf38"]


@given(clusters=st.lists(st.sampled_from(CLUSTERS), max_size=40), limit=st.integers(0, 80), keep=KEEPS)
def test_cut_laws(clusters, limit, keep):
    text = "".join(clusters)
    result, was_cut = cut_output(text, limit, keep)
    assert was_cut == (len(text) > limit)
    assert len(result) <= limit
    assert cut_output(result, limit, keep) == (result, False)
    if not was_cut:
        assert result == text
        return
    edges = {len("".join(clusters[:index])) for index in range(len(clusters) + 1)}
    head, marker, tail = result.partition(MARKER)
    if not marker and keep == "end":
        head, tail = "", head
    assert text.startswith(head) and len(head) in edges
    assert text.endswith(tail) and len(text) - len(tail) in edges


@given(text=st.text(max_size=200), limit=st.integers(14, 100), keep=KEEPS)
def test_cut_keeps_the_named_ends_around_one_marker(text, limit, keep):
    result, was_cut = cut_output(text, limit, keep)
    if was_cut:
        splits = [
            (result[:at], result[at + len(MARKER) :])
            for at in range(len(result))
            if result.startswith(MARKER, at)
        ]
        assert any(text.startswith(head) and text.endswith(tail) for head, tail in splits)
        assert keep != "start" or result.endswith(MARKER)
        assert keep != "end" or result.startswith(MARKER)
