"""The diagnosis's tests are made of payloads and samples that lie beside them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
