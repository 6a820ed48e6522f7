"""What can be wrong with routes, each by a name of its own."""

from __future__ import annotations


class RouteError(ValueError):
    """Routes that cannot be treated rightly."""


class RouteShapeError(RouteError):
    """Rows, layers or experts a token are not as many as they must be."""


class RouteDtypeError(RouteError):
    """The dtype is not the one that the number of experts asks for."""


class RouteValueError(RouteError):
    """A row holds no choice of experts: partly -1, an expert twice, or one that the model has not."""


class RouteBoundaryError(RouteError):
    """The sidecar of a call does not belong to the token before the call."""


class RouteLineageError(RouteError):
    """Calls do not follow from one another."""


class MissingRoutesError(RouteError):
    """There are no routes where they are required."""


class RouteCorruptionError(RouteError):
    """What was staged is gone or changed; who assembles decides what follows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{message} ({reason})")
        self.reason = reason
        """A word for counters, one of `fnroll.routing.assembly.REASONS`."""


class EnvelopeError(RouteError):
    """A text is no envelope of routes."""


class RoutePlanError(RouteError):
    """A plan contradicts itself."""


class RoutePlanTypeError(RoutePlanError, TypeError):
    """A field of a plan has another type."""


class RoutePlanVersionError(RoutePlanError):
    """A plan is of a version that is not read here."""


class BoundarySupportError(RouteError):
    """An engine does not return the routes of turn boundaries."""


class CheckpointSchemaError(RouteError):
    """A checkpoint holds routes of another schema."""


class RouterUnsupportedError(RouteError):
    """No known function of its logits gives a router's weights."""


class NoRoutersError(RouteError):
    """A model has no routers."""


class RouterNotCalledError(RouteError):
    """A forward went past a router."""


class ReplayScopeError(RouteError):
    """A replay ended before the backward pass that computes the routers again, or began within another."""


class RouteWarning(UserWarning):
    """Something is replayed less exactly than was asked for."""
