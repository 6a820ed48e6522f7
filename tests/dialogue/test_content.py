"""Messages as people write them, and what a template makes of them."""

import json

import pytest

from fnroll.dialogue.chat import init_chat
from fnroll.dialogue.content import plain_messages
from tests.dialogue import templates, vocabularies

ASK = {"role": "user", "content": "hello there"}
CALLED = {
    "json": (templates.CALLS_AS_JSON, '<tool_call>{"name": "add", "arguments": %s}</tool_call>'),
    "items": (templates.CALLS_AS_ITEMS, "<function=add>%s</function>"),
    "text": (templates.CALLS_AS_TEXT, "<tool_call>add\n%s</tool_call>"),
    "no content": (templates.CALLS_WITHOUT_CONTENT, "<tool_call>add\n%s</tool_call>"),
}


def chat_of(template, **options):
    tokenizer = vocabularies.init_bpe(template)
    options = {"multi_turn": False, **options}
    return init_chat(tokenizer, stop_ids=[tokenizer.convert_tokens_to_ids("<|im_end|>")], **options)


def calling(arguments, **message):
    call = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **message}


def turn(template, message):
    """Return what a template writes for an assistant message, and require nothing of Python in it."""
    answer = {"role": "tool", "content": "3", "tool_call_id": "call00000", "name": "add"}
    text = chat_of(template).render_prompt([ASK, message, answer]).text
    assert "None" not in text and "{'" not in text and "[{" not in text
    return text.split("<|im_start|>assistant\n")[1].partition("<|im_end|>")[0]


def written(template, given):
    if template != "items":
        return CALLED[template][1] % given
    parts = [f"<parameter={name}>{value}</parameter>" for name, value in json.loads(given).items()]
    return CALLED[template][1] % "".join(parts)


@pytest.mark.parametrize("template", CALLED)
def test_arguments_as_a_string_of_json_are_written_as_the_object_they_are_fresh_15(template):
    source = CALLED[template][0]
    given = '{"a": 1, "b": "x y", "c": "\\u00fc"}'
    # A template that writes the string itself writes it as it was given.
    expected = written(
        template, given if template in ("text", "no content") else given.replace("\\u00fc", "ü")
    )
    assert turn(source, calling(given)) == expected
    assert turn(source, calling(json.loads(given))) == written(template, given.replace("\\u00fc", "ü"))
    assert turn(source, calling('{"a":1}')) in (written(template, '{"a":1}'), written(template, '{"a": 1}'))


@pytest.mark.parametrize("template", CALLED)
@pytest.mark.parametrize("arguments", ["", " ", "{}", None, {}])
def test_a_call_without_arguments_is_written_in_many_ways(template, arguments):
    assert turn(CALLED[template][0], calling(arguments)) == written(template, "{}")


@pytest.mark.parametrize("template", ["text", "no content"])
def test_a_string_that_is_no_object_stays_what_it_is(template):
    assert turn(CALLED[template][0], calling('{"a": ')) == written(template, '{"a": ')
    with pytest.raises(ValueError, match="the chat template refuses"):
        turn(templates.CALLS_AS_ITEMS, calling('{"a": '))


@pytest.mark.parametrize("template", CALLED)
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_a_turn_of_calls_needs_no_content_fresh_16(template, content):
    assert turn(CALLED[template][0], calling({"a": 1}, **content)) == written(template, '{"a": 1}')
    assert turn(templates.CHATML, calling({"a": 1}, **content)) == ""


@pytest.mark.parametrize("template", sorted(CALLED.keys() - {"no content"}))
def test_text_beside_calls_is_kept(template):
    shown = turn(CALLED[template][0], calling({"a": 1}, content="Let me see. "))
    assert shown == "Let me see. " + written(template, '{"a": 1}')


