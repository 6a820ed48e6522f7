"""Log-probs of recorded tokens under given weights, by one training forward with gradient."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fnroll.core.logits import penalise, scale
from fnroll.core.precision import widen
from fnroll.models.forward import Forward, can_chunk
from fnroll.models.lines import Lines, find_lines
from fnroll.models.packing import can_pack

__all__ = ["can_chunk", "score_tokens"]


def _log_probs(
    logits: Tensor, token: Tensor, temperature: float, penalty: float, history: tuple[Tensor, Tensor] | None,
    support: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return the log-probs `[n]` of `token` `[n]` under processed `logits` `[n, V]`."""
    scores, count = widen(logits), len(token)
    if penalty != 1.0 and history is not None:
        scores = penalise(scores, *history, torch.full((count,), penalty, device=scores.device))
    if temperature > 0:
        scores = scale(scores, torch.full((count,), temperature, device=scores.device))
    drawn = scores.gather(-1, token[:, None])[:, 0]
    total = scores.logsumexp(dim=-1)
    if support is not None:
        kept = support >= 0
        over = scores.gather(-1, support.clamp(min=0).long()).masked_fill(~kept, -torch.inf)
        whole = ~kept.any(dim=-1)
        # An all -inf row would give NaN gradients even where it is not taken.
        over = torch.where(whole[:, None], torch.zeros_like(over), over)
        total = torch.where(whole, total, over.logsumexp(dim=-1))
    return drawn - total


def _history(
    input_ids: Tensor, position_ids: Tensor, row: Tensor, place: Tensor, longest: int
) -> tuple[Tensor, Tensor]:
    """Return what stands before each token in its own record, `[n, longest]` ids and `[n]` how many count.

    A packed row holds other records before it, which are no past of this one.
    """
    length = position_ids[row, place]
    index = (place - length)[:, None] + torch.arange(longest, device=place.device)
    return input_ids[row[:, None], index.clamp(max=input_ids.shape[1] - 1)], length


def _add_nothing(out: Tensor, module: nn.Module) -> Tensor:
    """Give a result a gradient of zeros for every parameter: a rank without work takes part in the step."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            out = out + parameter.flatten()[:0].sum().to(out)
    return out


def _run(forward: Forward, lines: Lines, *, packed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Run the model over all lines.

    Returns:
      What it leaves at each token, and `[n]` int64 each: in which row and column of that stands what is
      before each sampled token.
    """
    if packed and can_pack(forward, lines):
        positions = torch.arange(lines.width, dtype=torch.int64, device=lines.ids.device)
        valid, positions = lines.valid, positions.expand_as(lines.ids)
        offset = lines.length.cumsum(0) - lines.length
        states = forward(lines.ids[valid][None], positions[valid][None])
        return states, torch.zeros_like(lines.line), offset[lines.line] + lines.place - 1
    # No mask: what pads a line comes after it, where a causal model does not look.
    return forward(lines.ids), lines.line, lines.place - 1


def score_tokens(
    module: nn.Module,
    input_ids: Tensor,
    position_ids: Tensor,
    attention_mask: Tensor | None,
    loss_mask: Tensor,
    *,
    temperature: float = 1.0,
    repetition_penalty: float = 1.0,
    support: Tensor | None = None,
    chunk: int = 1024,
) -> Tensor:
    """Return the log-probs of the tokens that `loss_mask` marks, `[R, T]` float, in nats; 0 elsewhere.

    The same processing as in sampling: penalty over each token's own past, temperature, and the kept support
    if there is one. At temperature 0 log-probs are those of temperature 1, as they are recorded. Records
    without a sampled token are left out of the forward. A batch that has none gives zeros whose gradient is
    zeros, without a forward.

    Args:
      module: a Hugging Face causal language model, in whatever mode it is in.
      input_ids: `[R, T]` int64, padded on the right.
      position_ids: `[R, T]` int64.
      attention_mask: `[R, T]` int64, 1 on tokens; None for packed rows, parted by their positions. Rows of a
        model that lets packed records see each other are computed one record a row.
      loss_mask: `[R, T]` bool, True on sampled tokens.
      temperature: of sampling.
      repetition_penalty: of sampling.
      support: `[R, T, K]` int32, as recorded; None normalises over the whole vocabulary.
      chunk: tokens whose logits are in memory at a time.

    Raises:
      ValueError: if the batch is not one of whole records, or one of them is longer than the model knows
        positions for; the message names it.
    """
    lines = find_lines(input_ids, position_ids, attention_mask, loss_mask)
    out = torch.zeros(input_ids.shape, dtype=torch.float32, device=input_ids.device)
    if len(lines.place) == 0:
        return _add_nothing(out, module)
    forward = Forward(module, lines.ids)
    lines.check_length(forward.max_positions, forward.name)
    states, row, column = _run(forward, lines, packed=attention_mask is None)
    token = input_ids[lines.where]
    over = None if support is None else support[lines.where]

    def run(kept: Tensor, at: slice) -> Tensor:
        history = None
        if repetition_penalty != 1.0:
            row_, column_ = lines.where
            history = _history(input_ids, position_ids, row_[at], column_[at], lines.width)
        own = None if over is None else over[at]
        return _log_probs(forward.head(kept), token[at], temperature, repetition_penalty, history, own)

    pieces = []
    for start in range(0, len(row), chunk):
        at = slice(start, start + chunk)
        pieces.append(checkpoint(run, states[row[at], column[at]], at, use_reentrant=False))
    return out.to(pieces[0].dtype).index_put(lines.where, torch.cat(pieces))
