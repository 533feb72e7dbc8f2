from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")
for part in ("providers", "flower"):
    sys.path.append(str(Path(__file__).parents[1] / part))
