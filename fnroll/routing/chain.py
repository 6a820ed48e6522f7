"""Which calls of a rollout made its tokens: retries that were given up are left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from fnroll.routing.errors import RouteCorruptionError, RouteLineageError
from fnroll.routing.staging import RouteReceipt, receipt_digest


def select_chain(
    receipts: Iterable[RouteReceipt], *, terminal_call_id: str | None = None
) -> tuple[RouteReceipt, ...]:
    """Return the calls from the first to the last one, by their parents; the order of receipts is nothing.

    Calls with one parent are retries of one turn. Of those the one that a later call goes on from is taken;
    of retries of the last turn the caller names one. A call that sampled nothing is no part of a rollout.

    Args:
      receipts: of one rollout.
      terminal_call_id: the last call; None where it is clear.

    Raises:
      RouteLineageError: naming the calls, if there is no chain, or more than one.
      RouteCorruptionError: if a receipt was changed.
    """
    known = _index(receipts)
    chain = _walk_down(known) if terminal_call_id is None else _walk_up(known, terminal_call_id)
    _check_links(chain)
    return chain


def version_changes(chain: Sequence[RouteReceipt]) -> int:
    """Count the calls that ran on other weights than the call before them.

    The sidecar of such a call is of the newer weights, as are the keys and values that it was computed with.
    """
    return sum(a.weight_version != b.weight_version for a, b in pairwise(chain))


def _index(receipts: Iterable[RouteReceipt]) -> dict[str, RouteReceipt]:
    known: dict[str, RouteReceipt] = {}
    for receipt in receipts:
        other = known.setdefault(receipt.call_id, receipt)
        if other != receipt:
            raise RouteLineageError(f"two different receipts name one call: {other.key}, {receipt.key}")
        if receipt.digest != receipt_digest(receipt):
            raise RouteCorruptionError(
                "receipt_integrity",
                f"the receipt of {receipt.key} was changed: digest {receipt.digest[:12]}, of its fields "
                f"{receipt_digest(receipt)[:12]}",
            )
    rollouts = {receipt.rollout_id for receipt in known.values()}
    if len(rollouts) != 1:
        raise RouteLineageError(f"receipts are of the rollouts {sorted(rollouts)}; they must be of one")
    return known


def _walk_up(known: dict[str, RouteReceipt], call_id: str) -> tuple[RouteReceipt, ...]:
    chain: list[RouteReceipt] = []
    link: str | None = call_id
    while link is not None:
        if link not in known or known[link] in chain:
            raise RouteLineageError(
                f"call {link}, which {chain[-1].key if chain else 'the caller'} names, "
                f"{'comes back as its own ancestor' if link in known else 'has no receipt'}"
            )
        chain.append(_sampled(known[link]))
        link = known[link].parent_call_id
    return tuple(reversed(chain))


def _walk_down(known: dict[str, RouteReceipt]) -> tuple[RouteReceipt, ...]:
    children: dict[str | None, list[RouteReceipt]] = defaultdict(list)
    for receipt in known.values():
        children[receipt.parent_call_id].append(receipt)
    chain: list[RouteReceipt] = []
    parent: str | None = None
    while (turn := _choose(children[parent], children)) is not None:
        chain.append(_sampled(turn))
        parent = turn.call_id
    if not chain:
        raise RouteLineageError(f"no call sampled anything and has no parent, among {sorted(known)}")
    reached = {receipt.call_id for receipt in _descendants(children)}
    lost = sorted(receipt.key for receipt in known.values() if receipt.call_id not in reached)
    if lost:
        raise RouteLineageError(f"{lost} go on from no first call; the receipt of a call between is missing")
    return tuple(chain)


def _descendants(children: Mapping[str | None, list[RouteReceipt]]) -> list[RouteReceipt]:
    """Return the calls that a first call leads to."""
    found = list(children.get(None, ()))
    for receipt in found:
        found += children.get(receipt.call_id, ())
    return found


def _choose(
    retries: Sequence[RouteReceipt], children: Mapping[str | None, list[RouteReceipt]]
) -> RouteReceipt | None:
    """Return the one of a turn's retries that counts; None if there is none."""
    extended = [receipt for receipt in retries if children.get(receipt.call_id)]
    candidates = extended or [receipt for receipt in retries if receipt.gen_n]
    if len(candidates) > 1:
        keys = sorted(receipt.key for receipt in candidates)
        raise RouteLineageError(f"{keys} are retries of one turn; name the last call: terminal_call_id=...")
    return candidates[0] if candidates else None


def _sampled(receipt: RouteReceipt) -> RouteReceipt:
    if receipt.gen_n == 0:
        raise RouteLineageError(
            f"{receipt.key} sampled nothing, and a later call goes on from it (empty_generation)"
        )
    return receipt


def _check_links(chain: Sequence[RouteReceipt]) -> None:
    if chain[0].parent_call_id is not None or chain[0].prev_len:
        raise RouteLineageError(f"{chain[0].key} is first; it must have no parent and prev_len 0")
    for parent, child in pairwise(chain):
        if child.prev_len != parent.end:
            raise RouteLineageError(
                f"{child.key} has prev_len {child.prev_len}; its parent {parent.key} ends at {parent.end}"
            )
        if child.prefix_digest != parent.token_digest or child.parent_digest != parent.digest:
            raise RouteLineageError(
                f"{child.key} goes on from other tokens than those of {parent.key}: digest "
                f"{child.prefix_digest[:12]}, there {parent.token_digest[:12]}"
            )
