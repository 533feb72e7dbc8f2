"""Grids that a world lives on: what each zone emits, what is forecast, and the providers that tell it, with their faults.

Everything follows from the zone's name and the hour, so that two runs of a test see the same world.
"""

from __future__ import annotations

import functools
import json
import math
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
from fakes import ElectricityMapsFake, EnergyChartsFake, NesoFake, parsed
from loopback import Asked, Loopback, Reply, as_json
from numpy.typing import NDArray

HOUR = timedelta(hours=1)
EPOCH = datetime(2026, 5, 1, tzinfo=UTC)
DAYS = 240
LEVELS = {"FR": 55, "DE": 380, "GB": 190, "IE": 320, "FI": 90, "PL": 650, "ES": 160, "BE": 170, "SE": 35, "AT": 130}
"""Mean intensity of a zone, g/kWh."""

FaultKind = Literal["down", "throttled", "nulls", "late", "revised", "no-forecast", "double-forecast"]
LATE = 6 * HOUR
ESTIMATED = 4 * HOUR
"""Values of Electricity Maps that are younger than this are marked as estimated."""
REVISED_AFTER = 12 * HOUR
REVISED_BY = 0.8
"""What is published first, as a share of what it is revised to."""
_EVERY_THIRD = 3


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong between two moments of the world.

    `late` and `revised` are about the actual values of these hours; all others about what is answered during them.
    """

    kind: FaultKind
    start: datetime
    end: datetime
    zones: tuple[str, ...] = ()
    """All, if none is named; a provider that is down or throttles is so for all."""
    retry_after_s: int = 900

    def on(self, moment: datetime, zone: str | None = None) -> bool:
        return self.start <= moment < self.end and (zone is None or not self.zones or zone in self.zones)


@functools.cache
def _hourly(zone: str) -> NDArray[np.float64]:
    """Truth by the hour, g/kWh: days and weeks that look like it, weather that lasts for days."""
    rng = np.random.default_rng(zlib.crc32(zone.encode()))
    hours = np.arange(DAYS * 24)
    hour, day = hours % 24, hours // 24
    evening = np.exp(-(((hour - 18.5) / 3.0) ** 2)) + 0.7 * np.exp(-(((hour - 7.5) / 2.5) ** 2))
    sun = np.exp(-(((hour - 12.5) / 2.8) ** 2))
    weekend = np.where((day + EPOCH.weekday()) % 7 >= 5, -0.08, 0.0)
    shape = 1 + rng.uniform(0.10, 0.25) * evening - rng.uniform(0.10, 0.35) * sun + weekend
    return np.maximum(LEVELS.get(zone, 250) * shape * np.exp(_slow(rng, 0.97, 0.22)), 5.0)


@functools.cache
def _errors(zone: str) -> NDArray[np.float64]:
    """By the hour that is forecast: which way forecasts of it are wrong, and how much, in standard deviations."""
    return _slow(np.random.default_rng(zlib.crc32(f"forecasts of {zone}".encode())), 0.9, 1.0)


def _slow(rng: np.random.Generator, memory: float, spread: float) -> NDArray[np.float64]:
    noise = rng.standard_normal(DAYS * 24) * spread * math.sqrt(1 - memory**2)
    values = np.empty(DAYS * 24)
    last = spread * rng.standard_normal()
    for i, step in enumerate(noise):
        values[i] = last = memory * last + step
    return values


def truth(zone: str, when: datetime) -> float:
    """What a zone emits around a moment, g/kWh; between full hours it is interpolated."""
    at = (when - EPOCH) / HOUR
    hourly, first = _hourly(zone), math.floor(at)
    if not 0 <= first < len(hourly) - 1:
        raise IndexError(f"{when} is outside of this world")
    return float(hourly[first] + (at - first) * (hourly[first + 1] - hourly[first]))


def foreseen(zone: str, when: datetime, issued: datetime) -> float:
    """What is forecast for a moment, g/kWh: some per cent wrong for the next hours, and some 15 after three days."""
    lead_h = max((when - issued) / HOUR, 0.0)
    error = (0.01 + 0.016 * math.sqrt(lead_h)) * _errors(zone)[math.floor((when - EPOCH) / HOUR)]
    return truth(zone, when) * max(1.02 + error, 0.3)


class Moving:
    """A provider in a world whose time moves: values are published with a lag, and faults come and go."""

    def __init__(
        self, clock: Callable[[], datetime], faults: Sequence[Fault], *, lag: timedelta, reach: timedelta
    ) -> None:
        super().__init__()
        self._clock, self._faults, self._lag, self._reach = clock, faults, lag, reach

    def now(self) -> datetime:
        return self._clock()

    def on(self, kind: FaultKind, moment: datetime, zone: str | None = None) -> Fault | None:
        return next((fault for fault in self._faults if fault.kind == kind and fault.on(moment, zone)), None)

    def published(self, zone: str, when: datetime, at: datetime) -> bool:
        late = LATE if self.on("late", when, zone) else timedelta(0)
        return when + self.step + self._lag + late <= at

    def actual(self, zone: str, when: datetime) -> float | None:
        return self.told(zone, when, self.now())

    def told(self, zone: str, when: datetime, at: datetime) -> float | None:
        """The actual value that the provider publishes at a moment of the world, g/kWh."""
        if not self.published(zone, when, at):
            return None
        nth = math.floor((when - EPOCH) / HOUR)
        if self.on("nulls", at, zone) and nth % _EVERY_THIRD == 0:
            return None
        first = self.on("revised", when, zone) and at < when + REVISED_AFTER
        return round(truth(zone, when + self.step / 2) * (REVISED_BY if first else 1.0), 2)

    def expected(self, zone: str, when: datetime) -> float | None:
        issued = EPOCH + (self.now() - EPOCH) // self.step * self.step
        if when >= issued + self._reach or self.on("no-forecast", self.now(), zone):
            return None
        value = foreseen(zone, when + self.step / 2, issued)
        return round(value * (2.0 if self.on("double-forecast", self.now(), zone) else 1.0), 2)

    def trouble(self) -> Reply | None:
        if self.on("down", self.now()):
            return as_json({"error": "Service Unavailable"}, status=503)
        if fault := self.on("throttled", self.now()):
            return as_json(
                {"error": "Too Many Requests"}, status=429, headers={"Retry-After": str(fault.retry_after_s)}
            )
        return None

    step = HOUR

    def __call__(self, asked: Asked) -> Reply:
        reply = self.trouble() or self.answer(asked)
        reply.date = self.now()
        return reply

    def answer(self, asked: Asked) -> Reply:
        reply: Reply = super().__call__(asked)  # type: ignore[misc]
        return reply


class ElectricityMapsWorld(Moving, ElectricityMapsFake):
    """v3. On the free plan there are the last 24 hours and no forecast."""

    def __init__(self, *args: Any, free: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.free = free

    def answer(self, asked: Asked) -> Reply:
        what, zone = asked.path.rpartition("/")[2], asked.query["zone"]
        if self.free and what in ("past-range", "forecast"):
            return as_json({"error": f"Your plan does not include {what}"}, status=403)
        reply = super().answer(asked)
        if reply.status != 200:
            return reply
        page = json.loads(reply.body)
        if what == "latest":  # of the hour under way there is only an estimate
            page |= {"carbonIntensity": round(truth(zone, self.now()) * 1.03, 2), "isEstimated": True}
        elif what == "forecast":
            page["forecast"] = [row for row in page["forecast"] if row["carbonIntensity"] is not None]
        else:
            name = "history" if what == "history" else "data"
            page[name] = [row for row in page[name] if self.published(zone, parsed(row["datetime"]), self.now())]
            for row in page[name]:  # what is new is estimated at first
                row["isEstimated"] = parsed(row["datetime"]) > self.now() - ESTIMATED
        return as_json(page)


class NesoWorld(Moving, NesoFake):
    step = timedelta(minutes=30)


class EnergyChartsWorld(Moving, EnergyChartsFake):
    step = timedelta(minutes=15)


class Server:
    """A provider on a port of this machine, which can be closed and opened again."""

    def __init__(self, answers: Callable[[Asked], Reply]) -> None:
        self._answers = answers
        self._loopback: Loopback | None = None
        self._thread: threading.Thread | None = None
        self._port = 0
        self.earlier = 0
        """Requests before the port was last closed."""
        self.open()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def requests(self) -> int:
        return self.earlier + (len(self._loopback.asked) if self._loopback else 0)

    def open(self) -> None:
        if self._loopback is not None:
            return
        loopback = Loopback(self._answers, EPOCH, port=self._port)
        self._port = int(loopback.server.server_address[1])
        self._thread = threading.Thread(target=loopback.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self._loopback = loopback

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._loopback is None or self._thread is None:
            return
        self.earlier += len(self._loopback.asked)
        self._loopback.server.shutdown()
        self._loopback.server.server_close()
        self._thread.join()
        self._loopback = None
