"""Whether a tensor holds routes, and routes in the dtype of their schema."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fnroll.routing.errors import RouteDtypeError, RouteShapeError, RouteValueError
from fnroll.routing.schema import MISSING, RouteSchema

_INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
)


def check_shape(where: str, routes: Any, schema: RouteSchema, rows: int | None = None) -> None:
    """Require a tensor `[rows, L, K]`; None takes any number of rows."""
    if not isinstance(routes, Tensor):
        raise RouteShapeError(f"{where} is a {type(routes).__name__}; it must be a tensor")
    wanted = (routes.shape[0] if routes.ndim else 0) if rows is None else rows
    if routes.shape != (wanted, *schema.row_shape):
        raise RouteShapeError(
            f"{where} has shape {list(routes.shape)}; it must be [{'tokens' if rows is None else rows}, "
            f"{schema.row_shape[0]} layers with a router, {schema.top_k} experts a token]"
        )


def check_routes(where: str, routes: Any, schema: RouteSchema, rows: int | None = None) -> None:
    """Require valid routes of a schema.

    Args:
      where: what the routes are called in a message.
      routes: `[rows, L, K]` of the schema's dtype.
      schema: of the model.
      rows: how many tokens there must be; None goes unchecked.

    Raises:
      RouteShapeError: for another shape.
      RouteDtypeError: for another dtype.
      RouteValueError: naming token, layer and row of the first that is no choice of experts.
    """
    check_shape(where, routes, schema, rows)
    if routes.dtype != schema.dtype:
        raise RouteDtypeError(
            f"{where} is {routes.dtype}; it must be {schema.dtype}, which holds the ids of "
            f"{schema.num_experts} experts and -1"
        )
    _check_values(where, routes, schema)


def narrow_routes(where: str, routes: Any, schema: RouteSchema) -> Tensor:
    """Return routes of any integer dtype in that of the schema; values are checked before the cast.

    Raises:
      RouteShapeError: for another shape than `[tokens, L, K]`.
      RouteDtypeError: for numbers that are no integers, or of 64 bits without a sign.
      RouteValueError: as `check_routes`.
    """
    check_shape(where, routes, schema)
    if routes.dtype not in _INTEGERS:
        raise RouteDtypeError(f"{where} is {routes.dtype}; it must be one of integers, best {schema.dtype}")
    _check_values(where, routes, schema)
    narrow: Tensor = routes.to(schema.dtype)
    return narrow


def is_missing(routes: Tensor) -> Tensor:
    """Return `[...]` bool: which rows of `[..., K]` are all -1."""
    return (routes.to(torch.int64) == MISSING).all(-1)


def _check_values(where: str, routes: Tensor, schema: RouteSchema) -> None:
    # In int8 a comparison with 128 compares with -128: everything is compared as int64.
    wide = routes.to(torch.int64)
    known = ~is_missing(wide)
    outside = ((wide < 0) | (wide >= schema.num_experts)).any(-1)
    ordered = wide.sort(-1).values
    twice = (ordered[..., 1:] == ordered[..., :-1]).any(-1)
    bad = (known & (outside | twice)).nonzero()
    if len(bad):
        token, layer = bad[0].tolist()
        raise RouteValueError(
            f"{where}: token {token}, layer {schema.layer_ids[layer]} has {wide[token, layer].tolist()}; a "
            f"row must be {schema.top_k} different experts from 0 to "
            f"{schema.num_experts - 1}, or -1 throughout"
        )
