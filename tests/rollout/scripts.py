"""Rollouts of the scripted model, and what their records must hold, written out."""

import dataclasses
import functools
import json

import torch

import fnroll
from fnroll.models.chatter import chatter_tokenizer
from fnroll.testing.scripted import scripted_model

HEADER = "<|im_start|>assistant\n"


@functools.cache
def tokenizer():
    """Single bytes, and the control tokens `<|im_start|>`, `<|im_end|>`, `<|eom|>`."""
    return chatter_tokenizer()


def stop_ids():
    return tokenizer().convert_tokens_to_ids(["<|im_end|>", "<|eom|>"])


def call(name, /, **arguments):
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


def prompt_text(message):
    return f"<|im_start|>user\n{message}<|im_end|>\n{HEADER}"


def outputs_text(*outputs):
    """What stands between a turn that ended on `<|im_end|>` and the next one."""
    return "\n<|im_start|>tool\n" + "\n".join(outputs) + f"<|im_end|>\n{HEADER}"


def encode(text):
    return tokenizer().encode(text)


def plain(text):
    """Return ids of a text as data: bytes, whatever it spells."""
    return [i for char in text for i in encode(char)]


def spans(message, *parts):
    """Return ids and mask of a record: after the prompt, sampled texts and outputs take turns."""
    tokens, mask = encode(prompt_text(message)), []
    mask += [False] * len(tokens)
    for index, part in enumerate(parts):
        ids = encode(part) if isinstance(part, str) else list(part)
        tokens += ids
        mask += [index % 2 == 0] * len(ids)
    return tokens, mask


def make(scripts, tools=(), tokens=None, **config):
    """Return a rollout of the scripted model."""
    config = {"max_length": 1500, "rows": 4, "progress": False, **config}
    used = tokenizer() if tokens is None else tokens
    options = config.get("chat_template_kwargs", {})
    stops = tokens and [tokens.eos_token_id]
    model = scripted_model(used, scripts, stop_ids=stops or stop_ids(), **options)
    return fnroll.Rollout(model, used, fnroll.RolloutConfig(**config), tools)


def request(scripts, n=1):
    return fnroll.RolloutRequest(
        [fnroll.RolloutRecord(messages=[{"role": "user", "content": message}]) for message in scripts], n
    )


def roll(scripts, tools=(), *, n=1, sampling=None, tokens=None, **config):
    """Return the records of all scripts, by user message; of several samples, the list."""
    with torch.no_grad(), make(scripts, tools, tokens, **config) as rollout:
        batch = rollout.generate(request(scripts, n), fnroll.SamplingConfig(**(sampling or {})))
    for record in batch:
        check(record, rollout.config.max_length, rollout.tokenizer)
    grouped = {message: [r for r in batch if r.messages[0]["content"] == message] for message in scripts}
    return {message: records[0] if n == 1 else records for message, records in grouped.items()}


def roll_one(turns, tools=(), **options):
    """Return the record of one script."""
    return roll({"go": turns}, tools, **options)["go"]


def check(record, max_length, used):
    """Assert what holds of every record: lengths, cap, mask and log-probs, text."""
    assert len(record.tokens) == len(record.loss_mask) == len(record.log_probs) <= max_length
    assert not any(record.loss_mask[: record.prompt_length])
    assert all(
        mask or log_prob == 0 for mask, log_prob in zip(record.loss_mask, record.log_probs, strict=False)
    )
    assert record.response == used.decode(record.response_ids)


def results(record):
    """Return the outputs and their statuses, in order."""
    return [(item["result"], item["status"]) for item in record.tool_calls]


def ending(record):
    return str(record.status), str(record.reason), record.num_turns


def set_model(rollout, model):
    """Let a rollout that has not run yet run another model."""
    rollout._setup = dataclasses.replace(rollout._setup, model=model)
