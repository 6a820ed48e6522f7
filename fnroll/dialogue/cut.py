"""Cut long tool outputs to a number of characters, at the named end, between whole characters."""

import unicodedata
from typing import Literal

MARKER = "...(truncated)"

Keep = Literal["start", "end", "both"]

# A cut moves at most this far to spare a long cluster, so that a text of combining marks alone is cut all the
# same.
_REACH = 64
_JOINER = "\u200d"


def cut_output(text: str, max_chars: int, keep: Keep = "start") -> tuple[str, bool]:
    """Return a tool output cut to `max_chars` characters, and whether it was cut.

    The marker `...(truncated)` stands where text is missing and counts toward the limit, so that the result
    is never longer than `max_chars` and cutting it again changes nothing. A limit too short for the marker
    gives the plain start or end of the text. No cut falls inside what a reader sees as one character (an
    emoji of several code points, a letter with its accents, CRLF), so the result may be a little shorter than
    the limit.

    Args:
      text: the output.
      max_chars: the limit in Python characters (code points), 0 or more.
      keep: the part to keep: "start", "end", or "both" with the marker between.

    Raises:
      ValueError: if `max_chars` is no such number, or `keep` is none of the three.
    """
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or max_chars < 0:
        raise ValueError(f"cut_output.max_chars is {max_chars!r}; it must be an int of at least 0")
    if keep not in ("start", "end", "both"):
        raise ValueError(f"cut_output.keep is {keep!r}; it must be one of 'start', 'end', 'both'")
    if len(text) <= max_chars:
        return text, False
    marker = MARKER if max_chars >= len(MARKER) else ""
    room = max_chars - len(marker)
    if keep == "start" or (keep == "both" and not marker):
        # Without a marker both ends would read as one text.
        return _head(text, room) + marker, True
    if keep == "end":
        return marker + _tail(text, room), True
    return _head(text, room - room // 2) + marker + _tail(text, room // 2), True


def _head(text: str, room: int) -> str:
    for at in range(room, max(room - _REACH, 0), -1):
        if not _is_inside(text, at):
            return text[:at]
    return text[: room - _is_pair(text, room)] if room > _REACH else ""


def _tail(text: str, room: int) -> str:
    start = len(text) - room
    for at in range(start, min(start + _REACH, len(text))):
        if not _is_inside(text, at):
            return text[at:]
    return text[start + _is_pair(text, start) :] if room > _REACH else ""


def _is_pair(text: str, at: int) -> bool:
    """Whether a cut before `at` would break a line end or a surrogate pair."""
    left, right = text[at - 1 : at], text[at : at + 1]
    return left + right == "\r\n" or ("\ud800" <= left <= "\udbff" and "\udc00" <= right <= "\udfff")


def _is_inside(text: str, at: int) -> bool:
    """Whether a cut before `at` would fall inside one character as a reader sees it (UAX 29, in short)."""
    if at <= 0 or at >= len(text):
        return False
    left, right = text[at - 1], text[at]
    if _is_pair(text, at):
        return True
    if left in "\r\n" or right in "\r\n":
        return False
    if left == _JOINER or _is_extender(right):
        return True
    if _is_flag_letter(left) and _is_flag_letter(right):
        return _flag_letters_before(text, at) % 2 == 1
    return _is_syllable(left, right) or (unicodedata.combining(left) == 9 and right.isalpha())


def _is_extender(char: str) -> bool:
    return (
        char in "\u200c\u200d"
        or unicodedata.category(char) in ("Mn", "Mc", "Me")
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # tags of regional flags
    )


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _flag_letters_before(text: str, at: int) -> int:
    count = 0
    while count < min(at, 2 * _REACH) and _is_flag_letter(text[at - 1 - count]):
        count += 1
    return count


def _is_syllable(left: str, right: str) -> bool:
    """Whether two Hangul letters belong to one syllable written in parts."""
    leading, vowel, trailing = ("\u1100", "\u115f"), ("\u1160", "\u11a7"), ("\u11a8", "\u11ff")

    def among(char: str, *ranges: tuple[str, str]) -> bool:
        return any(low <= char <= high for low, high in ranges)

    is_open = "\uac00" <= left <= "\ud7a3" and (ord(left) - 0xAC00) % 28 == 0
    if among(right, vowel):
        return among(left, leading, vowel) or is_open
    if among(right, trailing):
        return among(left, vowel, trailing) or "\uac00" <= left <= "\ud7a3"
    return among(right, leading) and among(left, leading)
