"""Energy measured where a client trains: kWh only; the server applies the intensity.

CodeCarbon where it is installed (pip install 'slackwater[energy]') and finds a sensor, else the processor's counters
(RAPL on Linux) where they may be read. Both measure the whole machine. With neither, the server takes the declared
power and the time.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger(__name__)
POWERCAP = Path("/sys/class/powercap")
_JOULES_PER_KWH = 3.6e6
_SAMPLE_S = 30.0
"""RAPL's counters start again from zero after some minutes under load: they are read more often than that."""
_SENSORS = ("intel_rapl", "intel_power_gadget", "windows_emi", "apple_powermetrics")
"""CodeCarbon's ways that read a sensor; its others are guesses from the processor's name and load."""


class EnergyMeter(Protocol):
    """Measures from `start` to `stop`."""

    @property
    def name(self) -> str:
        """Return what measures, for people."""

    def start(self) -> None:
        """Start measuring."""

    def stop(self) -> float | None:
        """Return kWh since the start; None where nothing could be measured."""


def best_meter() -> EnergyMeter | None:
    """Return the meter of this machine; None without one. CodeCarbon comes first: it knows graphics cards too."""
    return CodeCarbon.if_installed() or (Rapl() if Rapl.zones() else None)


class Rapl:
    """The processor packages' energy counters in /sys; since 2020 most systems let only root read them."""

    name = "the processor's RAPL counters"

    def __init__(self, folder: Path | None = None) -> None:
        self._zones = self.zones(folder)
        self._before: dict[Path, int] = {}
        self._joules = 0.0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @staticmethod
    def zones(folder: Path | None = None) -> list[Path]:
        """Return the folders of the packages whose counter can be read; a package counts all inside it."""
        found = []
        for zone in sorted((folder or POWERCAP).glob("*-rapl:*")):
            try:
                int((zone / "energy_uj").read_text())
            except (OSError, ValueError):
                continue
            if zone.name.count(":") == 1:
                found.append(zone)
        return found

    def start(self) -> None:
        """Start, and keep reading the counters."""
        self._joules = 0.0
        self._before = {zone: _whole(zone / "energy_uj") for zone in self._zones}
        self._done.clear()

        def keep_reading() -> None:
            while not self._done.wait(_SAMPLE_S):
                self._read()

        self._thread = threading.Thread(target=keep_reading, name="slackwater-rapl", daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """Return kWh since the start."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        self._read()
        return self._joules / _JOULES_PER_KWH if self._zones else None

    def _read(self) -> None:
        with self._lock:
            for zone in self._zones:
                now, before = _whole(zone / "energy_uj"), self._before[zone]
                span = _whole(zone / "max_energy_range_uj") if now < before else 0
                self._joules += (now - before + span) / 1e6
                self._before[zone] = now


class CodeCarbon:
    """CodeCarbon, offline, without its files: only its kWh are used."""

    name = "CodeCarbon"

    def __init__(self, tracker_class: Any) -> None:
        # Any country does: it only sets CodeCarbon's own intensity, which is not used; without one it asks the network.
        self._tracker = tracker_class(
            country_iso_code="FRA", save_to_file=False, log_level="critical", allow_multiple_runs=True
        )

    @classmethod
    def if_installed(cls) -> CodeCarbon | None:
        """Return a meter if CodeCarbon is installed."""
        try:
            from codecarbon import OfflineEmissionsTracker  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            return None
        return cls(OfflineEmissionsTracker)

    def _has_sensor(self) -> bool:
        """Return whether it reads a sensor, of a graphics card or the processor; known once it has started."""
        for part in getattr(self._tracker, "_hardware", ()):
            mode = str(getattr(part, "_mode", "")).lower()
            if type(part).__name__ in ("GPU", "AppleSiliconChip") or mode in _SENSORS:
                return True
        return False

    def start(self) -> None:
        """Start measuring."""
        self._tracker.start()

    def stop(self) -> float | None:
        """Return kWh since the start; None without a sensor, since its guesses are no better than the declared power."""
        self._tracker.stop()
        if not self._has_sensor():
            return None
        data = getattr(self._tracker, "final_emissions_data", None)
        energy = getattr(data, "energy_consumed", None)
        return float(energy) if energy is not None else None


def _whole(path: Path) -> int:
    return int(path.read_text())
