"""The embedded model: a tiny tool-calling model of the Qwen3 architecture, its tools and its tasks."""

from fnroll.models.tiny.load import CHECKPOINTS, load_tiny
from fnroll.models.tiny.tasks import Task, make_tasks, reward
from fnroll.models.tiny.tools import TINY_TOOLS

__all__ = ["CHECKPOINTS", "TINY_TOOLS", "Task", "load_tiny", "make_tasks", "reward"]
