"""How the routes of a rollout are put together from staged calls: plain data that travels with a record.

The format is NeMo-RL's route plan, version 3, and version 2 is read too; names and rules are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fnroll.routing.digest import EXTRAS_DIGEST_VERSION
from fnroll.routing.errors import RoutePlanError, RoutePlanTypeError, RoutePlanVersionError

ROUTE_PLAN_SCHEMA_VERSION = 3
READABLE_ROUTE_PLAN_VERSIONS = (2, 3)

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class RouteSpan:
    """The part of a rollout that one call added."""

    staging_key: str
    """Of the staged call."""
    carry_len: int
    """Tokens that the call added without sampling them."""
    generation_len: int
    """Tokens that it sampled."""
    staged_route_len: int
    """Rows of routes that are staged."""
    extras_digest_version: int
    extras_digest: str
    """Of routes, sidecar and its index."""
    boundary_token_index: int | None = None
    """Number of the token before the span, if the call has a sidecar with its route."""
    repair_previous_token: bool = False
    """Whether that route replaces the placeholder of the call before."""


@dataclass(frozen=True)
class RouteAssemblyPlan:
    """The calls of a rollout in order, and how many tokens they make."""

    schema_version: int
    staging_partition: str
    """Where the calls are staged; a name for who keeps them."""
    spans: tuple[RouteSpan, ...]
    """Root first; none for a rollout that is routed natively."""
    cleanup_staging_keys: tuple[str, ...]
    """Of all calls of the rollout, retries included, to be discarded when the routes were used."""
    expected_token_length: int


def classify_route_span(
    carry_len: int, generation_len: int, staged_route_len: int
) -> Literal["full", "tail", "sentinel"]:
    """Say how staged rows cover a span: all of it, the sampled tokens only (their last rows), or nothing."""
    for name, value in (
        ("carry_len", carry_len),
        ("generation_len", generation_len),
        ("staged_route_len", staged_route_len),
    ):
        check_count(name, value)
    if staged_route_len and staged_route_len == carry_len + generation_len:
        return "full"
    return "tail" if 0 < generation_len <= staged_route_len else "sentinel"


def validate_route_plan(plan: RouteAssemblyPlan) -> None:
    """Require a plan that contradicts itself nowhere.

    Raises:
      RoutePlanVersionError: for a version that is not read here.
      RoutePlanTypeError: naming a field of another type.
      RoutePlanError: naming the field, or the span, and the rule.
    """
    check_version(plan.schema_version)
    check_text("route_plan.staging_partition", plan.staging_partition)
    check_count("route_plan.expected_token_length", plan.expected_token_length)
    for index, key in enumerate(plan.cleanup_staging_keys):
        check_text(f"route_plan.cleanup_staging_keys[{index}]", key)
    keys = set(plan.cleanup_staging_keys)
    if len(keys) != len(plan.cleanup_staging_keys):
        raise RoutePlanError("route_plan.cleanup_staging_keys contains duplicates")
    position = 0
    for index, span in enumerate(plan.spans):
        _check_span(f"route_plan.spans[{index}]", span, keys)
        _check_boundary(f"route_plan.spans[{index}]", plan, index, position)
        position += span.carry_len + span.generation_len
    if plan.spans and position != plan.expected_token_length:
        raise RoutePlanError(
            f"route plan spans contribute {position} tokens, expected {plan.expected_token_length}"
        )


def check_version(version: Any) -> int:
    """Require a version that is read here, and return it."""
    if type(version) is not int:
        raise RoutePlanTypeError(
            f"route_plan.schema_version is {version!r}; it must be an int, one of "
            f"{READABLE_ROUTE_PLAN_VERSIONS}"
        )
    if version not in READABLE_ROUTE_PLAN_VERSIONS:
        raise RoutePlanVersionError(
            f"unsupported route plan schema version {version}; this fnroll reads "
            f"{READABLE_ROUTE_PLAN_VERSIONS}, a newer one may read more"
        )
    return version


def check_count(where: str, value: Any) -> None:
    """Require an int of at least 0; a bool is none."""
    if type(value) is not int:
        raise RoutePlanTypeError(f"{where} is {value!r}; it must be an int")
    if value < 0:
        raise RoutePlanError(f"{where} is {value}; it must be non-negative")


def check_text(where: str, value: Any) -> None:
    """Require a string that is not empty."""
    if not isinstance(value, str) or not value:
        raise RoutePlanTypeError(f"{where} is {value!r}; it must be a non-empty string")


def _check_span(where: str, span: RouteSpan, keys: set[str]) -> None:
    check_text(f"{where}.staging_key", span.staging_key)
    for name in ("carry_len", "generation_len", "staged_route_len"):
        check_count(f"{where}.{name}", getattr(span, name))
    if type(span.extras_digest_version) is not int or span.extras_digest_version != EXTRAS_DIGEST_VERSION:
        raise RoutePlanError(
            f"{where}.extras_digest_version is {span.extras_digest_version!r}; it must be "
            f"{EXTRAS_DIGEST_VERSION}"
        )
    digest = span.extras_digest
    if not isinstance(digest, str) or len(digest) != 64 or not _HEX.issuperset(digest):
        raise RoutePlanError(
            f"{where}.extras_digest is {digest!r}; it must be a lowercase SHA-256 hex digest"
        )
    if span.staging_key not in keys:
        raise RoutePlanError(f"{where} key {span.staging_key!r} is outside cleanup_staging_keys")


def _check_boundary(where: str, plan: RouteAssemblyPlan, index: int, position: int) -> None:
    span = plan.spans[index]
    if type(span.repair_previous_token) is not bool:
        raise RoutePlanTypeError(
            f"{where}.repair_previous_token is {span.repair_previous_token!r}; it must be a bool"
        )
    token = span.boundary_token_index
    if token is not None:
        check_count(f"{where}.boundary_token_index", token)
        fits = position > 0 and token == position - 1 and span.staged_route_len > 0
        if plan.schema_version == 2 or not fits:
            raise RoutePlanError(
                f"{where} has an invalid boundary token index {token}; it must be that of the token before "
                f"the span, of a span with routes, in a plan of version 3"
            )
    if span.repair_previous_token and (
        token is None or index == 0 or not plan.spans[index - 1].generation_len or not span.generation_len
    ):
        raise RoutePlanError(
            f"{where}: a boundary repair requires adjacent generated spans, and a boundary_token_index"
        )
