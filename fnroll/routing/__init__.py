"""Router replay for mixture-of-experts policies: experts of the rollout, chosen again in training."""

from fnroll.routing.assembled import (
    AssembledRoutes,
    blank,
    extend,
    from_tape,
    native_routes,
    splice_boundary,
    truncate,
)
from fnroll.routing.assembly import REASONS, RouteSource, assemble, assemble_all
from fnroll.routing.call import CallRoutes
from fnroll.routing.capture import capture_call, write_routes
from fnroll.routing.chain import select_chain, version_changes
from fnroll.routing.codec import decode_route_plan, encode_route_plan, encoded_route_plan_size_bytes
from fnroll.routing.collation import collate, separate
from fnroll.routing.envelope import (
    decode_routed_experts,
    encode_routed_experts,
    routed_experts_tensor_metadata,
    routed_experts_token_count,
)
from fnroll.routing.errors import (
    BoundarySupportError,
    CheckpointSchemaError,
    EnvelopeError,
    MissingRoutesError,
    NoRoutersError,
    ReplayScopeError,
    RouteBoundaryError,
    RouteCorruptionError,
    RouteDtypeError,
    RouteError,
    RouteLineageError,
    RoutePlanError,
    RoutePlanTypeError,
    RoutePlanVersionError,
    RouterNotCalledError,
    RouterUnsupportedError,
    RouteShapeError,
    RouteValueError,
    RouteWarning,
)
from fnroll.routing.external import import_routes, select_layers
from fnroll.routing.files import load_routes, save_routes
from fnroll.routing.gate import check_route_versions, require_boundary_support, route_versions
from fnroll.routing.plan import (
    READABLE_ROUTE_PLAN_VERSIONS,
    ROUTE_PLAN_SCHEMA_VERSION,
    RouteAssemblyPlan,
    RouteSpan,
    classify_route_span,
    validate_route_plan,
)
from fnroll.routing.planning import make_plan, native_plan
from fnroll.routing.schema import BOUNDARY_SCHEMA_VERSION, MISSING, Provenance, RouteSchema, route_dtype
from fnroll.routing.staging import RouteReceipt, RouteStore, StagedRow, discard, stage
from fnroll.routing.text import from_json, to_json
from fnroll.routing.values import check_routes, narrow_routes

__all__ = [
    "BOUNDARY_SCHEMA_VERSION",
    "MISSING",
    "READABLE_ROUTE_PLAN_VERSIONS",
    "REASONS",
    "ROUTE_PLAN_SCHEMA_VERSION",
    "AssembledRoutes",
    "BoundarySupportError",
    "CallRoutes",
    "CheckpointSchemaError",
    "EnvelopeError",
    "MissingRoutesError",
    "NoRoutersError",
    "Provenance",
    "ReplayScopeError",
    "RouteAssemblyPlan",
    "RouteBoundaryError",
    "RouteCorruptionError",
    "RouteDtypeError",
    "RouteError",
    "RouteLineageError",
    "RoutePlanError",
    "RoutePlanTypeError",
    "RoutePlanVersionError",
    "RouteReceipt",
    "RouteSchema",
    "RouteShapeError",
    "RouteSource",
    "RouteSpan",
    "RouteStore",
    "RouteValueError",
    "RouteWarning",
    "RouterNotCalledError",
    "RouterUnsupportedError",
    "StagedRow",
    "assemble",
    "assemble_all",
    "blank",
    "capture_call",
    "check_route_versions",
    "check_routes",
    "classify_route_span",
    "collate",
    "decode_route_plan",
    "decode_routed_experts",
    "discard",
    "encode_route_plan",
    "encode_routed_experts",
    "encoded_route_plan_size_bytes",
    "extend",
    "from_json",
    "from_tape",
    "import_routes",
    "load_routes",
    "make_plan",
    "narrow_routes",
    "native_plan",
    "native_routes",
    "require_boundary_support",
    "route_dtype",
    "route_versions",
    "routed_experts_tensor_metadata",
    "routed_experts_token_count",
    "save_routes",
    "select_chain",
    "select_layers",
    "separate",
    "splice_boundary",
    "stage",
    "to_json",
    "truncate",
    "validate_route_plan",
    "version_changes",
    "write_routes",
]
