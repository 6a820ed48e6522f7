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
from fnroll.routing.metrics import ReplayMetrics, combine_replay_metrics, count_provenance, replay_metrics
from fnroll.routing.plan import (
    READABLE_ROUTE_PLAN_VERSIONS,
    ROUTE_PLAN_SCHEMA_VERSION,
    RouteAssemblyPlan,
    RouteSpan,
    classify_route_span,
    validate_route_plan,
)
from fnroll.routing.planning import make_plan, native_plan
from fnroll.routing.replaying import RouteTaps, listen, replay
from fnroll.routing.routers import Router, discover_routers, to_schema
from fnroll.routing.schema import BOUNDARY_SCHEMA_VERSION, MISSING, Provenance, RouteSchema, route_dtype
from fnroll.routing.scores import SCORE_KINDS, ScoreFunction, replay_top_k, select_experts
from fnroll.routing.selfcheck import ScoreChoice, choose_score
from fnroll.routing.staging import RouteReceipt, RouteStore, StagedRow, discard, stage
from fnroll.routing.text import from_json, to_json
from fnroll.routing.values import check_routes, narrow_routes

__all__ = [
    "BOUNDARY_SCHEMA_VERSION",
    "MISSING",
    "READABLE_ROUTE_PLAN_VERSIONS",
    "REASONS",
    "ROUTE_PLAN_SCHEMA_VERSION",
    "SCORE_KINDS",
    "AssembledRoutes",
    "BoundarySupportError",
    "CallRoutes",
    "CheckpointSchemaError",
    "EnvelopeError",
    "MissingRoutesError",
    "NoRoutersError",
    "Provenance",
    "ReplayMetrics",
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
    "RouteTaps",
    "RouteValueError",
    "RouteWarning",
    "Router",
    "RouterNotCalledError",
    "RouterUnsupportedError",
    "ScoreChoice",
    "ScoreFunction",
    "StagedRow",
    "assemble",
    "assemble_all",
    "blank",
    "capture_call",
    "check_route_versions",
    "check_routes",
    "choose_score",
    "classify_route_span",
    "collate",
    "combine_replay_metrics",
    "count_provenance",
    "decode_route_plan",
    "decode_routed_experts",
    "discard",
    "discover_routers",
    "encode_route_plan",
    "encode_routed_experts",
    "encoded_route_plan_size_bytes",
    "extend",
    "from_json",
    "from_tape",
    "import_routes",
    "listen",
    "load_routes",
    "make_plan",
    "narrow_routes",
    "native_plan",
    "native_routes",
    "replay",
    "replay_metrics",
    "replay_top_k",
    "require_boundary_support",
    "route_dtype",
    "route_versions",
    "routed_experts_tensor_metadata",
    "routed_experts_token_count",
    "save_routes",
    "select_chain",
    "select_experts",
    "select_layers",
    "separate",
    "splice_boundary",
    "stage",
    "to_json",
    "to_schema",
    "truncate",
    "validate_route_plan",
    "version_changes",
    "write_routes",
]
