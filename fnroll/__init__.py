"""Multi-turn, tool-calling language-model rollouts as pure functions on an immutable value."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fnroll.dialogue.message import ToolCall
    from fnroll.dialogue.tool import Tool, ToolError, ToolSet
    from fnroll.grpo import group_advantages, grpo_policy_loss, old_log_probs_from_rollout
    from fnroll.shell.batch import RolloutBatch, RolloutRequest
    from fnroll.shell.checkpoint import load, save
    from fnroll.shell.config import RolloutConfig, SamplingConfig
    from fnroll.shell.generate import generate
    from fnroll.shell.profile import Profile
    from fnroll.shell.prompt import read_prompts
    from fnroll.shell.record import Reason, RolloutRecord, Status
    from fnroll.shell.rollout import Rollout, RolloutInterrupted
    from fnroll.shell.training import TrainingBatch, score, to_training
    from fnroll.shell.warmup import WarmUp, WarmUpError

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
    "Profile": "fnroll.shell.profile",
    "Reason": "fnroll.shell.record",
    "Rollout": "fnroll.shell.rollout",
    "RolloutBatch": "fnroll.shell.batch",
    "RolloutConfig": "fnroll.shell.config",
    "RolloutInterrupted": "fnroll.shell.rollout",
    "RolloutRecord": "fnroll.shell.record",
    "RolloutRequest": "fnroll.shell.batch",
    "SamplingConfig": "fnroll.shell.config",
    "Status": "fnroll.shell.record",
    "Tool": "fnroll.dialogue.tool",
    "ToolCall": "fnroll.dialogue.message",
    "ToolError": "fnroll.dialogue.tool",
    "ToolSet": "fnroll.dialogue.tool",
    "TrainingBatch": "fnroll.shell.training",
    "WarmUp": "fnroll.shell.warmup",
    "WarmUpError": "fnroll.shell.warmup",
    "generate": "fnroll.shell.generate",
    "group_advantages": "fnroll.grpo",
    "grpo_policy_loss": "fnroll.grpo",
    "load": "fnroll.shell.checkpoint",
    "old_log_probs_from_rollout": "fnroll.grpo",
    "read_prompts": "fnroll.shell.prompt",
    "save": "fnroll.shell.checkpoint",
    "score": "fnroll.shell.training",
    "to_training": "fnroll.shell.training",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
