"""Where the turns of a record are."""

from __future__ import annotations

from collections.abc import Sequence


def find_turns(loss_mask: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where each turn's sampled tokens begin and end; something always stands between two turns."""
    edges = [at for at in range(1, len(loss_mask)) if loss_mask[at] != loss_mask[at - 1]]
    if loss_mask and loss_mask[0]:
        edges.insert(0, 0)
    if loss_mask and loss_mask[-1]:
        edges.append(len(loss_mask))
    return list(zip(edges[::2], edges[1::2], strict=True))
