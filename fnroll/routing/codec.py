"""Plans as plain data, for JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fnroll.routing.errors import RoutePlanError, RoutePlanTypeError
from fnroll.routing.plan import RouteAssemblyPlan, RouteSpan, check_text, check_version, validate_route_plan

_BOUNDARY_FIELDS = ("boundary_token_index", "repair_previous_token")


def encode_route_plan(plan: RouteAssemblyPlan) -> dict[str, Any]:
    """Return a plan as plain data, in its own version; raises as `validate_route_plan`."""
    validate_route_plan(plan)
    spans = [asdict(span) for span in plan.spans]
    if plan.schema_version == 2:
        spans = [{name: span[name] for name in span if name not in _BOUNDARY_FIELDS} for span in spans]
    return {
        "schema_version": plan.schema_version,
        "staging_partition": plan.staging_partition,
        "spans": spans,
        "cleanup_staging_keys": list(plan.cleanup_staging_keys),
        "expected_token_length": plan.expected_token_length,
    }


def decode_route_plan(value: Any) -> RouteAssemblyPlan:
    """Return the plan that plain data describes; no field is guessed.

    A plan of version 2 knows no boundaries: nothing is repaired.

    Raises:
      RoutePlanError: as `validate_route_plan`; also for a field too many or too few.
    """
    fields = _check_fields("route_plan", value, RouteAssemblyPlan, ())
    version = check_version(fields["schema_version"])
    spans = []
    for index, span in enumerate(_check_list("route_plan.spans", fields["spans"])):
        left_out = _BOUNDARY_FIELDS if version == 2 else ()
        spans.append(RouteSpan(**_check_fields(f"route_plan.spans[{index}]", span, RouteSpan, left_out)))
    keys = _check_list("route_plan.cleanup_staging_keys", fields["cleanup_staging_keys"])
    for index, key in enumerate(keys):
        check_text(f"route_plan.cleanup_staging_keys[{index}]", key)
    plan = RouteAssemblyPlan(**{**fields, "spans": tuple(spans), "cleanup_staging_keys": tuple(keys)})
    validate_route_plan(plan)
    return plan


def encoded_route_plan_size_bytes(plan: RouteAssemblyPlan) -> int:
    """Return the bytes of a plan as compact JSON."""
    return len(json.dumps(encode_route_plan(plan), separators=(",", ":")).encode())


def _check_list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise RoutePlanTypeError(f"{where} is a {type(value).__name__}; it must be a list")
    return value


def _check_fields(where: str, value: Any, kind: type, left_out: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RoutePlanTypeError(f"{where} is a {type(value).__name__}; it must be a dict")
    wanted = {name for name in kind.__annotations__ if name not in left_out}
    if set(value) != wanted:
        raise RoutePlanError(
            f"{where} fields must be exactly {sorted(wanted)}; they are {sorted(map(str, value))}"
        )
    return value
