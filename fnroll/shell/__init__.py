"""The imperative side, one per rank: requests, the driver loop, records, progress, files."""