def test_a_flat_call_and_keys_that_hold_nothing():
    flat = {"name": "add", "arguments": '{"a": 1}'}
    message = {"role": "assistant", "content": None, "tool_calls": [flat], "refusal": None, "audio": None}
    assert turn(templates.CALLS_AS_JSON, message) == written("json", '{"a": 1}')
    for nothing in (None, []):
        # As data sets write it: every message has the keys of all.
        plain = {"role": "assistant", "content": "hi", "tool_calls": nothing, "name": None}
        assert plain_messages("messages", [plain]) == ({"role": "assistant", "content": "hi"},)


PARTS = [
    ([{"type": "text", "text": "hello there"}], "hello there"),
    ([{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}], "hello there"),
    (({"type": "text", "text": "hello"}, " there"), "hello there"),
    (["hello there"], "hello there"),
    ([], ""),
]


@pytest.mark.parametrize(("content", "text"), PARTS)
@pytest.mark.parametrize("role", ["user", "system", "assistant", "tool"])
def test_text_parts_are_joined_fresh_17(role, content, text):
    chat = chat_of(templates.CHATML)
    rest = [{"role": "user", "content": "go"}]
    given = chat.render_prompt([{"role": role, "content": content}, *rest])
    assert given == chat.render_prompt([{"role": role, "content": text}, *rest])


def test_a_template_of_parts_gets_parts():
    """Those of models that see images write nothing of a content that is a string."""
    loop = "{%- for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{%- endfor %}"
    source = templates.CALLS_AS_JSON.replace("{%- if m.content %}{{ m.content }}{% endif %}", loop)
    assert source != templates.CALLS_AS_JSON
    chat = chat_of(source, multi_turn=True, continue_final_message=True)
    plain = chat_of(templates.CALLS_AS_JSON, multi_turn=True, continue_final_message=True)
    answer = {"role": "tool", "content": [{"type": "text", "text": "3"}]}
    for messages in ([ASK, calling('{"a": 1}'), answer], [ASK, calling({}, content="x"), answer, *BEGUN]):
        given, usual = chat.render_prompt(messages), plain.render_prompt(messages)
        assert given == usual and "hello there" in given.text
        joins = [one.continue_turn(given.messages, given.ids[:3], [answer]) for one in (chat, plain)]
        assert joins[0] == joins[1] and joins[0].is_exact


def test_following_messages_may_have_parts_too():
    chat = chat_of(templates.CHATML, multi_turn=True)
    parts = [{"type": "text", "text": "21"}, {"type": "text", "text": " degrees"}]
    joins = [
        chat.continue_turn([ASK], [2], [{"role": "tool", "content": content}])
        for content in (parts, "21 degrees")
    ]
    assert joins[0] == joins[1]


