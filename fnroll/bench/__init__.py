"""Workloads and peers, measured in one run."""

from fnroll.bench.measure import Sample, interleave, paired_ratios
from fnroll.bench.overlap import OverlapResult, run_overlap
from fnroll.bench.ragged import Ragged, RaggedResult, make_ragged, run_ragged

__all__ = [
    "OverlapResult",
    "Ragged",
    "RaggedResult",
    "Sample",
    "interleave",
    "make_ragged",
    "paired_ratios",
    "run_overlap",
    "run_ragged",
]
