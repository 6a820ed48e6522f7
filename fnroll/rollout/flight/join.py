"""What stands between two turns of a record, from the chat template and the calls of the turn."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fnroll.dialogue.chat import Chat, Segment
from fnroll.records.turns import find_turns
from fnroll.rollout.flight.flight import Flight
from fnroll.rollout.flight.tape import Tape

# A prompt's last ids, from which a parser sees whether the prompt has opened a turn or a thought.
_TAIL = 64


def call_id(turn: int, index: int) -> str:
    """Return the id of a call: nine letters and digits, which the strictest chat templates ask for."""
    return f"{chr(ord('c') + index // 10**4)}{turn % 10**4:04d}{index % 10**4:04d}"


def call_ids(turn: int, sampled: Sequence[str | None]) -> list[str]:
    """Return one id for each call of a turn, all different: templates pair calls and outputs by them.

    Args:
      turn: of the record.
      sampled: what the model wrote, None where it wrote nothing. An id that an earlier call of the turn has
        is replaced, and no invented one is among those that the model wrote.
    """
    taken, ids = set(sampled), dict[str, None]()
    for index, own in enumerate(sampled):
        if own is None or own in ids:
            own = next(id for n in itertools.count(index) if (id := call_id(turn, n)) not in taken)
            taken.add(own)
        ids[own] = None
    return list(ids)


def open_segment(chat: Chat, flight: Flight) -> Flight:
    """Return a flight with the conversation of its prompt, and of the turns that it had when it was cut.

    Raises:
      ValueError: naming the record, if its turns are not joined now as they were then.
    """
    if flight.segment is None:
        prefix = chat.turn_text(flight.prompt_ids[-_TAIL:])
        flight = flight.replace(segment=Segment(ids=(), text="", prefix=prefix, messages=()))
    return flight if flight.begun is None else _restore(chat, flight, flight.begun)


def join_turn(
    chat: Chat, flight: Flight, turn: int, sampled: Sequence[int], made: Sequence[Mapping[str, Any]]
) -> Segment:
    """Return what stands between a turn and the next one, given its calls as a record lists them.

    Raises:
      ValueError: if the template refuses this conversation.
    """
    ids = call_ids(turn, [call.get("id") for call in made])
    try:
        return _continue(chat, flight, sampled, made, ids)
    except ValueError:
        # A template may refuse the ids that the model wrote: some want nine letters and digits.
        invented = call_ids(turn, [None] * len(made))
        if invented == ids:
            raise
        return _continue(chat, flight, sampled, made, invented)


def _continue(
    chat: Chat, flight: Flight, sampled: Sequence[int], made: Sequence[Mapping[str, Any]], ids: Sequence[str]
) -> Segment:
    assert flight.segment is not None
    messages, calls = [], []
    for call, identity in zip(made, ids, strict=True):
        name = call["name"]
        calls.append({"name": name, "arguments": call["arguments"], "id": identity})
        messages.append({"role": "tool", "name": name, "content": call["result"], "tool_call_id": identity})
    last = flight.segment
    return chat.continue_turn(last.messages, sampled, messages, calls, rendered=last.rendered)


def _restore(chat: Chat, flight: Flight, tape: Tape) -> Flight:
    spans, flight = find_turns(tape.loss_mask), flight.replace(is_exact=True)
    for turn, (start, stop) in enumerate(spans):
        end = spans[turn + 1][0] if turn + 1 < len(spans) else len(tape)
        if stop == end:
            break
        made = [call for call in flight.tool_calls if call["turn"] == turn]
        try:
            segment = join_turn(chat, flight, turn, tape.tokens[start:stop], made)
        except ValueError as error:
            raise ValueError(f"{flight.record.label} cannot be gone on with: {error}") from error
        if list(segment.ids) != tape.tokens[stop:end]:
            raise ValueError(
                f"{flight.record.label}: its tokens {stop} to {end}, after turn {turn}, are not what the "
                f"chat template writes for the tool calls of that turn; it was begun with another "
                f"template, tokenizer or tools, or changed since"
            )
        flight = flight.replace(segment=segment, is_exact=flight.is_exact and segment.is_exact)
    return flight
