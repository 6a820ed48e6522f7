"""Routes that another engine captured, as vLLM and SGLang return them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fnroll.checks import check_choice, check_int
from fnroll.routing.call import CallRoutes, check_boundary
from fnroll.routing.capture import with_routes
from fnroll.routing.envelope import decode_routed_experts
from fnroll.routing.errors import RouteBoundaryError, RouteShapeError
from fnroll.routing.schema import BOUNDARY_SCHEMA_VERSION, RouteSchema
from fnroll.routing.values import narrow_routes


def select_layers(
    where: str,
    routes: Tensor,
    schema: RouteSchema,
    *,
    num_hidden_layers: int | None = None,
    layer_ids: Sequence[int] | None = None,
) -> Tensor:
    """Return routes `[n, L, K]` of the layers that have a router, in the order of the schema.

    Args:
      where: what the routes are called in a message.
      routes: `[n, layers, K]`: of the L layers with a router, or of all layers of the model.
      schema: of the model.
      num_hidden_layers: how many layers the model has, dense ones included; None if that is not known.
      layer_ids: which layer each entry of the second dimension is; None goes by their number.

    Raises:
      RouteShapeError: if it is not certain which layer is which.
    """
    own = schema.layer_ids
    if routes.ndim != 3:
        raise RouteShapeError(f"{where} has shape {list(routes.shape)}; it must be [tokens, layers, experts]")
    if layer_ids is not None:
        place = {layer: index for index, layer in enumerate(layer_ids)}
        absent = [layer for layer in own if layer not in place]
        if len(place) != routes.shape[1] or absent:
            raise RouteShapeError(
                f"{where} has {routes.shape[1]} layers, said to be {list(layer_ids)}; they must be as many, "
                f"different ones, and hold {list(own)}"
            )
        return routes[:, [place[layer] for layer in own]]
    if routes.shape[1] == len(own):
        return routes
    if routes.shape[1] == num_hidden_layers and own[-1] < num_hidden_layers:
        return routes[:, list(own)]
    all_layers = "an unknown number" if num_hidden_layers is None else str(num_hidden_layers)
    raise RouteShapeError(
        f"{where} has {routes.shape[1]} layers; it must have the {len(own)} layers with a router, or all "
        f"layers of the model ({all_layers})"
    )


def import_routes(
    payload: Any,
    schema: RouteSchema,
    *,
    start: int = 0,
    boundary: Any = None,
    boundary_index: int | None = None,
    num_hidden_layers: int | None = None,
    layer_ids: Sequence[int] | None = None,
    missing: Literal["error", "native"] = "error",
    **call: Any,
) -> CallRoutes:
    """Return the routes of a call that another engine ran.

    vLLM and SGLang return the routes of all tokens that were fed, which are all but the last sampled one:
    `[len - 1, layers, K]`, or the part from `start` on. One row more is taken too, and not read: it is of
    the token that nobody fed. A call that sampled nothing fed all its tokens; where its last row was left
    out, it is -1.

    Args:
      payload: tensor, array, nested lists or `nrlre1:` envelope.
      schema: of the model.
      start: number of the token that the first row belongs to, at most `prev_len`.
      boundary: `[1, layers, K]`, the sidecar, as a payload; None takes the row of token `prev_len - 1` from
        the payload. Where the payload starts behind it, the call has none, as one of an older engine.
      boundary_index: of the sidecar.
      num_hidden_layers: see `select_layers`.
      layer_ids: see `select_layers`.
      missing: whether rows that are missing at the end are refused, or are -1.
      **call: the other fields of `CallRoutes`.

    Raises:
      RouteError: saying what does not fit.
    """
    check_choice("import_routes", "missing", missing, ("error", "native"))
    fields = CallRoutes(routes=None, **call)
    check_int("import_routes", "start", start, least=0, below=fields.prev_len + 1)

    def read(where: str, value: Any) -> Tensor:
        routes = select_layers(
            where, _to_tensor(where, value), schema, num_hidden_layers=num_hidden_layers, layer_ids=layer_ids
        )
        return narrow_routes(where, routes, schema)

    end = len(fields.tokens)
    fed = end - 1 if fields.gen_n else end
    rows = _fit(read(f"routes of {fields.key}", payload), schema, fields, fed - start, missing)
    whole = with_routes(rows, schema, fields, start=start, sampled_at=fed)
    if boundary is None and boundary_index is None:
        return whole
    if boundary is None or boundary_index is None:
        raise RouteBoundaryError(f"{fields.key}: boundary and boundary_index must both be given, or neither")
    return _with_sidecar(whole, read(f"boundary of {fields.key}", boundary), boundary_index, schema)


def _to_tensor(where: str, payload: Any) -> Tensor:
    if isinstance(payload, Tensor):
        return payload.detach().cpu()
    if isinstance(payload, np.ndarray):
        if payload.dtype.kind not in "iu":
            raise RouteShapeError(f"{where} is an array of {payload.dtype}; it must be one of integers")
        return torch.from_numpy(payload.astype(payload.dtype.newbyteorder("=")))
    return decode_routed_experts(payload)


def _fit(rows: Tensor, schema: RouteSchema, call: CallRoutes, wanted: int, missing: str) -> Tensor:
    """Return as many rows as were fed: one too many is cut, missing ones are -1 where that is allowed."""
    surplus = len(rows) - wanted
    # A call that sampled nothing loses its last row in engines that always leave one out.
    may_lack = wanted if missing == "native" else int(call.gen_n == 0)
    if surplus > int(call.gen_n > 0) or -surplus > may_lack:
        raise RouteShapeError(
            f"routes of {call.key} have {len(rows)} rows; {wanted} tokens were fed"
            + (", and one row more is allowed" if call.gen_n else "")
            + (' (missing="native" takes the model\'s own choice for the rest)' if surplus < 0 else "")
        )
    return rows[:wanted] if surplus >= 0 else torch.cat([rows, schema.missing(-surplus)])


def _with_sidecar(call: CallRoutes, boundary: Tensor, index: int, schema: RouteSchema) -> CallRoutes:
    check_boundary(f"boundary of {call.key}", boundary, schema)
    if call.boundary is not None and not torch.equal(call.boundary, boundary):
        raise RouteBoundaryError(
            f"{call.key}: the sidecar says {boundary[0].tolist()} of token {index}, the call's own routes "
            f"{call.boundary[0].tolist()}; one of them is wrong"
        )
    return replace(
        call,
        boundary=boundary,
        boundary_index=index,
        boundary_schema_version=BOUNDARY_SCHEMA_VERSION,
    )
