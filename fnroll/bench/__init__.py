"""Workloads, peers and reports, measured in one run."""
