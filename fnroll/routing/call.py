"""The routes of one call of a model: of the tokens that the call added, and of the one before them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fnroll.checks import check_int, fail
from fnroll.routing.errors import RouteBoundaryError, RouteLineageError
from fnroll.routing.schema import BOUNDARY_SCHEMA_VERSION, RouteSchema
from fnroll.routing.values import check_routes


@dataclass(frozen=True, eq=False, kw_only=True)
class CallRoutes:
    """What one call fed and sampled: `prev_len` known tokens, `prompt_n` new ones, `gen_n` sampled ones.

    Row t of the routes belongs to token `prev_len + t`: the experts that were used when it was an input. The
    last sampled token is no input of its own call; its row is a placeholder, and the next call has the route.
    """

    rollout_id: str
    """Of the trajectory that the call is part of."""
    call_id: str
    """Of the call, unique in its rollout; without a slash."""
    parent_call_id: str | None = None
    """Of the call that this one goes on from; None for the first."""
    tokens: tuple[int, ...]
    """All token ids up to the end of the call, those of earlier calls included."""
    prev_len: int = 0
    """Tokens that earlier calls cover."""
    prompt_n: int
    """Tokens that were added without being sampled: the prompt, or tool output."""
    gen_n: int
    """Tokens that were sampled; 0 for a call that only fed its prompt."""
    weight_version: int = 0
    """Of the weights that the call ran on."""
    routes: Tensor | None
    """`[prompt_n + gen_n, L, K]` of the schema's dtype; None if the engine returned none."""
    boundary: Tensor | None = None
    """`[1, L, K]`, the route of token `prev_len - 1`, which this call was the first to feed; the sidecar."""
    boundary_index: int | None = None
    """`prev_len - 1` where there is a sidecar."""
    boundary_schema_version: int | None = None
    """Of the sidecar; None for an engine that knows none."""

    def __post_init__(self) -> None:
        for name in ("rollout_id", "call_id"):
            _check_id(name, getattr(self, name))
        if self.parent_call_id is not None:
            _check_id("parent_call_id", self.parent_call_id)
        if "/" in self.call_id:
            fail(
                "CallRoutes", "call_id", self.call_id, "without a slash, which parts it from the rollout's id"
            )
        for name in ("prev_len", "prompt_n", "gen_n"):
            check_int("CallRoutes", name, getattr(self, name), least=0)
        check_int("CallRoutes", "weight_version", self.weight_version, least=0)
        self._check_lengths()
        self._check_boundary()

    @property
    def key(self) -> str:
        """Under which the call is staged."""
        return f"{self.rollout_id}/{self.call_id}"

    @property
    def num_tokens(self) -> int:
        """Tokens that the call added."""
        return self.prompt_n + self.gen_n

    def _check_lengths(self) -> None:
        if len(self.tokens) != self.prev_len + self.num_tokens or not self.num_tokens:
            raise RouteLineageError(
                f"{self.key} has {len(self.tokens)} tokens, and prev_len {self.prev_len}, prompt_n "
                f"{self.prompt_n} and gen_n {self.gen_n}; these must add up, and one token must be new"
            )
        if (self.parent_call_id is None) != (self.prev_len == 0):
            raise RouteLineageError(
                f"{self.key} has parent {self.parent_call_id} and prev_len {self.prev_len}; a first call has "
                f"no parent and prev_len 0, every other one has both"
            )

    def _check_boundary(self) -> None:
        has = self.boundary is not None
        if has != (self.boundary_index is not None) or has != (self.boundary_schema_version is not None):
            raise RouteBoundaryError(
                f"{self.key}: boundary, boundary_index ({self.boundary_index}) and boundary_schema_version "
                f"({self.boundary_schema_version}) must all be given, or none of them"
            )
        if not has:
            return
        if self.parent_call_id is None or self.routes is None:
            raise RouteBoundaryError(
                f"{self.key} has a boundary route, parent {self.parent_call_id} and "
                f"{'no' if self.routes is None else 'its'} routes; "
                f"only a call with a parent and routes has one"
            )
        if type(self.boundary_index) is not int or self.boundary_index != self.prev_len - 1:
            raise RouteBoundaryError(
                f"{self.key} (parent {self.parent_call_id}): boundary_index is {self.boundary_index}; it "
                f"must be prev_len - 1 = {self.prev_len - 1}"
            )
        if self.boundary_schema_version != BOUNDARY_SCHEMA_VERSION:
            raise RouteBoundaryError(
                f"{self.key}: boundary_schema_version is {self.boundary_schema_version}; it must be "
                f"{BOUNDARY_SCHEMA_VERSION}"
            )


def check_call(call: CallRoutes, schema: RouteSchema) -> None:
    """Require routes of the schema, a row for each token, and a sidecar of the same kind.

    Raises:
      RouteShapeError, RouteDtypeError, RouteValueError: for the routes.
      RouteBoundaryError: for the sidecar.
    """
    if call.routes is not None:
        check_routes(f"routes of {call.key}", call.routes, schema, call.num_tokens)
    if call.boundary is not None:
        check_boundary(f"boundary of {call.key}", call.boundary, schema)


def check_boundary(where: str, boundary: Tensor, schema: RouteSchema) -> None:
    """Require one valid row of routes `[1, L, K]`."""
    try:
        check_routes(where, boundary, schema, 1)
    except ValueError as error:
        raise RouteBoundaryError(str(error)) from error


def _check_id(name: str, value: str) -> None:
    if not isinstance(value, str) or not value:
        fail("CallRoutes", name, value, "a string that is not empty")
