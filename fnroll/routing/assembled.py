"""The routes of a whole rollout, a row a token, and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fnroll.checks import check_choice, check_int
from fnroll.routing.errors import RouteDtypeError, RouteShapeError
from fnroll.routing.schema import Provenance, RouteSchema
from fnroll.routing.values import is_missing, narrow_routes


@dataclass(frozen=True, eq=False)
class AssembledRoutes:
    """What is replayed for one record; tensors on the CPU that are never edited in place."""

    routes: Tensor
    """`[T, L, K]`, of the schema's dtype: the experts that token t was computed with; -1 throughout a row
    takes the model's own choice."""
    provenance: Tensor
    """`[T]` uint8, a `Provenance` a token."""
    status: Literal["direct", "native"] = "direct"
    """`native` if the whole rollout is routed natively."""
    reason: str | None = None
    """Why it is."""

    def __post_init__(self) -> None:
        check_choice("AssembledRoutes", "status", self.status, ("direct", "native"))
        if self.routes.ndim != 3 or self.provenance.shape != self.routes.shape[:1]:
            raise RouteShapeError(
                f"routes have shape {list(self.routes.shape)} and provenance {list(self.provenance.shape)}; "
                f"they must be [tokens, layers, experts] and [tokens]"
            )
        if self.provenance.dtype != torch.uint8:
            raise RouteDtypeError(f"provenance is {self.provenance.dtype}; it must be torch.uint8")

    def __len__(self) -> int:
        """Return T, the tokens."""
        return len(self.routes)

    def count(self, kind: Provenance) -> int:
        """Count the tokens of a provenance."""
        return int((self.provenance == int(kind)).sum())


def to_provenance(routes: Tensor, kind: Provenance = Provenance.REAL) -> Tensor:
    """Return the provenance `[T]` of routes `[T, L, K]`: missing where all layers are -1, else `kind`."""
    absent = is_missing(routes).all(-1)
    return torch.where(absent, int(Provenance.MISSING), int(kind)).to(torch.uint8)


def from_tape(routes: Tensor, schema: RouteSchema) -> AssembledRoutes:
    """Return the routes of a record whose tokens all went through one cache, so that nothing needs repair.

    Args:
      routes: `[T, L, K]` in any integer dtype; -1 where a token was not fed, as the last one.
      schema: of the model.
    """
    narrow = narrow_routes("routes", routes.detach().cpu(), schema)
    return AssembledRoutes(narrow, to_provenance(narrow))


def extend(earlier: AssembledRoutes, routes: Tensor, schema: RouteSchema) -> AssembledRoutes:
    """Return the routes of a record that went on in another cache, as after a save.

    Tokens that were fed before keep their routes, although they were fed again, perhaps under newer weights:
    their log-probs belong to the older ones. The last of them had none, and gets it now.

    Args:
      earlier: of the record's first tokens.
      routes: `[T, L, K]` in any integer dtype, of all its tokens, as `from_tape`.
      schema: of the model.

    Raises:
      RouteShapeError: if there are fewer tokens than before.
    """
    whole = from_tape(routes, schema)
    known = len(earlier)
    if len(whole) < known:
        raise RouteShapeError(f"routes are of {len(whole)} tokens; the record had {known} before")
    before = earlier.routes, earlier.provenance
    if known and earlier.provenance[-1] in (Provenance.MISSING, Provenance.PLACEHOLDER):
        before = splice_boundary(*before, whole.routes[known - 1 : known], known - 1)
    return AssembledRoutes(
        torch.cat([before[0], whole.routes[known:]]), torch.cat([before[1], whole.provenance[known:]])
    )


def native_routes(schema: RouteSchema, length: int, reason: str) -> AssembledRoutes:
    """Return routes of a record that is routed natively throughout."""
    provenance = torch.full((length,), int(Provenance.NATIVE), dtype=torch.uint8)
    return AssembledRoutes(schema.missing(length), provenance, "native", reason)


def splice_boundary(
    routes: Tensor, provenance: Tensor, boundary: Tensor, index: int
) -> tuple[Tensor, Tensor]:
    """Return routes and provenance with the route of one token put in; what is given stays as it is.

    Args:
      routes: `[T, L, K]`.
      provenance: `[T]` uint8.
      boundary: `[1, L, K]` of the same dtype; -1 says that the next call does not know the route either.
      index: of the token.

    Raises:
      RouteShapeError: for another shape or dtype of `boundary`, or a token that there is not.
    """
    if boundary.shape != (1, *routes.shape[1:]) or boundary.dtype != routes.dtype:
        raise RouteShapeError(
            f"boundary is {boundary.dtype} {list(boundary.shape)}; it must be {routes.dtype} "
            f"{[1, *routes.shape[1:]]}"
        )
    check_int("splice_boundary", "index", index, least=0, below=len(routes))
    mark = to_provenance(boundary, Provenance.REPAIRED)
    return (
        torch.cat([routes[:index], boundary, routes[index + 1 :]]),
        torch.cat([provenance[:index], mark, provenance[index + 1 :]]),
    )


def blank(assembled: AssembledRoutes, index: int) -> AssembledRoutes:
    """Return routes whose token `index` is routed natively."""
    absent = torch.full_like(assembled.routes[index : index + 1], -1)
    routes, provenance = splice_boundary(assembled.routes, assembled.provenance, absent, index)
    return replace(assembled, routes=routes, provenance=provenance)


def truncate(assembled: AssembledRoutes, length: int) -> AssembledRoutes:
    """Return the routes of the first `length` tokens.

    The new last token keeps its route: the log-prob of a token does not depend on the token's own route.

    Raises:
      ValueError: if there are fewer tokens.
    """
    check_int("truncate", "length", length, least=0, below=len(assembled) + 1)
    return replace(
        assembled,
        routes=assembled.routes[:length].clone(),
        provenance=assembled.provenance[:length].clone(),
    )
