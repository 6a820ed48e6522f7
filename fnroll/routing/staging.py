"""Calls as they are kept until a rollout is whole: rows that never change, and a receipt for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fnroll.routing.call import CallRoutes, check_call
from fnroll.routing.digest import extras_digest, json_digest, token_digest
from fnroll.routing.errors import RouteLineageError
from fnroll.routing.schema import RouteSchema


@dataclass(frozen=True, eq=False)
class StagedRow:
    """What is kept of a call; the sidecar is kept apart, since most readers do not want it."""

    routes: Tensor | None
    """`[n, L, K]`, of the tokens that the call added; None if there are none."""
    boundary_index: int | None = None
    """Number of the token that the sidecar is of; None if there is none."""
    tokens: Tensor | None = None
    """`[n]` int64, the tokens that the call added; not read by who assembles."""


@dataclass(frozen=True)
class RouteReceipt:
    """What a plan is made of: a staged call without its tensors."""

    rollout_id: str
    call_id: str
    parent_call_id: str | None
    prev_len: int
    prompt_n: int
    gen_n: int
    weight_version: int
    route_rows: int
    """Rows of routes that were staged; 0 if there were none."""
    boundary_index: int | None
    boundary_schema_version: int | None
    prefix_digest: str
    """Of the tokens of earlier calls."""
    token_digest: str
    """Of all tokens up to the end of the call."""
    extras_digest: str
    """Of routes, sidecar and its index."""
    parent_digest: str | None
    """The parent's `digest`, so that a receipt commits to all before it."""
    digest: str = ""
    """Of all other fields."""

    @property
    def key(self) -> str:
        """Under which the call is staged."""
        return f"{self.rollout_id}/{self.call_id}"

    @property
    def end(self) -> int:
        """Tokens up to the end of the call."""
        return self.prev_len + self.prompt_n + self.gen_n

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data; `RouteReceipt(**value)` reads them."""
        return asdict(self)


def receipt_digest(receipt: RouteReceipt) -> str:
    """Return what `receipt.digest` must be."""
    fields = asdict(receipt)
    del fields["digest"]
    return json_digest(fields)


@dataclass(frozen=True, eq=False)
class RouteStore:
    """Staged calls; a value: `stage` returns a new one. Also a `RouteSource`, which assembly reads."""

    schema: RouteSchema
    rows: Mapping[str, StagedRow] = field(default_factory=lambda: MappingProxyType({}))
    """By key."""
    boundaries: Mapping[str, Tensor] = field(default_factory=lambda: MappingProxyType({}))
    """By key, `[1, L, K]`: the sidecars of the calls that have one."""
    receipts: Mapping[str, RouteReceipt] = field(default_factory=lambda: MappingProxyType({}))
    """By key, in the order of staging."""

    def fetch_rows(self, keys: Sequence[str]) -> Mapping[str, StagedRow]:
        """Return the rows that there are."""
        return {key: self.rows[key] for key in keys if key in self.rows}

    def fetch_boundaries(self, keys: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the sidecars that there are."""
        return {key: self.boundaries[key] for key in keys if key in self.boundaries}

    def receipts_of(self, rollout_id: str) -> tuple[RouteReceipt, ...]:
        """Return the receipts of a rollout's calls, retries included."""
        return tuple(receipt for receipt in self.receipts.values() if receipt.rollout_id == rollout_id)


def stage(store: RouteStore, call: CallRoutes) -> tuple[RouteStore, RouteReceipt]:
    """Return a store that holds the call too, and the call's receipt.

    The same call may be staged again; the store stays as it is.

    Raises:
      RouteError: as `check_call`.
      RouteLineageError: if the parent is not staged, does not end where this call begins, or has other
        tokens; or if another call of this id is staged.
    """
    check_call(call, store.schema)
    parent = _parent(store, call)
    receipt = _receipt(call, parent)
    known = store.receipts.get(receipt.key)
    if known is not None:
        if known != receipt:
            raise RouteLineageError(
                f"{receipt.key} is staged already, with other content: receipt {known.digest[:12]}, "
                f"here {receipt.digest[:12]}"
            )
        return store, receipt
    row = StagedRow(
        routes=_copy(call.routes),
        boundary_index=call.boundary_index,
        tokens=torch.tensor(call.tokens[call.prev_len :], dtype=torch.int64),
    )
    sidecar = {} if call.boundary is None else {receipt.key: call.boundary.detach().cpu().clone()}
    return replace(
        store,
        rows=MappingProxyType({**store.rows, receipt.key: row}),
        boundaries=MappingProxyType({**store.boundaries, **sidecar}),
        receipts=MappingProxyType({**store.receipts, receipt.key: receipt}),
    ), receipt


def discard(store: RouteStore, keys: Sequence[str]) -> RouteStore:
    """Return a store without some calls; keys that it does not hold are passed over."""
    gone = set(keys)

    def kept(values: Mapping[str, Any]) -> Mapping[str, Any]:
        return MappingProxyType({key: value for key, value in values.items() if key not in gone})

    return replace(
        store, rows=kept(store.rows), boundaries=kept(store.boundaries), receipts=kept(store.receipts)
    )


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _receipt(call: CallRoutes, parent: RouteReceipt | None) -> RouteReceipt:
    receipt = RouteReceipt(
        rollout_id=call.rollout_id,
        call_id=call.call_id,
        parent_call_id=call.parent_call_id,
        prev_len=call.prev_len,
        prompt_n=call.prompt_n,
        gen_n=call.gen_n,
        weight_version=call.weight_version,
        route_rows=0 if call.routes is None else len(call.routes),
        boundary_index=call.boundary_index,
        boundary_schema_version=call.boundary_schema_version,
        prefix_digest=token_digest(call.tokens[: call.prev_len]),
        token_digest=token_digest(call.tokens),
        extras_digest=extras_digest(call.routes, call.boundary, call.boundary_index),
        parent_digest=None if parent is None else parent.digest,
    )
    return replace(receipt, digest=receipt_digest(receipt))


def _parent(store: RouteStore, call: CallRoutes) -> RouteReceipt | None:
    if call.parent_call_id is None:
        return None
    key = f"{call.rollout_id}/{call.parent_call_id}"
    parent = store.receipts.get(key)
    if parent is None or call.parent_call_id == call.call_id:
        raise RouteLineageError(f"{call.key} goes on from {key}, which is not staged before it")
    if parent.end != call.prev_len:
        raise RouteLineageError(
            f"{call.key} has prev_len {call.prev_len}; its parent {key} ends at {parent.end}"
        )
    if parent.token_digest != token_digest(call.tokens[: call.prev_len]):
        at, theirs = _first_difference(store, parent, call)
        raise RouteLineageError(
            f"{call.key} does not go on from the tokens of {key}: token {at} is {call.tokens[at]}, "
            f"there it is {theirs}"
        )
    return parent


def _first_difference(store: RouteStore, parent: RouteReceipt, call: CallRoutes) -> tuple[int, int | None]:
    """Return the number of the first token that differs, and the parent's token there."""
    link: RouteReceipt | None = parent
    found: tuple[int, int | None] = (0, None)
    while link is not None:
        tokens = store.rows[link.key].tokens
        for index, token in enumerate([] if tokens is None else tokens.tolist()):
            if call.tokens[link.prev_len + index] != token:
                found = link.prev_len + index, token
                break
        link = store.receipts.get(f"{link.rollout_id}/{link.parent_call_id}") if link.parent_call_id else None
    return found
