"""Replay in models of five families: what a rollout chose is chosen again, and the router learns."""

from dataclasses import replace

import pytest
import torch

from fnroll.models.zoo import tiny_model
from fnroll.routing import (
    NoRoutersError,
    ReplayScopeError,
    RouteDtypeError,
    RouterNotCalledError,
    RouterUnsupportedError,
    RouteShapeError,
    RouteValueError,
    RouteWarning,
    collate,
    discover_routers,
    from_tape,
    listen,
    narrow_routes,
    replay,
    to_schema,
)
from tests.routing.families import (
    FAMILIES,
    LAYERS,
    SCORES,
    assembled_of,
    moe,
    roll_turns,
    sampled_log_probs,
    set_checkpointing,
)

TURNS = [(5, 5), (4, 5), (3, 5)]
TOKENS = torch.randint(3, 48, (2, 9), generator=torch.Generator().manual_seed(3))
_MODELS = {}


def model_of(family, dtype=torch.float64):
    if (family, dtype) not in _MODELS:
        _MODELS[family, dtype] = moe(family, dtype)
    return _MODELS[family, dtype]


def native(model, tokens=TOKENS):
    """The model's own log-probs, and its routes as a batch."""
    with torch.no_grad(), listen(model) as taps:
        log_probs = sampled_log_probs(model, tokens)
    schema = to_schema(discover_routers(model))
    routes = narrow_routes("routes", taps.native_routes, schema).unflatten(0, tokens.shape)
    return log_probs, routes


def others(routes, num_experts=8):
    """Valid routes, none of which is the one given."""
    return ((routes.long() + 3) % num_experts).to(routes.dtype)


def gradients(model, tokens, routes, checkpointing=None):
    model.zero_grad()
    model.train()
    if checkpointing is not None:
        set_checkpointing(model, checkpointing)
    try:
        with torch.enable_grad():
            embeddings = model.get_input_embeddings()(tokens).detach().requires_grad_()
            if routes is None:
                loss = model(inputs_embeds=embeddings, use_cache=False).logits.square().mean()
                loss.backward()
            else:
                with replay(model, routes):
                    loss = model(inputs_embeds=embeddings, use_cache=False).logits.square().mean()
                    loss.backward()
    finally:
        if checkpointing is not None:
            set_checkpointing(model, None)
        model.eval()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def no_hooks(model):
    routers = [router.module for router in discover_routers(model)]
    return not model._forward_pre_hooks and all(not router._forward_hooks for router in routers)


@pytest.mark.parametrize("family", FAMILIES)
def test_routers_are_found_by_layer_and_dense_layers_have_none(family):
    routers = discover_routers(model_of(family))
    assert tuple(router.layer_id for router in routers) == LAYERS.get(family, (0, 1, 2))
    schema = to_schema(routers, family)
    assert (schema.num_experts, schema.top_k, schema.model_id) == (8, 2, family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_replay_of_the_own_routes_is_bit_for_bit_native(family, dtype):
    """I15; also of -1 throughout: I16."""
    model = model_of(family, dtype)
    log_probs, routes = native(model)
    for forced in (routes, torch.full_like(routes, -1)):
        with torch.no_grad(), replay(model, forced) as taps:
            assert torch.equal(sampled_log_probs(model, TOKENS), log_probs)
        assert taps.metrics().num_flipped.sum() == 0
    assert no_hooks(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_routes_are_chosen_at_every_layer_and_the_router_learns(family):
    """I16."""
    model = model_of(family)
    log_probs, routes = native(model)
    forced = others(routes)
    forced[0, 2] = -1
    chosen = {}
    inner = [r.module for r in discover_routers(model)]
    with torch.no_grad(), replay(model, forced) as taps:
        handles = [
            m.register_forward_hook(lambda m, i, o, n=n: chosen.update({n: o[2]}))
            for n, m in enumerate(inner)
        ]
        assert not torch.allclose(sampled_log_probs(model, TOKENS), log_probs, atol=1e-2)
        for handle in handles:
            handle.remove()
    flat = forced.flatten(0, 1).long()
    for layer, ids in chosen.items():
        known = flat[:, layer, 0] >= 0
        assert torch.equal(ids[known], flat[known, layer]) and known.sum() == 17
        assert torch.equal(ids[~known], taps.native_routes[~known, layer])
    found = taps.metrics()
    assert found.num_missing.tolist() == [1] * len(inner) and found.num_forced.tolist() == [17] * len(inner)
    assert taps.scores == (SCORES[family],) * len(inner)
    grads = gradients(model, TOKENS, forced)
    names = [f"{r.name}.weight" for r in discover_routers(model)]
    assert all(grads[name].abs().sum() > 0 for name in names)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-6), (torch.float32, 2e-5)])
