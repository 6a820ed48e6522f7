"""Staged calls and pending plans as bytes, for a checkpoint; bit for bit, without pickle."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fnroll.routing.codec import decode_route_plan, encode_route_plan
from fnroll.routing.digest import extras_digest
from fnroll.routing.errors import CheckpointSchemaError, RouteCorruptionError, RouteError
from fnroll.routing.gate import check_route_versions, route_versions
from fnroll.routing.plan import RouteAssemblyPlan
from fnroll.routing.schema import RouteSchema
from fnroll.routing.staging import RouteReceipt, RouteStore, StagedRow, receipt_digest

_FORMAT = "fnroll-routes"


def save_routes(store: RouteStore, plans: Sequence[RouteAssemblyPlan] = ()) -> bytes:
    """Return staged calls, their receipts, and plans not carried out yet, as the bytes of a file."""
    keys = list(store.receipts)
    header = {
        "format": _FORMAT,
        **route_versions(),
        "schema": store.schema.to_json(),
        "receipts": [store.receipts[key].to_json() for key in keys],
        "plans": [encode_route_plan(plan) for plan in plans],
    }
    arrays: dict[str, Any] = {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
    for index, key in enumerate(keys):
        row = store.rows[key]
        parts = {"routes": row.routes, "tokens": row.tokens, "boundary": store.boundaries.get(key)}
        for name, tensor in parts.items():
            if tensor is not None:
                arrays[f"{name}_{index}"] = tensor.numpy()
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def load_routes(
    data: bytes,
    *,
    schema: RouteSchema | None = None,
    require_boundary: bool = True,
    where: str = "the checkpoint",
) -> tuple[RouteStore, list[RouteAssemblyPlan]]:
    """Read what `save_routes` wrote.

    Args:
      data: of the file.
      schema: of the model that goes on; None goes unchecked.
      require_boundary: refuse routes that were staged by code that knows no boundaries.
      where: path or name, for messages.

    Raises:
      CheckpointSchemaError: for another format, version or schema.
      RouteCorruptionError: naming the call whose routes or receipt were changed.
    """
    header, arrays = _open(data, where)
    check_route_versions(where, header, require_boundary=require_boundary)
    try:
        own = RouteSchema.from_json(header["schema"])
        receipts = [RouteReceipt(**receipt) for receipt in header["receipts"]]
        plans = [decode_route_plan(plan) for plan in header["plans"]]
    except (KeyError, TypeError) as error:
        raise CheckpointSchemaError(f"{where} is damaged: its header does not fit ({error})") from error
    if schema is not None and own != schema:
        raise CheckpointSchemaError(f"{where} has routes of {own}, this model has {schema}")
    store = RouteStore(
        own,
        MappingProxyType({r.key: _row(r, index, arrays) for index, r in enumerate(receipts)}),
        MappingProxyType(
            {r.key: arrays[f"boundary_{i}"] for i, r in enumerate(receipts) if f"boundary_{i}" in arrays}
        ),
        MappingProxyType({receipt.key: receipt for receipt in receipts}),
    )
    for receipt in receipts:
        _verify(where, receipt, store)
    return store, plans


def _open(data: bytes, where: str) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: torch.from_numpy(file[name]) for name in file.files}
        header = json.loads(arrays.pop("header").numpy().tobytes())
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointSchemaError(
            f"{where} holds no routes, or is damaged or half written ({error})"
        ) from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise CheckpointSchemaError(f"{where} holds arrays, but no routes")
    return header, arrays


def _row(receipt: RouteReceipt, index: int, arrays: Mapping[str, Tensor]) -> StagedRow:
    return StagedRow(arrays.get(f"routes_{index}"), receipt.boundary_index, arrays.get(f"tokens_{index}"))


def _verify(where: str, receipt: RouteReceipt, store: RouteStore) -> None:
    row = store.rows[receipt.key]
    try:
        found = extras_digest(row.routes, store.boundaries.get(receipt.key), row.boundary_index)
    except RouteError as error:
        raise RouteCorruptionError("fragment_integrity", f"{where}: {receipt.key}: {error}") from error
    if receipt.digest != receipt_digest(receipt) or found != receipt.extras_digest:
        raise RouteCorruptionError(
            "fragment_integrity",
            f"{where}: the routes or the receipt of {receipt.key} were changed: digest {found[:12]}, "
            f"committed {receipt.extras_digest[:12]}",
        )
