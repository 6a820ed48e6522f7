"""Invented rollouts: calls with retries, and what a full forward would say of every token."""

import hashlib

import torch

from fnroll.routing import CallRoutes, RouteSchema, RouteStore, capture_call, stage

SCHEMA = RouteSchema(num_experts=8, top_k=2, layer_ids=(1, 3, 4), model_id="toy")


def true_route(tokens, schema=SCHEMA):
    """`[1, L, K]`: the route of the last of `tokens`, a function of all of them as in a causal model."""
    seed = int.from_bytes(hashlib.sha256(repr(tuple(tokens)).encode()).digest()[:6], "little")
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(schema.num_experts, generator=generator)[: schema.top_k] for _ in schema.layer_ids]
    return torch.stack(rows)[None].to(schema.dtype)


def true_routes(tokens, schema=SCHEMA):
    """`[T, L, K]`: what a forward over all tokens would choose."""
    return torch.cat([true_route(tokens[: end + 1], schema) for end in range(len(tokens))])


def call(
    call_id,
    prompt,
    generated,
    *,
    parent=None,
    schema=SCHEMA,
    legacy=False,
    rollout="r",
    version=1,
    buffer=None,
):
    """A call as a clean engine captures it: parent is another call, prompt and generated are token ids."""
    prefix = () if parent is None else parent.tokens
    tokens = (*prefix, *prompt, *generated)
    captured = capture_call(
        true_routes(tokens, schema) if buffer is None else buffer,
        schema,
        rollout_id=rollout,
        call_id=call_id,
        parent_call_id=None if parent is None else parent.call_id,
        tokens=tokens,
        prev_len=len(prefix),
        prompt_n=len(prompt),
        gen_n=len(generated),
        weight_version=version,
    )
    if not legacy:
        return captured
    sidecar = ("boundary", "boundary_index", "boundary_schema_version")
    return CallRoutes(**{**vars(captured), **dict.fromkeys(sidecar)})


def staged(*calls, schema=SCHEMA):
    """A store of calls, and their receipts."""
    store, receipts = RouteStore(schema), []
    for one in calls:
        store, receipt = stage(store, one)
        receipts.append(receipt)
    return store, receipts


def expected_routes(tokens, schema=SCHEMA):
    """What a rollout of repaired turns replays: all true, and a placeholder for the last sampled token."""
    return torch.cat([true_routes(tokens, schema)[:-1], schema.placeholder(1)])


def three_turns(schema=SCHEMA, legacy=False):
    """Three calls that follow one another, each with two sampled tokens."""
    first = call("c0", [1, 2, 3], [4, 5], schema=schema)
    second = call("c1", [6], [7, 1], parent=first, schema=schema, legacy=legacy)
    return first, second, call("c2", [2, 2], [3, 4], parent=second, schema=schema, legacy=legacy)
