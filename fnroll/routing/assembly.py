"""Plans carried out: the routes of whole rollouts from staged calls, turn boundaries repaired."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from fnroll.checks import check_choice
from fnroll.routing.assembled import AssembledRoutes, blank, native_routes, splice_boundary, to_provenance
from fnroll.routing.digest import extras_digest
from fnroll.routing.errors import RouteCorruptionError, RouteError, RouteWarning
from fnroll.routing.plan import RouteAssemblyPlan, RouteSpan, classify_route_span, validate_route_plan
from fnroll.routing.schema import Provenance, RouteSchema
from fnroll.routing.staging import StagedRow
from fnroll.routing.values import narrow_routes

REASONS = (
    "canonical_length_mismatch",
    "missing_fragment",
    "fragment_integrity",
    "fragment_length",
    "fragment_model_shape",
    "fragment_values",
    "fragment_boundary",
)
"""Why a rollout could not be assembled; NeMo-RL's words where it has one."""


class RouteSource(Protocol):
    """Where staged calls are read from. `RouteStore` is one."""

    def fetch_rows(self, keys: Sequence[str]) -> Mapping[str, StagedRow]:
        """Return the rows of these keys; those that are gone are left out."""

    def fetch_boundaries(self, keys: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the sidecars of these keys; those that are gone are left out."""


def assemble(
    plan: RouteAssemblyPlan,
    source: RouteSource,
    schema: RouteSchema,
    *,
    length: int,
    on_failure: Literal["reject", "native"],
    legacy_boundary: Literal["placeholder", "native"] = "placeholder",
    last_token: Literal["placeholder", "native"] = "placeholder",
) -> AssembledRoutes:
    """Return the routes of a rollout; what is staged stays as it is.

    Directly, when the rollout has ended, a rollout whose routes are damaged is refused
    (`on_failure="reject"`). Deferred, the plan travels with the record, and the trainer assembles it: such a
    rollout is then routed natively throughout (`"native"`), never in part. Both give the same routes.

    Args:
      plan: of the rollout.
      source: where its calls are staged.
      schema: of the model that replays.
      length: tokens of the record.
      on_failure: see above.
      legacy_boundary: what the last token of a turn gets when the next call has no sidecar, as those of
        older engines: its placeholder, or the model's own choice, which is nearer while routers mostly agree.
      last_token: the same for the last token of the rollout, whose route nobody knows or needs.

    Raises:
      RoutePlanError: for a plan that contradicts itself.
      RouteCorruptionError: with `"reject"`, saying which call is damaged, and how.
    """
    return assemble_all(
        [plan], source, schema, lengths=[length], on_failure=on_failure, legacy_boundary=legacy_boundary,
        last_token=last_token,
    )[0]  # fmt: skip


def assemble_all(
    plans: Sequence[RouteAssemblyPlan],
    source: RouteSource,
    schema: RouteSchema,
    *,
    lengths: Sequence[int],
    on_failure: Literal["reject", "native"],
    legacy_boundary: Literal["placeholder", "native"] = "placeholder",
    last_token: Literal["placeholder", "native"] = "placeholder",
) -> list[AssembledRoutes]:
    """Return the routes of many rollouts with one read of rows and one of sidecars; see `assemble`."""
    check_choice("assemble", "on_failure", on_failure, ("reject", "native"))
    check_choice("assemble", "legacy_boundary", legacy_boundary, ("placeholder", "native"))
    check_choice("assemble", "last_token", last_token, ("placeholder", "native"))
    for plan in plans:
        validate_route_plan(plan)
    spans = [span for plan in plans for span in plan.spans if _mode(span) != "sentinel"]
    keys = list(dict.fromkeys(span.staging_key for span in spans))
    sidecars = list(dict.fromkeys(s.staging_key for s in spans if s.boundary_token_index is not None))
    rows = source.fetch_rows(keys) if keys else {}
    boundaries = source.fetch_boundaries(sidecars) if sidecars else {}
    found = []
    for plan, length in zip(plans, lengths, strict=True):
        try:
            whole = _join(plan, rows, boundaries, schema, length, legacy_boundary)
        except RouteCorruptionError as error:
            if on_failure == "reject":
                raise
            warnings.warn(f"a rollout is routed natively: {error}", RouteWarning, stacklevel=2)
            whole = native_routes(schema, length, error.reason)
        if last_token == "native" and length and whole.provenance[-1] == Provenance.PLACEHOLDER:
            whole = blank(whole, length - 1)
        found.append(whole)
    return found


def _join(
    plan: RouteAssemblyPlan,
    rows: Mapping[str, StagedRow],
    boundaries: Mapping[str, Tensor],
    schema: RouteSchema,
    length: int,
    legacy_boundary: str,
) -> AssembledRoutes:
    if plan.expected_token_length != length:
        raise RouteCorruptionError(
            "canonical_length_mismatch",
            f"the plan is of {plan.expected_token_length} tokens, the record has {length}",
        )
    if not plan.spans:
        return native_routes(schema, length, "no_spans")
    parts: list[tuple[Tensor, Tensor]] = []
    legacy: list[tuple[str, int]] = []
    position = 0
    for span in plan.spans:
        part, boundary = _read(span, rows, boundaries, schema)
        if span.repair_previous_token and boundary is not None:
            parts[-1] = splice_boundary(*parts[-1], boundary, len(parts[-1][0]) - 1)
        elif parts and len(parts[-1][1]) and parts[-1][1][-1] == Provenance.PLACEHOLDER:
            legacy.append((span.staging_key, position - 1))
        parts.append(part)
        position += span.carry_len + span.generation_len
    routes, provenance = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    whole = AssembledRoutes(routes, provenance)
    if legacy:
        warnings.warn(_legacy_message(legacy, legacy_boundary), RouteWarning, stacklevel=3)
    for _, index in legacy if legacy_boundary == "native" else ():
        whole = blank(whole, index)
    return whole


def _legacy_message(legacy: Sequence[tuple[str, int]], legacy_boundary: str) -> str:
    keys = ", ".join(key for key, _ in legacy)
    then = "is routed natively" if legacy_boundary == "native" else "keeps its placeholder"
    return f"no route of the token before it came with {keys}: the last token of the turn before {then}"


def _mode(span: RouteSpan) -> str:
    return classify_route_span(span.carry_len, span.generation_len, span.staged_route_len)


def _read(
    span: RouteSpan, rows: Mapping[str, StagedRow], boundaries: Mapping[str, Tensor], schema: RouteSchema
) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """Return routes and provenance of a span, and its sidecar; all checked."""
    mode, length = _mode(span), span.carry_len + span.generation_len
    if mode == "sentinel":
        absent = schema.missing(length)
        return (absent, to_provenance(absent)), None
    key = span.staging_key
    row = rows.get(key)
    if row is None or row.routes is None:
        raise RouteCorruptionError("missing_fragment", f"the routes of {key} are gone")
    sidecar = None if span.boundary_token_index is None else boundaries.get(key)
    boundary = _verify(span, row, sidecar)
    routes = _narrow(key, "routes", row.routes, schema, span.staged_route_len, "fragment_length")
    if boundary is not None:
        boundary = _narrow(key, "boundary", boundary, schema, 1, "fragment_boundary")
    if mode == "tail":
        routes = torch.cat([schema.missing(span.carry_len), routes[-span.generation_len :]])
    provenance = to_provenance(routes)
    if span.generation_len and provenance[-1] != Provenance.MISSING:
        mark = provenance.new_tensor([int(Provenance.PLACEHOLDER)])
        provenance = torch.cat([provenance[:-1], mark])
    return (routes, provenance), boundary


def _verify(span: RouteSpan, row: StagedRow, boundary: Tensor | None) -> Tensor | None:
    """Return the sidecar, once it and the row are what the plan commits to."""
    key = span.staging_key
    if row.boundary_index != span.boundary_token_index:
        raise RouteCorruptionError(
            "fragment_boundary",
            f"the sidecar of {key} is of token {row.boundary_index}, the plan says "
            f"{span.boundary_token_index}",
        )
    if boundary is None and span.boundary_token_index is not None:
        raise RouteCorruptionError("fragment_integrity", f"the sidecar of {key} is gone")
    try:
        found = extras_digest(row.routes, boundary, row.boundary_index)
    except RouteError as error:
        raise RouteCorruptionError("fragment_integrity", f"{key}: {error}") from error
    if found != span.extras_digest:
        raise RouteCorruptionError(
            "fragment_integrity",
            f"routes, sidecar or index of {key} were changed: digest {found[:12]}, committed "
            f"{span.extras_digest[:12]}",
        )
    return boundary


def _narrow(key: str, name: str, routes: Tensor, schema: RouteSchema, rows: int, reason: str) -> Tensor:
    """Return staged rows in the schema's dtype, after a check of shape and values."""
    if len(routes) != rows:
        raise RouteCorruptionError(reason, f"{name} of {key} have {len(routes)} rows, the plan says {rows}")
    if tuple(routes.shape[1:]) != schema.row_shape:
        raise RouteCorruptionError(
            "fragment_model_shape",
            f"{name} of {key} are {list(routes.shape[1:])} a token, the model has {list(schema.row_shape)}",
        )
    try:
        return narrow_routes(f"{name} of {key}", routes, schema)
    except RouteError as error:
        raise RouteCorruptionError("fragment_values", str(error)) from error
