"""Workloads and peers, measured in one run."""

from fnroll.bench.engine import Engine, EngineError, EngineRun, Subject
from fnroll.bench.measure import Sample, interleave, paired_ratios
from fnroll.bench.overlap import OverlapResult, run_overlap
from fnroll.bench.suite import ENGINES, run_workload
from fnroll.bench.workload import Workload
from fnroll.bench.workloads import WORKLOADS

__all__ = [
    "ENGINES",
    "WORKLOADS",
    "Engine",
    "EngineError",
    "EngineRun",
    "OverlapResult",
    "Sample",
    "Subject",
    "Workload",
    "interleave",
    "paired_ratios",
    "run_overlap",
    "run_workload",
]
