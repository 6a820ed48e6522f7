"""From the calls of a rollout to its plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fnroll.routing.digest import EXTRAS_DIGEST_VERSION
from fnroll.routing.errors import MissingRoutesError, RouteLineageError
from fnroll.routing.plan import ROUTE_PLAN_SCHEMA_VERSION, RouteAssemblyPlan, RouteSpan, validate_route_plan
from fnroll.routing.staging import RouteReceipt


def make_plan(
    chain: Sequence[RouteReceipt],
    *,
    partition: str = "routes",
    receipts: Iterable[RouteReceipt] = (),
    require_routes: bool = False,
) -> RouteAssemblyPlan:
    """Return the plan of a chain; a call's sidecar repairs the call before it if both sampled.

    Args:
      chain: from `select_chain`.
      partition: where the calls are staged.
      receipts: of all calls of the rollout, to be discarded later; those of the chain are added.
      require_routes: refuse a call without routes.

    Raises:
      RouteLineageError: if the calls do not follow one another.
      MissingRoutesError: naming a call without routes, if routes are required.
    """
    position, spans = 0, []
    for index, receipt in enumerate(chain):
        if receipt.prev_len != position:
            raise RouteLineageError(f"{receipt.key} has prev_len {receipt.prev_len}; it must be {position}")
        if require_routes and not receipt.route_rows:
            raise MissingRoutesError(f"{receipt.key} was staged without routes, which are required")
        previous = chain[index - 1] if index else None
        sampled = previous is not None and previous.gen_n > 0 and receipt.gen_n > 0
        spans.append(
            RouteSpan(
                staging_key=receipt.key,
                carry_len=receipt.prompt_n,
                generation_len=receipt.gen_n,
                staged_route_len=receipt.route_rows,
                extras_digest_version=EXTRAS_DIGEST_VERSION,
                extras_digest=receipt.extras_digest,
                boundary_token_index=receipt.boundary_index,
                repair_previous_token=sampled and receipt.boundary_index is not None,
            )
        )
        position = receipt.end
    keys = dict.fromkeys([*(span.staging_key for span in spans), *(receipt.key for receipt in receipts)])
    plan = RouteAssemblyPlan(ROUTE_PLAN_SCHEMA_VERSION, partition, tuple(spans), tuple(keys), position)
    validate_route_plan(plan)
    return plan


def native_plan(length: int, *, partition: str = "routes", cleanup: Sequence[str] = ()) -> RouteAssemblyPlan:
    """Return a plan without spans: so many tokens, all routed natively."""
    plan = RouteAssemblyPlan(ROUTE_PLAN_SCHEMA_VERSION, partition, (), tuple(cleanup), length)
    validate_route_plan(plan)
    return plan
