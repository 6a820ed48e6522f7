"""`python -m fnroll.testing.models [docs/models.md]`: measure all architectures and write their table."""

import sys
from pathlib import Path

import transformers

from fnroll.testing.models.table import write_table

transformers.logging.set_verbosity_error()
write_table(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/models.md"))
