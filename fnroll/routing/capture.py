"""From the routes that single forwards report to those of a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fnroll.routing.call import CallRoutes, check_call
from fnroll.routing.errors import RouteDtypeError, RouteShapeError
from fnroll.routing.schema import BOUNDARY_SCHEMA_VERSION, RouteSchema
from fnroll.routing.values import narrow_routes


def write_routes(buffer: Tensor, positions: Tensor, routes: Tensor, valid: Tensor | None = None) -> Tensor:
    """Return a buffer of routes with those of one forward; keyed by position, so in any order and any pieces.

    A call starts from a buffer of -1 (`schema.missing`), so rows of earlier calls cannot be written to. A
    position may be written again within a call: its token was fed again.

    Args:
      buffer: `[T, L, K]`, of one record.
      positions: `[Q]` int64, of the tokens that were fed.
      routes: `[Q, L, K]`, in any integer dtype.
      valid: `[Q]` bool, False on padding; None takes all.

    Raises:
      RouteShapeError: for other shapes, or a position that is not in the buffer, or twice in `positions`.
      RouteDtypeError: if the buffer cannot hold an id.
    """
    if routes.shape != (len(positions), *buffer.shape[1:]):
        raise RouteShapeError(
            f"routes of {len(positions)} positions have shape {list(routes.shape)}; it must be "
            f"{[len(positions), *buffer.shape[1:]]}"
        )
    if valid is not None:
        positions, routes = positions[valid], routes[valid]
    listed = sorted(positions.tolist())
    if listed and (listed[0] < 0 or listed[-1] >= len(buffer)):
        raise RouteShapeError(
            f"positions are {listed[0]} to {listed[-1]}; they must be from 0 to {len(buffer) - 1}"
        )
    if len(set(listed)) != len(listed):
        raise RouteShapeError("a position is fed twice in one forward")
    narrow = routes.to(buffer.dtype)
    if not torch.equal(narrow.to(torch.int64), routes.to(torch.int64)):
        raise RouteDtypeError(
            f"routes hold ids that a buffer of {buffer.dtype} cannot; take the schema's dtype"
        )
    return buffer.index_put((positions,), narrow)


def capture_call(buffer: Tensor, schema: RouteSchema, **call: Any) -> CallRoutes:
    """Return the routes of a call from a buffer over all its tokens; its sidecar repairs the parent.

    The last token of a call that sampled was not fed: its row is a placeholder, whatever the buffer holds.
    In a call that sampled nothing it was, and its row is real. A row that was not computed is -1.

    Args:
      buffer: `[T, L, K]` in any integer dtype, from `write_routes`.
      schema: of the model.
      **call: the fields of `CallRoutes` but routes and boundary.

    Raises:
      RouteError: as `check_call`; also if the buffer is shorter than the call's tokens.
    """
    fields = CallRoutes(routes=None, **call)
    end = fields.prev_len + fields.num_tokens
    fed = end - 1 if fields.gen_n else end
    if len(buffer) < fed:
        raise RouteShapeError(f"{fields.key} fed {fed} tokens; its buffer has {len(buffer)} rows")
    start = max(fields.prev_len - 1, 0)
    rows = narrow_routes(f"buffer of {fields.key} from token {start} on", buffer[start:fed], schema)
    return with_routes(rows, schema, fields, start=start, sampled_at=fed)


def with_routes(
    rows: Tensor, schema: RouteSchema, call: CallRoutes, *, start: int, sampled_at: int
) -> CallRoutes:
    """Return a call with its part of the rows, those before it left out.

    Args:
      rows: `[n, L, K]` of the schema's dtype, of the tokens from `start` on.
      schema: of the model.
      call: without routes.
      start: number of the token that the first row belongs to.
      sampled_at: number of the first token that was not fed.
    """
    own = rows[call.prev_len - start :]
    if sampled_at < len(call.tokens):
        own = torch.cat([own, schema.placeholder(1)])
    index = call.prev_len - 1
    has_boundary = call.parent_call_id is not None and call.gen_n > 0 and index >= start
    whole = replace(
        call,
        routes=own.contiguous(),
        boundary=rows[index - start : index - start + 1].clone() if has_boundary else None,
        boundary_index=index if has_boundary else None,
        boundary_schema_version=BOUNDARY_SCHEMA_VERSION if has_boundary else None,
    )
    check_call(whole, schema)
    return whole
