"""How rows that were just admitted get their keys and values: copies, then forwards, tier by tier."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fnroll.compile.steps import LoweredSteps
from fnroll.core.types import RolloutState
from fnroll.rollout.cache.plan import Copy, Feed, Tier
from fnroll.rollout.driver.profile import Profile

# A row joins another's prefill if that computes at most this many empty columns; a forward of its own,
# which reads all weights again, would cost about as much.
_PADDING = 16


def group_prefill(feeds: Sequence[Feed]) -> list[list[Feed]]:
    """Group rows by how many tokens they are fed, so that each forward computes few empty columns."""
    groups: list[list[Feed]] = []
    for feed in sorted(feeds, key=lambda feed: -feed.missing):
        if groups and groups[-1][0].missing - feed.missing <= _PADDING:
            groups[-1].append(feed)
        else:
            groups.append([feed])
    return groups


def fill_rows(
    steps: LoweredSteps, state: RolloutState, tiers: Sequence[Tier], profile: Profile
) -> RolloutState:
    """Bring keys and values into rows as a plan says, and count what it took."""
    for tier in tiers:
        state = _copy(steps, state, tier, profile)
        for group in group_prefill(tier.feeds):
            state = _feed(steps, state, group, profile)
    return state


def _copy(steps: LoweredSteps, state: RolloutState, tier: Tier, profile: Profile) -> RolloutState:
    for copies, pooled in ((tier.shared, False), (tier.pooled, True)):
        if copies:
            sources, rows, lengths = _columns(state, copies)
            longest = max(copy.length for copy in copies)
            state = steps.share(state, sources, rows, lengths, length=longest, pooled=pooled)
            profile.shared_tokens += sum(copy.length for copy in copies)
    if tier.unparked:
        slots, rows, _ = _columns(state, tier.unparked)
        state = steps.unpark(state, slots, rows, length=max(copy.length for copy in tier.unparked))
        profile.unparked_tokens += sum(copy.length for copy in tier.unparked)
    return state


def _columns(state: RolloutState, copies: Sequence[Copy]) -> list[Tensor]:
    return [torch.tensor(column, device=state.stop_ids.device) for column in zip(*copies, strict=True)]


def _feed(steps: LoweredSteps, state: RolloutState, group: list[Feed], profile: Profile) -> RolloutState:
    done, longest = 0, group[0].missing
    while group:
        rows = [feed.row for feed in group]
        width = steps.prefill_width(len(rows), longest - done)
        length = max(feed.cached + min(done + width, feed.missing) for feed in group)
        state, shapes = steps.prefill(state, rows, width=width, length=length)
        fed = sum(min(feed.missing - done, width) for feed in group)
        profile.forwards += len(shapes)
        profile.fed_tokens += fed
        profile.padded_tokens += sum(shape.rows * shape.width for shape in shapes) - fed
        done += width
        group = [feed for feed in group if feed.missing > done]
    return state
