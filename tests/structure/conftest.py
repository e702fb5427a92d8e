"""Lets the structure tests import their shared reader of the source tree."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