REFUSED = [
    ({"content": [{"type": "image_url", "image_url": {}}]}, r"\.content\[0\] is a part of type 'image_url'"),
    ({"content": ["a", {"type": "image"}]}, r"\.content\[1\] is a part of type 'image'"),
    ({"content": [{"type": "input_audio"}]}, "'input_audio'; only text parts are supported"),
    ({"content": [{"type": "text"}]}, "it must be a text part"),
    ({"content": [{"text": "x"}]}, "it must be a text part"),
    ({"content": [5]}, r"\.content\[0\] is 5; it must be a text part"),
    ({"content": 5}, r"\.content is 5; it must be a string or a list of text parts"),
    ({"content": True}, r"\.content is True"),
    ({"content": {"type": "text", "text": "x"}}, "it must be a string or a list of text parts"),
    ({"content": b"x"}, r"\.content is b'x'"),
    ({}, "a message has a role and content"),
    ({"content": None}, "a message has a role and content"),
    ({"role": "assistant"}, "a message has a role and content"),
    ({"role": "assistant", "tool_calls": []}, "a message has a role and content"),
    ({"role": "tool", "tool_call_id": "x"}, "a message has a role and content"),
    ({"role": "assistant", "tool_calls": "add"}, r"\.tool_calls is 'add'; it must be a list of tool calls"),
    ({"role": "assistant", "tool_calls": ["add"]}, r"\.tool_calls\[0\] is 'add'; a tool call has a function"),
    ({"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}, "a function with a name"),
    (calling([1]), r"\.tool_calls\[0\]\.arguments is \[1\]; it must be an object"),
    ({"role": "assistant", "function_call": {"name": "add", "arguments": "{}"}}, "write tool_calls"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "words"), REFUSED)
def test_what_no_template_can_write_is_named(message, words):
    chat = chat_of(templates.CHATML)
    with pytest.raises(ValueError, match=rf"^messages\[1\].*{words}"):
        chat.render_prompt([ASK, {"role": "user", **message}, ASK])


BEGUN = [ASK, {"role": "assistant", "content": "The answer is"}]


@pytest.mark.parametrize("name", sorted(templates.APPEND_ONLY))
@pytest.mark.parametrize("tokens", ["bpe"])
def test_a_begun_message_is_gone_on_with_fresh_18(name, tokens):
    """What the model adds and what follows it make the conversation that the template writes at once."""
    template, stop = templates.APPEND_ONLY[name]
    tokenizer = getattr(vocabularies, f"init_{tokens}")(template)
    own = tokenizer.convert_tokens_to_ids(stop)
    chat = init_chat(tokenizer, stop_ids=[own], continue_final_message=True)
    prompt = chat.render_prompt(BEGUN)
    opened = tokenizer.apply_chat_template(BEGUN[:1], tokenize=False, add_generation_prompt=True)
    assert prompt.text == opened + "The answer is"
    assert prompt.prefix.endswith("The answer is") and prompt.text.endswith(prompt.prefix)
    gap = "\n" * (name == "gap")
    whole = tokenizer.encode(prompt.text + " 42" + gap + stop, add_special_tokens=False)
    if whole[: len(prompt.ids)] != list(prompt.ids):
        pytest.skip("the tokenizer merges the begun text with what follows")
    sampled = whole[len(prompt.ids) :]
    following = [{"role": "tool", "content": "21 degrees", "name": "add"}]
    join = chat.continue_turn(prompt.messages, sampled, following, rendered=prompt.rendered)
    said = {"role": "assistant", "content": "The answer is 42"}
    if name == "needs_calls":
        return
    rendered = tokenizer.apply_chat_template(
        [ASK, said, *following], return_dict=False, add_generation_prompt=True
    )
    assert [*prompt.ids, *sampled, *join.ids] == rendered
    assert join.is_exact and join.messages[1]["content"] == "The answer is 42"
    assert chat.continue_turn(prompt.messages, sampled, following) == join


def test_white_space_around_a_begun_message_stays():
    chat = chat_of(templates.TRIMMED_JSON, continue_final_message=True)
    begun = {"role": "assistant", "content": "<think>\n"}
    assert chat.render_prompt([ASK, begun]).text.endswith("assistant\n<think>\n")
    assert chat.render_prompt([ASK, {**begun, "content": ""}]).text.endswith("<|im_start|>assistant\n")


def test_a_begun_message_that_nobody_asked_for_is_refused_fresh_18():
    chat, asked = chat_of(templates.CHATML), chat_of(templates.CHATML, continue_final_message=True)
    with pytest.raises(ValueError, match="end with an assistant message; set continue_final_message=True"):
        chat.render_prompt(BEGUN)
    for one in (chat, asked):
        with pytest.raises(ValueError, match="end with tool calls that no tool message answers"):
            one.render_prompt([ASK, calling({})])
    assert asked.render_prompt([ASK]) == chat.render_prompt([ASK])
    for rewrite in ("upper", "replace('is', 'was')", "replace('mark', '')"):
        template = templates.CHATML.replace("m.content", f"(m.content | {rewrite})")
        with pytest.raises(ValueError, match="rewrites the assistant message that is to be gone on with"):
            chat_of(template, continue_final_message=True).render_prompt(BEGUN)


@pytest.mark.parametrize("name", ["tools", "add_generation_prompt", "tokenize", "continue_final_message"])
def test_what_each_render_sets_itself_is_no_option_of_the_template(name):
    with pytest.raises(ValueError, match=f"chat_template_kwargs is .* without {name}"):
        chat_of(templates.CHATML, chat_template_kwargs={name: True})
