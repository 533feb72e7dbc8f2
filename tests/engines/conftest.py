from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("flwr")


@pytest.fixture(autouse=True)
def quiet_flower(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Flower's own log lines are not ours to read; and nothing is sent home."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)
