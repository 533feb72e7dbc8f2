"""What docs/guides/providers.md shows works."""

from __future__ import annotations

import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

from cases import END, START, make_context
from loopback import Asked, Reply, as_json, running

from slackwater.intensity.providers.chain import PROVIDERS
from slackwater.intensity.providers.keys import Keys, variable

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "providers.md").read_text(encoding="utf-8")


def island(asked: Asked) -> Reply:
    assert asked.headers["x-key"] == "island-key"
    half = timedelta(minutes=30)
    return as_json({"values": [{"time": (START + i * half).isoformat(), "g_per_kwh": 200} for i in range(12)]})


def test_a_provider_of_your_own() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    with running(island, START) as server:
        context = make_context({"island": server.address}, factor="direct", now=END + timedelta(days=1))
        object.__setattr__(context, "keys", Keys({"SLACKWATER_KEY_ISLAND": "island-key"}, Path("none")))
        answer = names["Island"](context).fetch(["IM"], START, END, "actual").expect()
    assert len(answer.readings) == 12
    assert len(snippet.splitlines()) <= 22


def test_every_provider_and_key_is_told() -> None:
    assert all(f"`{name}" in PAGE for name in PROVIDERS.own)
    assert all(variable(name) in PAGE for name in ("electricitymaps", "entsoe", "eia", "watttime"))


def test_toml_is_toml() -> None:
    for snippet in re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL):
        assert tomllib.loads(snippet)
