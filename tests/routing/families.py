"""Tiny random mixtures of experts of five families, with long enough turns to go wrong in."""

import inspect

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DynamicCache,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    Qwen3MoeConfig,
)

from fnroll.routing import (
    RouteStore,
    ScoreFunction,
    assemble,
    capture_call,
    discover_routers,
    listen,
    make_plan,
    select_chain,
    stage,
    to_schema,
    write_routes,
)

_COMMON = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "num_experts_per_tok": 2,
}  # fmt: skip

CONFIGS = {
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_COMMON, head_dim=8, num_experts=8, moe_intermediate_size=16, norm_topk_prob=True,
        mlp_only_layers=[1],
    ),
    "olmoe": lambda: OlmoeConfig(**_COMMON, num_experts=8),
    "mixtral": lambda: MixtralConfig(**_COMMON, head_dim=8, num_local_experts=8),
    "gpt_oss": lambda: GptOssConfig(
        **_COMMON, head_dim=8, num_local_experts=8, sliding_window=8,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "deepseek_v3": lambda: DeepseekV3Config(
        **{**_COMMON, "num_key_value_heads": 4}, n_routed_experts=8, n_group=4, topk_group=2,
        n_shared_experts=1, first_k_dense_replace=1, moe_intermediate_size=16, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, routed_scaling_factor=2.5,
        norm_topk_prob=True,
    ),
}  # fmt: skip
FAMILIES = tuple(CONFIGS)

SCORES = {
    "qwen3_moe": ScoreFunction("softmax_norm"),
    "olmoe": ScoreFunction("softmax"),
    "mixtral": ScoreFunction("softmax_norm"),
    "gpt_oss": ScoreFunction("topk_softmax", wide=False),
    "deepseek_v3": ScoreFunction("sigmoid_norm", scale=2.5),
}
LAYERS = {"qwen3_moe": (0, 2), "deepseek_v3": (1, 2)}


def moe(name, dtype=torch.float64, seed=0):
    """A random model in evaluation mode, whose routers are far from even."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[name](), experts_implementation="eager")
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        for module in model.modules():
            if hasattr(module, "e_score_correction_bias"):
                module.e_score_correction_bias.normal_(std=0.3)
    return model.to(dtype).eval()


def sampled_log_probs(model, tokens, mask=None):
    """`[B, T - 1]`: the log-prob of each token but the first, by one forward."""
    logits = model(tokens, attention_mask=mask, use_cache=False).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]


def roll_turns(model, turns, *, noise=None, seed=0):
    """Roll out turns with one cache, as an engine does: the last token of a turn is fed by the next one.

    Args:
      model: of a family.
      turns: of each turn how many tokens are given and how many are sampled, evenly from all.
      noise: `[T, L, E]`, added to what routers rank experts by; the weights stay those of the logits.
      seed: of the tokens.

    Returns:
      the tokens; the log-prob of each but the first; and the calls, with the routes of what they fed.
    """
    routers = discover_routers(model)
    schema = to_schema(routers)
    total = sum(map(sum, turns))
    tokens = torch.randint(3, 48, (total,), generator=torch.Generator().manual_seed(seed))
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    cache, log_probs, calls, position, known = DynamicCache(config=model.config), [], [], 0, 0
    positions = [0]
    disturbed = [] if noise is None else disturb(model, routers, noise, positions)
    with torch.no_grad():
        for number, (given, sampled) in enumerate(turns):
            buffer, prev = schema.missing(total), known
            known += given
            for step in range(sampled):
                fed = torch.arange(position, known + step)
                positions[:] = fed.tolist()
                with listen(model, routers=routers) as taps:
                    logits = model(tokens[fed][None], use_cache=True, **{name: cache}).logits[0]
                buffer = write_routes(buffer, fed, taps.native_routes)
                log_probs.append(logits.log_softmax(-1)[range(len(fed)), tokens[fed + 1]])
                position = known + step
            known += sampled
            calls.append(
                capture_call(
                    buffer, schema, rollout_id="r", call_id=f"c{number}",
                    tokens=tuple(tokens[:known].tolist()),
                    parent_call_id=f"c{number - 1}" if number else None, prev_len=prev, prompt_n=given,
                    gen_n=sampled,
                )
            )  # fmt: skip
    for handle in disturbed:
        handle.remove()
    return tokens[None], torch.cat(log_probs)[None], calls


def disturb(model, routers, noise, positions):
    """Let routers rank experts with noise, as other kernels would; return the handles."""
    score = SCORES[model.config.model_type]

    def hook(layer):
        def forward(module, inputs, output):
            logits, weights = output[:2]
            ranked = score.probabilities(logits).double() + noise[positions, layer]
            chosen = ranked.topk(weights.shape[-1]).indices
            return logits, score(logits, chosen).to(weights.dtype), chosen

        return forward

    return [router.module.register_forward_hook(hook(layer)) for layer, router in enumerate(routers)]


def assembled_of(calls, schema, harm=None, **options):
    """The routes of a rollout, from its calls."""
    store = RouteStore(schema)
    for one in calls:
        store, _ = stage(store, one if harm is None else harm(one))
    plan = make_plan(select_chain(store.receipts.values()))
    return assemble(plan, store, schema, length=plan.expected_token_length, on_failure="reject", **options)


def set_checkpointing(model, reentrant):
    """Recompute activations in the backward pass, or with None do not; newer versions have another name."""
    prefix = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
    if reentrant is None:
        getattr(model, f"{prefix}_checkpointing_disable")()
    else:
        getattr(model, f"{prefix}_checkpointing_enable")({"use_reentrant": reentrant})
