"""Encode text that may spell control tokens which must stay plain text.

A *control token* is a token a chat template works with: every special token, and every other added token
whose markup the template writes itself (`<tool_call>` in many of them). Text from outside may spell one. It
is made harmless by cutting the spelling in two and encoding both sides apart: no tokenizer can then find the
token in it, whatever options that tokenizer honours, and text that spells none is encoded as one piece with
its surroundings.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Tokenizer(Protocol):
    """What the dialogue needs of a Hugging Face tokenizer, fast or slow."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """The added tokens by id."""
        ...

    @property
    def all_special_ids(self) -> Sequence[int]:
        """The ids of BOS, EOS, padding and the like."""
        ...

    @property
    def eos_token_id(self) -> Any:
        """The id of the tokenizer's own end of sequence, or None."""
        ...

    def encode(self, text: Any, *, add_special_tokens: bool = True, **kwargs: Any) -> Any:
        """Return the ids of a text."""
        ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False, **kwargs: Any) -> Any:
        """Return the text of ids."""
        ...

    def get_chat_template(self, chat_template: Any = None, tools: Any = None) -> Any:
        """Return the source of the chat template."""
        ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages."""
        ...


@dataclass(frozen=True, slots=True)
class Encoder:
    """A tokenizer's ids for text in the middle of a conversation."""

    tokenizer: Tokenizer
    """The tokenizer."""
    lead: tuple[int, ...]
    """Ids the tokenizer puts before every text although it is asked not to; `()` for most."""
    controls: re.Pattern[str]
    """Finds the control tokens' spellings, the longest at each place."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text` alone, without ids the tokenizer adds to every text."""
        ids = list(self.tokenizer.encode(text, add_special_tokens=False))
        return ids[len(self.lead) :] if tuple(ids[: len(self.lead)]) == self.lead else ids

    def encode_first(self, text: str) -> list[int]:
        """Return the ids of a text that opens a record; a BOS the tokenizer forces stays, once."""
        ids = self.encode(text)
        return ids if tuple(ids[: len(self.lead)]) == self.lead else [*self.lead, *ids]

    def encode_after(self, text: str, anchor: str) -> list[int]:
        """Return the ids of `text` where it follows `anchor`.

        Tokenizers treat the start of a text differently (a space put in front, neighbouring spaces removed),
        so the anchor is encoded with it and its ids are taken off again.

        Args:
          text: the text to encode.
          anchor: a control token's spelling, or anything else that never merges with what follows.

        Raises:
          ValueError: if the anchor's ids change with what follows it.
        """
        before, ids = self.encode(anchor), self.encode(anchor + text)
        if ids[: len(before)] != before:
            raise ValueError(
                f"the tokenizer encodes {anchor!r} differently when text follows it, "
                "so no ids can be appended after it; stop ids must be tokens that never merge with text"
            )
        return ids[len(before) :]

    def encode_pieces(self, pieces: Sequence[str], anchor: str, *, inside: bool) -> list[int]:
        """Return the ids of a text given in pieces that must not be encoded across their seams.

        Args:
          pieces: from `shield` and a split at its mark.
          anchor: the control token before the first piece.
          inside: the first piece follows other text instead.
        """
        ids = self._encode_inside(pieces[0], anchor) if inside else self.encode_after(pieces[0], anchor)
        known = dict[str, list[int]]()
        for piece in pieces[1:]:
            # A text full of control tokens is many pieces, and few different ones.
            if piece not in known:
                known[piece] = self._encode_inside(piece, anchor)
            ids += known[piece]
        return ids

    def _encode_inside(self, piece: str, anchor: str) -> list[int]:
        """Return the ids of `piece` where it follows other text."""
        first = self.controls.search(piece)
        head = piece[: first.start()] if first else piece
        # A line break is a neighbour that a tokenizer treats as text, so that it puts no space before the
        # piece. It may merge with the piece; then the control token is the better neighbour.
        for neighbour in (anchor + "\n", anchor):
            try:
                if self.decode(self.encode_after(head, neighbour)) == head:
                    return self.encode_after(piece, neighbour)
            except ValueError:
                continue
        return self.encode_after(piece, anchor)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` as it is: control tokens spelled out, no space tidied away."""
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        text: str = self.tokenizer.decode(list(ids), **options)
        return text

    def shield(self, value: Any, mark: str) -> Any:
        """Return `value` with `mark` inside every spelling of a control token in its strings.

        Args:
          value: a string, or lists and dicts of them.
          mark: a text that occurs nowhere else; splitting at it gives pieces that spell no control token.
        """
        return map_text(value, lambda text: self._shield_text(text, mark))

    def _shield_text(self, text: str, mark: str) -> str:
        pieces, start, cuts = list[str](), 0, dict[str, int]()
        while match := self.controls.search(text, start):
            spelling = match.group()
            if spelling not in cuts:
                cuts[spelling] = self._cut(spelling)
            cut = match.start() + cuts[spelling]
            pieces.append(text[start:cut])
            # A spelling that no cut makes harmless (a single character) has no plain form: it is left out.
            start = cut if cuts[spelling] else match.end()
        return mark.join([*pieces, text[start:]])

    def _cut(self, spelling: str) -> int:
        """Return where to cut a spelling, as its plain encoding would if it can be had; 0 for nowhere."""
        plain = _encode_plain(self.tokenizer, spelling)[len(self.lead) :]
        harmless = [cut for cut in range(1, len(spelling)) if not self.controls.search(spelling[:cut])]
        for cut in harmless:
            if self.encode(spelling[:cut]) + self.encode(spelling[cut:]) == plain:
                return cut
        return harmless[0] if harmless else 0


def map_text(value: Any, function: Callable[[str], str]) -> Any:
    """Return a message, or a list of them, with a function applied to its strings, roles excepted."""
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {key: item if key == "role" else map_text(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_text(item, function) for item in value]
    return value


def repair(text: str) -> str:
    """Return a text that can be encoded: surrogate pairs joined, lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def init_encoder(tokenizer: Tokenizer, template: str, stop_ids: Sequence[int]) -> Encoder:
    """Learn a tokenizer's control tokens and what it adds to every text.

    Args:
      tokenizer: a Hugging Face tokenizer, fast or slow.
      template: the source of the chat template; added tokens it spells are control tokens.
      stop_ids: the ids that end a turn.
    """
    chosen = set(getattr(tokenizer, "chat_control_tokens", None) or ())
    spellings = {
        token.content
        for index, token in tokenizer.added_tokens_decoder.items()
        if token.special
        or index in stop_ids
        or index in tokenizer.all_special_ids
        or token.content in chosen
        or (_is_markup(token.content) and token.content in template)
    }
    longest_first = sorted((text for text in spellings if text.strip()), key=len, reverse=True)
    # The pattern of a tokenizer without control tokens matches nothing.
    controls = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    return Encoder(tokenizer, tuple(tokenizer.encode("", add_special_tokens=False)), controls)


def _is_markup(text: str) -> bool:
    return len(text) > 2 and text[0] in "<[" and text[-1] in ">]"


def _encode_plain(tokenizer: Tokenizer, spelling: str) -> list[int]:
    try:
        return list(tokenizer.encode(spelling, add_special_tokens=False, split_special_tokens=True))
    except (TypeError, ValueError):  # a tokenizer that does not know the option
        return []
