"""Multi-turn, tool-calling language-model rollouts as pure functions on an immutable value."""

from fnroll.dialogue.message import ToolCall
from fnroll.dialogue.tool import Tool, ToolError, ToolSet
from fnroll.shell.batch import RolloutBatch, RolloutRequest
from fnroll.shell.config import RolloutConfig, SamplingConfig
from fnroll.shell.generate import generate
from fnroll.shell.profile import Profile
from fnroll.shell.prompt import read_prompts
from fnroll.shell.record import Reason, RolloutRecord, Status
from fnroll.shell.rollout import Rollout, RolloutInterrupted
from fnroll.shell.training import TrainingBatch, score, to_training

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
    "__version__",
    "generate",
    "read_prompts",
    "score",
    "to_training",
]
