"""Multi-turn, tool-calling language-model rollouts as pure functions on an immutable value."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fnroll.compile.warmup import WarmUp, WarmUpError
    from fnroll.config import RolloutConfig, SamplingConfig
    from fnroll.dialogue.context import ToolContext
    from fnroll.dialogue.message import ToolCall
    from fnroll.dialogue.tool import Tool, ToolError, ToolSet
    from fnroll.grpo import group_advantages, grpo_policy_loss, old_log_probs_from_rollout
    from fnroll.records.batch import RolloutBatch, RolloutRequest
    from fnroll.records.files.state import load_state as load
    from fnroll.records.files.state import save_state as save
    from fnroll.records.prompt import read_prompts
    from fnroll.records.record import Reason, RolloutRecord, Status
    from fnroll.records.training import TrainingBatch, to_training
    from fnroll.rollout.call import RolloutInterrupted
    from fnroll.rollout.driver.profile import Profile
    from fnroll.rollout.generate import generate
    from fnroll.rollout.rollout import Rollout
    from fnroll.rollout.score import score

__version__ = "0.1.0"

__all__ = [
    "Profile",
    "Reason",
    "Rollout",
    "RolloutBatch",
    "RolloutConfig",
    "RolloutInterrupted",
    "RolloutRecord",
    "RolloutRequest",
    "SamplingConfig",
    "Status",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolSet",
    "TrainingBatch",
    "WarmUp",
    "WarmUpError",
    "__version__",
    "generate",
    "group_advantages",
    "grpo_policy_loss",
    "load",
    "old_log_probs_from_rollout",
    "read_prompts",
    "save",
    "score",
    "to_training",
]

# Imported when first used: whoever wants a parser alone does not wait for torch and transformers.
_MODULES = {
    "Profile": "fnroll.rollout.driver.profile",
    "Reason": "fnroll.records.record",
    "Rollout": "fnroll.rollout.rollout",
    "RolloutBatch": "fnroll.records.batch",
    "RolloutConfig": "fnroll.config",
    "RolloutInterrupted": "fnroll.rollout.call",
    "RolloutRecord": "fnroll.records.record",
    "RolloutRequest": "fnroll.records.batch",
    "SamplingConfig": "fnroll.config",
    "Status": "fnroll.records.record",
    "Tool": "fnroll.dialogue.tool",
    "ToolCall": "fnroll.dialogue.message",
    "ToolContext": "fnroll.dialogue.context",
    "ToolError": "fnroll.dialogue.tool",
    "ToolSet": "fnroll.dialogue.tool",
    "TrainingBatch": "fnroll.records.training",
    "WarmUp": "fnroll.compile.warmup",
    "WarmUpError": "fnroll.compile.warmup",
    "generate": "fnroll.rollout.generate",
    "group_advantages": "fnroll.grpo",
    "grpo_policy_loss": "fnroll.grpo",
    "load": "fnroll.records.files.state:load_state",
    "old_log_probs_from_rollout": "fnroll.grpo",
    "read_prompts": "fnroll.records.prompt",
    "save": "fnroll.records.files.state:save_state",
    "score": "fnroll.rollout.score",
    "to_training": "fnroll.records.training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own_name = _MODULES[name].partition(":")
    value = getattr(import_module(module), own_name or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