@pytest.mark.parametrize("noisy", [False, True])
def test_routing_01_a_replay_gives_the_log_probs_of_the_rollout(family, dtype, close, noisy):
    """I17, I18; `noisy` routers choose otherwise in the rollout than in training."""
    model = model_of(family, dtype)
    layers = len(discover_routers(model))
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(27, layers, 8, generator=generator, dtype=torch.float64) * 0.2 if noisy else None
    tokens, log_probs, calls = roll_turns(model, TURNS, noise=noise)
    schema = to_schema(discover_routers(model))
    routes = assembled_of(calls, schema, last_token="native")
    assert (routes.routes[-1] == -1).all() and (routes.routes[:-1] >= 0).all()

    def error(assembled):
        with torch.no_grad(), replay(model, assembled.routes[None]) as taps:
            found = sampled_log_probs(model, tokens)
        return (found - log_probs).abs().max().item(), taps.metrics()

    worst, metrics = error(routes)
    assert worst < close
    assert (metrics.num_flipped_tokens > (3 if noisy else 1)) == noisy
    with pytest.warns(RouteWarning):
        older = assembled_of(
            calls,
            schema,
            harm=lambda c: replace(c, boundary=None, boundary_index=None, boundary_schema_version=None),
        )
    assert error(older)[0] > 1e-3
    last = torch.cat([routes.routes[:-1], schema.placeholder(1)])
    assert error(replace(routes, routes=last))[0] < close  # I6


def test_padding_on_either_side_changes_nothing():
    model = model_of("qwen3_moe")
    schema = to_schema(discover_routers(model))
    short, long = TOKENS[:1, :6], TOKENS[1:]
    alone = [native(model, one) for one in (short, long)]
    forced = [from_tape(others(routes[0]), schema) for _, routes in alone]
    for left in (False, True):
        mask = torch.ones(2, 9, dtype=torch.int64)
        batch = torch.zeros(2, 9, dtype=torch.int64)
        place = slice(3, 9) if left else slice(0, 6)
        mask[0], mask[0, place] = 0, 1
        batch[0, place], batch[1] = short[0], long[0]
        with torch.no_grad(), replay(model, collate(forced, attention_mask=mask)):
            found = sampled_log_probs(model, batch, mask)
        for row, tokens in enumerate((short, long)):
            with torch.no_grad(), replay(model, forced[row].routes[None]):
                expected = sampled_log_probs(model, tokens)[0]
            own = found[row][3:] if left and row == 0 else found[row][: len(expected)]
            torch.testing.assert_close(own, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_under_checkpointing_are_those_without(family, reentrant):
    """I19."""
    model = model_of(family)
    forced = others(native(model)[1])
    plain = gradients(model, TOKENS, forced)
    recomputed = gradients(model, TOKENS, forced, checkpointing=reentrant)
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)
    assert no_hooks(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_the_own_routes_are_bit_for_bit_native(family):
    model = model_of(family)
    plain, forced = gradients(model, TOKENS, None), gradients(model, TOKENS, native(model)[1])
    assert all(torch.equal(plain[name], forced[name]) for name in plain)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_replay_that_ends_before_a_recomputing_backward_is_refused(reentrant):
    model = moe("olmoe")
    routes = native(model)[1]
    model.train()
    set_checkpointing(model, reentrant)
    with torch.enable_grad():
        with pytest.raises(ReplayScopeError, match="through backward"), replay(model, routes):
            model(TOKENS, use_cache=False)
        with replay(model, routes, allow_early_exit=True):
            model(TOKENS, use_cache=False)
        with pytest.raises(ReplayScopeError), replay(model, routes):
            loss = model(TOKENS, use_cache=False).logits.sum()
            model(TOKENS, use_cache=False)  # another one, without a backward pass
            loss.backward()
        with replay(model, routes):
            with torch.no_grad():
                model(TOKENS, use_cache=False)
            for _ in range(2):
                model(TOKENS, use_cache=False).logits.sum().backward()
    with replay(model, routes):  # without gradients there is no backward pass
        model(TOKENS, use_cache=False)
    set_checkpointing(model, None)
    assert no_hooks(model)


def test_no_hook_is_left_whatever_happens_within():
    """I21."""
    model = model_of("mixtral")
    log_probs, routes = native(model)
    with pytest.raises(KeyError), replay(model, others(routes)):
        sampled_log_probs(model, TOKENS)
        raise KeyError
    with pytest.raises(RouteShapeError), replay(model, routes):
        sampled_log_probs(model, TOKENS[:, :5])
    assert no_hooks(model)
    assert torch.equal(sampled_log_probs(model, TOKENS), log_probs)


def test_replays_do_not_nest():
    model = model_of("mixtral")
    routes = native(model)[1]
    with (
        pytest.raises(ReplayScopeError, match=r"MixtralTopKRouter model\.layers\.0\.mlp\.gate is replayed"),
        replay(model, routes),
        listen(model),
    ):
        pass
    assert no_hooks(model)
    other = moe("mixtral", seed=1)
    with replay(model, routes), replay(other, routes):
        sampled_log_probs(model, TOKENS)
        sampled_log_probs(other, TOKENS)


def test_microbatches_each_take_their_own_routes():
    """Accumulated gradients are those of the whole batch, also when backward comes in another order."""
    model = model_of("qwen3_moe")
    forced = others(native(model)[1])
    whole = gradients(model, TOKENS, forced)
    model.zero_grad()
    with torch.enable_grad():
        losses = []
        for row in (0, 1):
            with replay(model, forced[row : row + 1]):
                logits = model(TOKENS[row : row + 1], use_cache=False).logits
                losses.append(logits.square().mean() / 2)
        for loss in reversed(losses):
            loss.backward()
    for name, gradient in whole.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, gradient, atol=1e-9, rtol=1e-6)


