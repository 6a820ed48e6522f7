"""Log-probs of recorded tokens under given weights, by one training forward with gradient."""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fnroll.core.logits import penalise, scale
from fnroll.core.precision import widen

# Hidden states and logits are compared on this many tokens before the head is applied piece by piece.
_PROBE = 4
_CAN_CHUNK: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _decoder(module: nn.Module) -> nn.Module:
    return cast(nn.Module, getattr(module, cast(str, module.base_model_prefix)))


def _apply_head(module: nn.Module, hidden: Tensor) -> Tensor:
    logits: Tensor = cast(Any, module).get_output_embeddings()(hidden)
    cap = getattr(cast(Any, module).config.get_text_config(decoder=True), "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _keep(module: nn.Module, hidden: Tensor) -> Tensor:
    return hidden


def can_chunk(module: nn.Module, ids: Tensor) -> bool:
    """Say whether the model's logits are its head applied to its hidden states, tried once on a few of `ids`.

    Tried in evaluation mode, where no dropout disturbs the comparison or draws from the caller's generator.
    """
    if module not in _CAN_CHUNK:
        some = ids[:1, :_PROBE]
        modes = [(part, part.training) for part in module.modules()]
        module.eval()
        try:
            with torch.no_grad():
                hidden = _decoder(module)(input_ids=some, use_cache=False).last_hidden_state
                logits = module(input_ids=some, use_cache=False).logits
                same = torch.allclose(_apply_head(module, hidden), logits, rtol=1e-3, atol=1e-3)
        finally:
            for part, mode in modes:
                part.training = mode
        _CAN_CHUNK[module] = same
    return _CAN_CHUNK[module]


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
    if there is one. At temperature 0 log-probs are those of temperature 1, as they are recorded. A batch
    without a sampled token gives zeros whose gradient is zeros, without a forward.

    Args:
      module: a Hugging Face causal language model, in whatever mode it is in.
      input_ids: `[R, T]` int64, padded on the right.
      position_ids: `[R, T]` int64.
      attention_mask: `[R, T]` int64, 1 on tokens; None for packed rows, parted by their positions.
      loss_mask: `[R, T]` bool, True on sampled tokens.
      temperature: of sampling.
      repetition_penalty: of sampling.
      support: `[R, T, K]` int32, as recorded; None normalises over the whole vocabulary.
      chunk: tokens whose logits are in memory at a time.
    """
    row, place = loss_mask.nonzero(as_tuple=True)
    out = torch.zeros(input_ids.shape, dtype=torch.float32, device=input_ids.device)
    inputs = {"input_ids": input_ids, "position_ids": position_ids, "attention_mask": attention_mask}
    if len(row) == 0:
        return _add_nothing(out, module)
    if can_chunk(module, input_ids):
        before, head = _decoder(module)(**inputs, use_cache=False).last_hidden_state, _apply_head
    else:
        before, head = module(**inputs, use_cache=False).logits, _keep

    longest = int(position_ids.max())

    def run(hidden: Tensor, r: Tensor, t: Tensor) -> Tensor:
        history = _history(input_ids, position_ids, r, t, longest) if repetition_penalty != 1.0 else None
        kept = None if support is None else support[r, t]
        return _log_probs(
            head(module, hidden), input_ids[r, t], temperature, repetition_penalty, history, kept
        )

    pieces = []
    for start in range(0, len(row), chunk):
        r, t = row[start : start + chunk], place[start : start + chunk]
        pieces.append(checkpoint(run, before[r, t - 1], r, t, use_reentrant=False))
    return out.to(pieces[0].dtype).index_put((row, place), torch.cat(pieces))
