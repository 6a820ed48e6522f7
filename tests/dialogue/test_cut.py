import time

import pytest

from fnroll.dialogue.cut import MARKER, cut_output

LINES = "first line of it\nsecond line of it\nthe answer is 42"
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def test_a_text_within_the_limit_stays_whole():
    for text in ("", "a", LINES):
        for keep in ("start", "end", "both"):
            assert cut_output(text, len(text), keep) == (text, False)
            assert cut_output(text, len(text) + 1, keep) == (text, False)


# Case C10: the answer stands in the last line and the limit is 32.
@pytest.mark.parametrize(
    ("keep", "result"),
    [
        ("start", "first line of it\ns...(truncated)"),
        ("end", "...(truncated)t\nthe answer is 42"),
        ("both", "first lin...(truncated)wer is 42"),
    ],
)
def test_the_named_end_is_kept(keep, result):
    assert cut_output(LINES, 32, keep) == (result, True)
    assert len(result) <= 32


# The marker counts toward the limit: one character too many costs the marker's length.
def test_one_character_over_the_limit():
    text = "x" * 21
    assert cut_output(text, 20, "start") == ("x" * 6 + MARKER, True)
    assert cut_output(text, 20, "end") == (MARKER + "x" * 6, True)
    assert cut_output(text, 20, "both") == ("xxx" + MARKER + "xxx", True)
    assert cut_output(text, 19, "both") == ("xxx" + MARKER + "xx", True)


@pytest.mark.parametrize("limit", [0, 1, 5, 13])
def test_a_limit_shorter_than_the_marker_gives_a_plain_cut(limit):
    assert cut_output("abcdefghijklmnop", limit, "start") == ("abcdefghijklmnop"[:limit], True)
    assert cut_output("abcdefghijklmnop", limit, "end") == ("abcdefghijklmnop"[16 - limit :], True)
    assert cut_output("abcdefghijklmnop", limit, "both") == ("abcdefghijklmnop"[:limit], True)


def test_a_limit_of_the_markers_length_gives_the_marker_alone():
    for keep in ("start", "end", "both"):
        assert cut_output("x" * 50, len(MARKER), keep) == (MARKER, True)


CLUSTERS = {
    "accent": "e\u0301",
    "many accents": "o\u0302\u0323\u0308",
    "line end": "\r\n",
    "family": FAMILY,
    "skin tone": "\U0001f44d\U0001f3fd",
    "flag": "\U0001f1eb\U0001f1f7",
    "regional flag": "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "keycap": "1\ufe0f\u20e3",
    "syllable": "\u1112\u1161\u11ab",
    "conjunct": "\u0915\u094d\u0937",
    "surrogates": "\ud83c\udf38",
}


@pytest.mark.parametrize("keep", ["start", "end", "both"])
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_no_cut_inside_a_character(cluster, keep):
    text = cluster * 40
    for limit in range(60):
        result, was_cut = cut_output(text, limit, keep)
        assert len(result) <= limit or not was_cut
        for part in result.split(MARKER) if MARKER in result else [result]:
            assert part == cluster * (len(part) // len(cluster))


def test_emoji_of_one_code_point():
    assert cut_output("🌸" * 512, 20, "start")[0] == "🌸" * 6 + MARKER


def test_a_text_of_combining_marks_is_cut_all_the_same():
    text = "a" + "\u0301" * 1000
    assert cut_output(text, 514, "start")[0] == "a" + "\u0301" * 499 + MARKER
    assert len(cut_output(text, 514, "end")[0]) == 514


# Case budget-03: a huge output is cut without a walk through it.
@pytest.mark.parametrize("keep", ["start", "end", "both"])
@pytest.mark.parametrize("text", ["x" * 10_000_000, "\u0301" * 10_000_000, "\U0001f1e6" * 10_000_000])
def test_ten_megabytes_are_cut_at_once(text, keep):
    start = time.perf_counter()
    result, was_cut = cut_output(text, 1000, keep)
    assert time.perf_counter() - start < 0.1
    assert was_cut and 900 < len(result) <= 1000


def test_bad_arguments_are_refused():
    for limit in (-1, True, 2.5, None):
        with pytest.raises(ValueError, match=r"max_chars is .*; it must be an int of at least 0"):
            cut_output("abc", limit)
    with pytest.raises(ValueError, match=r"keep is .*; it must be one of 'start', 'end', 'both'"):
        cut_output("abc", 1, "middle")
