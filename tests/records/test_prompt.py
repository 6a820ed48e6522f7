"""Files of prompts: text, JSON Lines of every form, and damage named by line."""

import json

import pytest

from fnroll import RolloutRecord, read_prompts


def user(text):
    return RolloutRecord(messages=[{"role": "user", "content": text}])


def test_text_one_prompt_a_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes('first\r\n\n   \n  zweitens ü 🌸\t\n[1, 2]\n"x"'.encode())
    expected = [user("first"), user("zweitens ü 🌸"), user("[1, 2]"), user('"x"')]
    assert read_prompts(path) == expected
    assert read_prompts(str(path)) == expected


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path):
    for name, text in (("a.txt", "hello"), ("a.jsonl", '"hello"')):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
        assert read_prompts(tmp_path / name) == [user("hello")]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_json_lines_of_every_form(tmp_path, suffix):
    path = tmp_path / f"prompts{suffix}"
    lines = [
        '"a string\\nof two lines"',
        '[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]',
        "[5, 6, 7]",
        "",
        '{"prompt": "p", "metadata": {"answer": 4}, "prompt_id": "q1"}',
        '{"messages": [{"role": "user", "content": "m"}], "group": 3}',
        '{"prompt_ids": [1, 2], "sample": 2}',
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_prompts(path) == [
        user("a string\nof two lines"),
        RolloutRecord(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]),
        RolloutRecord(prompt_ids=[5, 6, 7]),
        user("p").replace(metadata={"answer": 4}, prompt_id="q1"),
        user("m").replace(group=3),
        RolloutRecord(prompt_ids=[1, 2], sample=2),
    ]


def test_separators_inside_a_json_string_end_no_line(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a\u2028b\x85c"\n"e"', encoding="utf-8")
    assert [record.messages[0]["content"] for record in read_prompts(path)] == ["a\u2028b\x85c", "e"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "x"', "Expecting"),
        (b"hello", "Expecting value"),
        (b"3", "a prompt must be a string"),
        (b"null", "a prompt must be a string"),
        (b"[]", "the prompt is empty"),
        (b"[1, 2.5]", "a prompt must be a string"),
        (b"[1, true]", "a prompt must be a string"),
        (b'[1, {"role": "user"}]', "a prompt must be a string"),
        (b'{"text": "x"}', "neither given"),
        (b'{"metadata": 1}', "neither given"),
        (b'{"prompt": 5}', "prompt is 5; it must be a string"),
        (b'{"prompt": "x", "messages": [{"role": "user", "content": "y"}]}', "both given"),
        (b'{"prompt": "x", "prompt_ids": [1]}', "both given"),
        (b'{"messages": "x"}', "messages is 'x'; it must be a list of messages"),
        (b'{"prompt_ids": [1], "sample": -1}', "sample is -1"),
        (b'"\xff"', "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_damage_is_named_by_line(tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'"good"\n\n' + line + b'\n"good"\n')
    with pytest.raises(ValueError) as error:
        read_prompts(path)
    assert str(error.value).startswith(f"{path}, line 3: ") and message in str(error.value)


def test_text_that_is_not_utf_8(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"one\ntwo\nthr\xe9e\n")
    with pytest.raises(ValueError, match=r"prompts\.txt, line 3: not UTF-8 text"):
        read_prompts(path)


def test_an_empty_file_holds_no_prompts(tmp_path):
    (tmp_path / "prompts.txt").write_bytes(b"\n \n")
    assert read_prompts(tmp_path / "prompts.txt") == []
    with pytest.raises(FileNotFoundError):
        read_prompts(tmp_path / "none.txt")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('""', "the prompt is empty"),
        ('{"prompt": ""}', "the prompt is empty"),
        ("[]", "the prompt is empty"),
        ('{"prompt_ids": []}', "the prompt is empty"),
        ('[{"role": "user"}]', "has a role and content"),
        ('[{"content": "x"}]', "has a role and content"),
        ('"\\ud800"', "lone surrogate"),
    ],
)
def test_a_prompt_that_says_nothing_is_named_by_its_line(tmp_path, line, words):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(ValueError, match=rf"prompts.jsonl, line 2: .*{words}"):
        read_prompts(path)


ROW = '{"prompt": "p", "answer": "42", "reward": "high", "prompt_id": "q", "metadata": {"n": 1}}'


def test_columns_beside_a_prompt_go_into_the_metadata(tmp_path):
    path = tmp_path / "prompts.jsonl"
    chat = '[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]'
    path.write_text(f'{ROW}\n{{"prompt": {chat}, "response": null}}\n{{"prompt": "p", "metadata": [1]}}\n')
    first, second, third = read_prompts(path)
    assert first == user("p").replace(prompt_id="q", metadata={"n": 1, "answer": "42", "reward": "high"})
    assert [message["content"] for message in second.messages] == ["s", "u"]
    assert second.metadata == {"response": None} and third.metadata == [1]


ITEMS = [
    ('["a", "b"]', [user("a"), user("b")]),
    ('[{"prompt": "a", "answer": 1}]', [user("a").replace(metadata={"answer": 1})]),
    ('[[1, 2], [{"role": "user", "content": "a"}]]', [RolloutRecord(prompt_ids=[1, 2]), user("a")]),
    ('[{"role": "user", "prompt": "a"}]', [user("a").replace(metadata={"role": "user"})]),
    ("[]", []),
    # One prompt, as it would be on a line.
    ("[1, 2]", [RolloutRecord(prompt_ids=[1, 2])]),
    ('[{"role": "user", "content": "a"}]', [user("a")]),
    ('{"prompt": "a"}', [user("a")]),
    ('"a"', [user("a")]),
]


@pytest.mark.parametrize(("text", "records"), ITEMS)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_is_one_array_of_prompts(tmp_path, text, records, indent):
    path = tmp_path / "prompts.json"
    path.write_text("\ufeff" + json.dumps(json.loads(text), indent=indent), encoding="utf-8")
    assert read_prompts(path) == records


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[\n  "a",\n  {"prompt": \n]', r"prompts\.json, line 4: Expecting value"),
        ('["a", 5]', r"prompts\.json, item 2: a prompt must be a string"),
        ('["a", {"text": "b"}]', r"prompts\.json, item 2: a prompt needs one of"),
        ('["a", ""]', r"prompts\.json, item 2: the prompt is empty"),
        ('"a"\n"b\n', r"prompts\.json, line 2: Invalid control|prompts\.json, line 2: Unterminated"),
    ],
)
def test_damage_in_a_json_file_is_named(tmp_path, text, words):
    path = tmp_path / "prompts.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_prompts(path)
