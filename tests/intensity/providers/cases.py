"""Every provider with what it needs to be asked, so that the same tests can run on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from fakes import (
    NOW,
    EiaFake,
    ElectricityMapsFake,
    EnergyChartsFake,
    EntsoeFake,
    NesoFake,
    Value,
    WattTimeFake,
)
from loopback import Asked, Loopback, Reply, running

from slackwater.intensity.providers.base import Context, Provider
from slackwater.intensity.providers.chain import make_provider
from slackwater.intensity.providers.http import Client
from slackwater.intensity.providers.keys import Keys
from slackwater.intensity.traces import Factor

KEYS = {
    "SLACKWATER_KEY_ELECTRICITYMAPS": "em-key",
    "SLACKWATER_KEY_ENTSOE": "entsoe-key",
    "SLACKWATER_KEY_EIA": "eia-key",
    "SLACKWATER_KEY_WATTTIME": "me:secret",
}
SECRETS = ("em-key", "entsoe-key", "eia-key", "secret", "token-1", "bWU6c2VjcmV0")


@dataclass(frozen=True, kw_only=True)
class Case:
    spec: str
    zone: str
    fake: Callable[..., Callable[[Asked], Reply]]
    factor: Factor = "lifecycle"
    g_per_kwh: float | None = None
    """Of every hour; None for 100 and the hour of the day."""
    minutes: int = 60
    format: str = "json"
    forecasts: bool = True

    @property
    def name(self) -> str:
        return self.spec.partition(":")[0]

    @property
    def secrets(self) -> list[str]:
        """What this provider is sent at the first request."""
        if self.name == "watttime":
            return ["me:secret", "secret", "bWU6c2VjcmV0"]
        return [KEYS[key] for key in KEYS if key.endswith(self.name.upper())]


CASES = [
    Case(spec="electricitymaps", zone="FR", fake=ElectricityMapsFake),
    Case(spec="electricitymaps:v4", zone="FR", fake=ElectricityMapsFake),
    Case(spec="neso", zone="GB", fake=NesoFake, factor="direct", minutes=30),
    Case(spec="energycharts", zone="DE", fake=EnergyChartsFake, minutes=15),
    Case(spec="watttime", zone="WT:CAISO_NORTH", fake=WattTimeFake, factor="marginal", minutes=5),
    Case(spec="entsoe", zone="SE-SE3", fake=EntsoeFake, g_per_kwh=213.25, minutes=15, format="xml", forecasts=False),
    Case(spec="eia", zone="US-CAL-CISO", fake=EiaFake, g_per_kwh=251.0, forecasts=False),
]


class Sleeps(list[float]):
    """Keeps how long we would have slept."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def make_context(
    addresses: dict[str, str],
    *,
    factor: Factor = "lifecycle",
    now: datetime = NOW,
    sleeps: Sleeps | None = None,
    folder: Path | None = None,
    **client: Any,
) -> Context:
    settings: dict[str, Any] = {"timeout_s": 5.0, "loopback_http": True, "jitter": lambda: 0.5, **client}
    return Context(
        factor=factor,
        client=Client(now=lambda: now, sleep=sleeps if sleeps is not None else Sleeps(), **settings),
        keys=Keys(KEYS, Path("no-keyring.toml")),
        addresses=addresses,
        folder=folder or Path(),
    )


@contextmanager
def serving(case: Case, value: Value | None = None, **settings: Any) -> Iterator[tuple[Provider, Loopback, Sleeps]]:
    """The provider and the server it asks."""
    sleeps = Sleeps()
    with running(case.fake() if value is None else case.fake(value), NOW) as server:
        context = make_context({case.name: server.address}, factor=case.factor, sleeps=sleeps, **settings)
        yield make_provider(case.spec, context), server, sleeps


START = NOW.replace(hour=0, minute=0) - timedelta(days=3)
END = START + timedelta(hours=6)
