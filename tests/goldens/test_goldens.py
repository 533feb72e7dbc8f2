"""What the commands put out is what is stored: plans, JSON, charges, bits of models, help and messages.

Write the stored files anew, after a change that is meant, with: python tests/goldens/write.py
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from golden_record import DIGITS, EXACT, FOLDER, GROUPS, record

SAME = 1e-5
"""Relative difference of two processors: losses of float32 training differ in the seventh digit, and rounding moves with them."""


def differences(was: Any, now: Any, path: str = "") -> list[str]:
    """Return where two pieces of JSON differ, as lines of text."""
    if isinstance(was, dict) and isinstance(now, dict):
        return [
            line
            for key in dict.fromkeys([*was, *now])
            for line in (
                differences(was[key], now[key], f"{path}/{key}")
                if key in was and key in now
                else [f"{path}/{key}: {'is gone' if key in was else 'is new'}"]
            )
        ]
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return [line for n, pair in enumerate(zip(was, now, strict=True)) for line in differences(*pair, f"{path}/{n}")]
    if DIGITS < EXACT and isinstance(was, float) and isinstance(now, float) and math.isclose(was, now, rel_tol=SAME):
        return []
    return [] if was == now and type(was) is type(now) else [f"{path}:\n    was {was!r}\n    now {now!r}"]


@pytest.mark.parametrize("group", GROUPS)
def test_the_commands_put_out_what_is_stored(group: str) -> None:
    for file, now in record(group).items():
        stored = json.loads((FOLDER / file).read_text())
        was = {key: stored[key] for key in now if key in stored} if file == "texts.json" else stored
        found = differences(was, now)
        assert not found, f"{len(found)} differences from {file}:\n" + "\n".join(found[:40])
