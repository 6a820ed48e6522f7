"""What must be known before a rollout starts: whether boundaries can be repaired at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fnroll.routing.errors import BoundarySupportError, CheckpointSchemaError
from fnroll.routing.plan import READABLE_ROUTE_PLAN_VERSIONS, ROUTE_PLAN_SCHEMA_VERSION
from fnroll.routing.schema import BOUNDARY_SCHEMA_VERSION

BOUNDARY_FIELD = "routed_experts_boundary_schema_version"
PLAN_FIELD = "route_plan_schema_version"

_NO_MIGRATION = (
    "nothing migrates staged routes: finish what is staged with the older code, or start without it"
)


def require_boundary_support(engine: Any) -> None:
    """Require an engine that returns the route of the token before a call.

    Args:
      engine: says so by an attribute `routed_experts_boundary_schema_version`.

    Raises:
      BoundarySupportError: naming the engine and the version.
    """
    found = getattr(engine, BOUNDARY_FIELD, None)
    if type(found) is not int or found != BOUNDARY_SCHEMA_VERSION:
        name = engine.__name__ if isinstance(engine, type) else type(engine).__name__
        raise BoundarySupportError(
            f"{name}.{BOUNDARY_FIELD} is {found!r}; it must be {BOUNDARY_SCHEMA_VERSION}: without the "
            f"routes of turn boundaries a replay forces experts there that nobody chose"
        )


def route_versions() -> dict[str, int]:
    """Return what a checkpoint must hold to be resumed with routes."""
    return {PLAN_FIELD: ROUTE_PLAN_SCHEMA_VERSION, BOUNDARY_FIELD: BOUNDARY_SCHEMA_VERSION}


def check_route_versions(where: str, metadata: Mapping[str, Any], *, require_boundary: bool = True) -> None:
    """Require a checkpoint whose routes can be read here.

    Args:
      where: path or name, for messages.
      metadata: of the checkpoint, with what `route_versions` gave when it was written.
      require_boundary: refuse one that was written without boundaries.

    Raises:
      CheckpointSchemaError: naming field, version, and what to do.
    """
    found = metadata.get(BOUNDARY_FIELD)
    wanted: tuple[Any, ...] = (
        (BOUNDARY_SCHEMA_VERSION,) if require_boundary else (None, BOUNDARY_SCHEMA_VERSION)
    )
    if type(found) not in (int, type(None)) or found not in wanted:
        raise CheckpointSchemaError(
            f"{where} has {BOUNDARY_FIELD} {found!r}; it must be {BOUNDARY_SCHEMA_VERSION}. {_NO_MIGRATION}"
        )
    plan = metadata.get(PLAN_FIELD)
    if type(plan) is not int or plan not in READABLE_ROUTE_PLAN_VERSIONS:
        raise CheckpointSchemaError(
            f"{where} has {PLAN_FIELD} {plan!r}; it must be one of {READABLE_ROUTE_PLAN_VERSIONS}. "
            f"{_NO_MIGRATION}"
        )
