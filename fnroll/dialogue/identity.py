"""What a chat template's text depends on, as short digests: whether it can still join what it once began.

The text itself does not tell: a template may write today's date into its header, and then no prompt that was
rendered yesterday can be rendered again, while all that follows its turns is the same.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from fnroll.dialogue.content import plain_messages
from fnroll.dialogue.join import Chat
from fnroll.dialogue.message import Message


def describe_chat(chat: Chat, source: str, joins: Sequence[str]) -> dict[str, str]:
    """Return a digest of each thing that joins depend on, by name.

    Args:
      chat: of the tokenizer.
      source: of its chat template.
      joins: what the template writes between turns, with its options; empty if it joins none.
    """
    added = {index: str(token) for index, token in chat.encoder.tokenizer.added_tokens_decoder.items()}
    ids = chat.encoder.encode("".join((source, *joins)))
    return {
        "chat_template": _digest([source, *joins]),
        "tools": _digest(list(chat.template.tools)),
        "tokenizer": _digest([ids, sorted(added.items())]),
    }


def describe_messages(messages: Sequence[Message]) -> dict[str, str]:
    """Return the same of the messages of a prompt; equal for messages that have been through a file."""
    return {"messages": _digest(plain_messages("messages", list(messages)))}


def find_changes(then: Mapping[str, str] | None, now: Mapping[str, str] | None) -> list[str] | None:
    """Return the names of what differs between two descriptions; None if one of them is missing."""
    if not then or not now:
        return None
    return [name for name, value in now.items() if then.get(name) != value]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:16]
