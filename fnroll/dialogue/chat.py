"""Make a `Chat` from a tokenizer, and find out first whether its template can be joined at all.

Whether ids can be computed between two turns depends on the template alone, so it is tried out once on
made-up conversations. A template that cannot be joined is refused here and not in the middle of a rollout.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fnroll.checks import fail
from fnroll.dialogue.control import Tokenizer, init_encoder
from fnroll.dialogue.form import find_form
from fnroll.dialogue.identity import describe_chat
from fnroll.dialogue.join import Chat, Segment
from fnroll.dialogue.message import Message
from fnroll.dialogue.template import Template, ending_error, find_ending, init_mark

__all__ = ["Chat", "Segment", "identify", "init_chat"]

# What a template is asked for in each render; `continue_final_message` is an option of its own.
_TAKEN = frozenset(("tools", "add_generation_prompt", "tokenize", "continue_final_message", "return_dict"))

_HISTORY: tuple[Message, ...] = ({"role": "user", "content": "probe question"},)
# A tool call's id has nine letters or digits: what the strictest templates ask for.
_CALL: Mapping[str, Any] = {"name": "probe", "arguments": {}, "id": "probecall"}
# Answers that a template leaves as they are while they are the last turn show whether it rewrites them
# afterwards.
_ANSWERS = ("probe answer", "<think>\nprobe\n</think>\n\nprobe answer", "probe\n</think>\n\nprobe answer")


def init_chat(
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    stop_ids: Sequence[int] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    allow_control_tokens: bool = False,
    continue_final_message: bool = False,
    multi_turn: bool = True,
) -> Chat:
    """Return a `Chat` for a tokenizer with a chat template.

    Args:
      tokenizer: a Hugging Face tokenizer, fast or slow.
      tools: JSON schemas of the tools, for the template.
      stop_ids: every id that ends a turn; None for the tokenizer's EOS.
      chat_template_kwargs: more variables for the template, such as `enable_thinking`.
      allow_control_tokens: let control tokens spelled in tool outputs become control tokens. By default
        they are encoded as plain text.
      continue_final_message: go on with an assistant message that a prompt ends with. By default such a
        prompt is refused.
      multi_turn: turns will be continued; False accepts a template that cannot be joined.

    Raises:
      ValueError: if the tokenizer has no template, a stop id is no id of it, or turns cannot be joined.
    """
    stops = _spell_stops(tokenizer, stop_ids)
    template = _init_template(tokenizer, tools, chat_template_kwargs or {})
    encoder = init_encoder(tokenizer, _source(template), tuple(stops))
    # A stop token that its own spelling does not give back cannot be looked for in a template's text.
    stops = {index: text if encoder.encode(text) == [index] else "" for index, text in stops.items()}
    chat = Chat(template, encoder, stops, allow_control_tokens, continue_final_message)
    chat = replace(chat, header=_usual_header(chat))
    return _probe(chat) if multi_turn else chat


def _init_template(
    tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> Template:
    for name in _TAKEN & options.keys():
        fail(
            "init_chat", "chat_template_kwargs", options, f"without {name}, which is not the caller's to set"
        )
    template = Template(tokenizer, tuple(dict(tool) for tool in tools), dict(options))
    _source(template)
    return replace(
        template, form=find_form(lambda form, messages: replace(template, form=form).render(messages))
    )


def _usual_header(chat: Chat) -> str:
    try:
        return chat.render_prompt(_HISTORY).prefix
    except ValueError:  # a template may ask for more than a user message
        return ""


def _spell_stops(tokenizer: Tokenizer, stop_ids: Sequence[int] | None) -> dict[int, str]:
    if stop_ids is None:
        eos = tokenizer.eos_token_id
        stop_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not stop_ids:
        raise ValueError("stop_ids is empty and the tokenizer has no EOS: name the ids that end a turn")
    stops = {}
    for index in stop_ids:
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise ValueError(f"stop_ids holds {index!r}; every stop id is a token id of the tokenizer")
        stops[index] = tokenizer.decode([index], skip_special_tokens=False)
    return stops


def _source(template: Template) -> str:
    named = template.options.get("chat_template")
    try:
        return str(template.tokenizer.get_chat_template(named, tools=list(template.tools) or None))
    except ValueError as error:
        raise ValueError(f"the tokenizer has no chat template to use: {error}") from error


def identify(chat: Chat) -> dict[str, str]:
    """Return digests of what the joins of `chat` depend on, by name: template, tools, tokenizer."""
    joins = []
    for role in ("tool", "user"):
        with suppress(ValueError):
            sampled = chat.encoder.encode(_ANSWERS[0])
            joins.append(chat.continue_turn(_HISTORY, sampled, _messages(role, 1), [_CALL]).text)
    return describe_chat(chat, _source(chat.template), joins)


def _probe(chat: Chat) -> Chat:
    """Return `chat` with what its template rewrites, or raise if its turns cannot be joined."""
    problems = {role: problem for role in ("tool", "user") if (problem := _find_problem(chat, role))}
    needed = "tool" if chat.template.tools else min(problems, default="") if len(problems) == 2 else ""
    if needed in problems:
        raise ValueError(problems[needed])
    joined = {"tool", "user"} - problems.keys()
    return replace(chat, rewrites_after=frozenset(role for role in joined if _is_rewriting(chat, role)))


def _find_problem(chat: Chat, role: str) -> str:
    """Return why turns cannot be joined before messages of a role, or nothing."""
    try:
        # Tool messages come in groups; many templates want users and assistants to take turns.
        for count in (1, 2) if role == "tool" else (1,):
            history = _HISTORY
            for _ in range(2):
                history = _try_join(chat, history, _messages(role, count))
    except ValueError as error:
        return str(error)
    return ""


def _try_join(chat: Chat, history: Sequence[Message], following: Sequence[Message]) -> tuple[Message, ...]:
    mark, text, calls = init_mark(), _ANSWERS[0], [_CALL] * len(following)
    ending = find_ending(chat.template, chat.stops, history, text, following, calls, mark)
    segment = chat.continue_turn(history, chat.encoder.encode(text), following, calls)
    role = following[0]["role"]
    if following[0]["content"] in ending.gap:
        raise ending_error(chat.stops, role)
    if not all(message["content"] in ending.after for message in following):
        raise ValueError(f"the chat template does not write {role} messages; use one that does")
    whole, head = chat.template.render(segment.messages), chat.template.render(history) + text
    if whole == head + segment.text:
        ids = chat.encoder.encode(head + ending.gap + ending.stop)
        ids += chat.encoder.encode_after(ending.after, ending.stop)
        if ids != chat.encoder.encode(whole):
            raise ValueError(
                f"the tokenizer merges the stop token {ending.stop!r} with the text around it, so turns "
                "cannot be joined exactly; stop ids must be tokens that never merge with text"
            )
    return segment.messages


def _messages(role: str, count: int) -> list[Message]:
    extra = {"name": _CALL["name"], "tool_call_id": _CALL["id"]} if role == "tool" else {}
    return [{"role": role, "content": f"probe output {index}", **extra} for index in range(count)]


def _is_rewriting(chat: Chat, role: str) -> bool:
    """Whether a template changes an answer, once a message of a role follows, that it left alone before."""
    following = _messages(role, 1)
    prompt = chat.template.render(_HISTORY)
    kept = [answer for answer in _ANSWERS if _is_kept(chat, prompt, answer)]
    joins = [chat.continue_turn(_HISTORY, chat.encoder.encode(answer), following, [_CALL]) for answer in kept]
    return not joins or not all(_is_appended(chat, prompt, join) for join in joins)


def _is_appended(chat: Chat, prompt: str, join: Segment) -> bool:
    # A turn that the template wants to see as calls is written anew from them: only what precedes it can be
    # compared.
    called = "tool_calls" in join.messages[len(_HISTORY)]
    return join.is_exact or (called and chat.template.render(join.messages).startswith(prompt))


def _is_kept(chat: Chat, prompt: str, answer: str) -> bool:
    turn = {"role": "assistant", "content": answer}
    try:
        return chat.template.render([*_HISTORY, turn], header=False).startswith(prompt + answer)
    except ValueError:
        return False