def test_a_replay_without_a_forward_is_refused():
    model = model_of("olmoe")
    with pytest.raises(RouterNotCalledError, match="3 of 3 routers were not called"), listen(model):
        pass
    routes = native(model)[1]
    with pytest.raises(RouterNotCalledError, match="2 of 3"), replay(model, routes):
        model.model.layers[0].mlp.gate(torch.zeros(18, 32, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda r: r[:, :, :2], RouteShapeError, "3 layers with a router"),
        (lambda r: r[..., :1], RouteShapeError, "2 experts a token"),
        (lambda r: r.long(), RouteDtypeError, "int64"),
        (lambda r: torch.zeros_like(r), RouteValueError, "different experts"),
        (lambda r: r[:1], RouteShapeError, "got 18 tokens; there are routes of 9"),
        (lambda r: r[:, :8], RouteShapeError, "got 18 tokens; there are routes of 16"),
    ],
)
def test_routes_that_do_not_fit_the_model_are_refused(change, error, match):
    model = model_of("olmoe")
    routes = native(model)[1]
    with pytest.raises(error, match=match), replay(model, change(routes)):
        sampled_log_probs(model, TOKENS)


def test_a_dense_model_has_no_routers():
    with pytest.raises(NoRoutersError, match="LlamaForCausalLM has no routers"):
        discover_routers(tiny_model("llama"))


class PlainRouter(torch.nn.Module):
    """A router of no library."""

    def __init__(self, num_experts=4, top_k=2, factor=1.0):
        super().__init__()
        self.num_experts, self.top_k, self.factor = num_experts, top_k, factor

    def forward(self, hidden):
        weights, indices = hidden.softmax(-1).topk(self.top_k)
        return hidden, weights * torch.tensor([1.0, self.factor]), indices


def stack(**routers):
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleDict(routers)
    model.forward = lambda x: [router(x) for router in model.layers.values()]
    return model


def test_routers_of_any_library_can_be_named_by_class():
    model = stack(**{"2": PlainRouter(), "0": PlainRouter()})
    routers = discover_routers(model, kind=PlainRouter)
    assert [router.layer_id for router in routers] == [0, 2]
    with pytest.raises(NoRoutersError):
        discover_routers(model)
    hidden = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    forced = torch.tensor([[[2, 3], [0, 1]]] * 5, dtype=torch.int8)
    with replay(model, forced, routers=routers) as taps:
        later, first = model.forward(hidden)
    assert first[2].tolist() == [[2, 3]] * 5 and later[2].tolist() == [[0, 1]] * 5
    with replay(model, forced, routers=routers, scores=taps.scores):
        assert torch.equal(model.forward(hidden)[0][1], later[1])


@pytest.mark.parametrize(
    ("routers", "match"),
    [
        ({"a": PlainRouter()}, "layers.<number>"),
        ({"0": PlainRouter(), "1": PlainRouter(8)}, "2 of 4 experts and PlainRouter layers.1 2 of 8"),
        ({"0": torch.nn.ModuleDict({"a": PlainRouter(), "b": PlainRouter()})}, "both in layer 0"),
        ({"0": PlainRouter(top_k=2.0)}, "ints"),
    ],
)
def test_routers_that_cannot_be_told_apart_are_refused(routers, match):
    with pytest.raises(RouterUnsupportedError, match=match):
        discover_routers(stack(**routers), kind=PlainRouter)


def test_heads_that_predict_more_tokens_are_left_out():
    model = stack(**{"0": PlainRouter()})
    model.mtp = stack(**{"0": PlainRouter()})
    assert [r.name for r in discover_routers(model, kind=PlainRouter)] == ["layers.0"]


def test_weights_that_are_no_function_of_the_logits_are_refused_by_router():
    model = stack(**{"0": PlainRouter(factor=0.5)})
    routers = discover_routers(model, kind=PlainRouter)
    forced = torch.tensor([[[0, 1]]] * 5, dtype=torch.int8)
    with (
        pytest.raises(RouterUnsupportedError, match=r"PlainRouter layers\.0"),
        replay(model, forced, routers=routers),
    ):
        model.forward(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))


def test_jitter_in_training_is_refused():
    model = moe("mixtral")
    routes = native(model)[1]
    for module in model.modules():
        if hasattr(module, "jitter_noise"):
            module.jitter_noise = 0.1
    with replay(model, routes):
        sampled_log_probs(model, TOKENS)
    model.train()
    with pytest.raises(RouterUnsupportedError, match=r"mlp adds jitter of 0.1"), replay(model, routes):
        pass
