"""Measure local training on a client, for every engine: time, energy in kWh, the slot's seed and its end.

CodeCarbon is used if it is installed (pip install 'slackwater[energy]') and finds a sensor, else the processor's
counters (RAPL on Linux) if they can be read. Both measure the whole machine. With neither, the server uses the declared
power and the time. The server applies the intensity.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from slackwater import time_source
from slackwater.errors import SlackwaterError

log = logging.getLogger(__name__)
POWERCAP = Path("/sys/class/powercap")
_JOULES_PER_KWH = 3.6e6
_SAMPLE_S = 30.0
"""RAPL's counters overflow after some minutes under load, so they are read more often."""
_SENSORS = ("intel_rapl", "intel_power_gadget", "windows_emi", "apple_powermetrics")
"""CodeCarbon's methods that read a sensor; its others are estimates from the processor's name and load."""


class EnergyMeter(Protocol):
    """Measures from `start` to `stop`."""

    @property
    def name(self) -> str:
        """Return the name of the method, for people."""

    def start(self) -> None:
        """Start measuring."""

    def stop(self) -> float | None:
        """Return kWh since the start; None if nothing could be measured."""


def best_meter() -> EnergyMeter | None:
    """Return the meter of this machine; None without one. CodeCarbon comes first, since it includes graphics cards."""
    return CodeCarbon.if_installed() or (Rapl() if Rapl.zones() else None)


class Rapl:
    """The processor packages' energy counters in /sys; since 2020 only root can read them on most systems."""

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
        """Return the folders of the packages with a readable counter; a package includes its parts."""
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
        # Any country works: it only sets CodeCarbon's intensity, which is not used. Without one it asks the network.
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
        """Return kWh since the start; None without a sensor, since its estimates are no better than the declared power."""
        self._tracker.stop()
        if not self._has_sensor():
            return None
        data = getattr(self._tracker, "final_emissions_data", None)
        energy = getattr(data, "energy_consumed", None)
        return float(energy) if energy is not None else None


def _whole(path: Path) -> int:
    return int(path.read_text())


_MARGIN, _LONGEST_MARGIN_S = 0.1, 30.0
"""Time kept for sending the reply: share of the time left, and most seconds."""
_ENTER_S = 0.2
"""Time to enter a block that is interrupted at once: inside it, the interrupt is caught where it belongs."""
_GIVE_UP_S = 10.0
"""Seconds after the end of the slot at which a step that cannot be interrupted is ended, with its process."""


_LOSSES = ("train-loss", "train_loss", "loss")  # names of the mean loss in a report; the first that is there counts


class OutOfTimeError(SlackwaterError):
    """Local training was stopped at the end of its slot."""


class LocalTrainingError(SlackwaterError):
    """Local training failed; the message carries its time and energy."""


class SlotMeter:
    """One client's local training in one slot: its time, energy and end."""

    def __init__(
        self, config: Mapping[str, Any], *, name: str, power_w: float | None, energy: EnergyMeter | None
    ) -> None:
        """Start the clock; `config` is what the server sent besides the model."""
        self._energy, self._name, self._power = energy, name, power_w
        self.slot: int | None = config.get("slot")  # counted from 0; None if the message is not from a plan
        self.seed: int | None = config.get("seed")
        """Of this client and slot. `measured` has seeded Python's, NumPy's and PyTorch's generators with it."""
        self.work = float(config.get("work", 1.0))
        """Share of the local steps to take in this slot; below 1 if the plan has the client at a lower power level."""
        self._started, self._started_at = time_source.monotonic(), time_source.now().timestamp()
        self._ended_s: float | None = None
        self._kwh: float | None = None
        self._evaluated_s: float | None = None
        ends_at, left_s = config.get("ends-at"), config.get("seconds-left")
        # The minimum: a slow clock here must not let this client continue after its slot.
        left = [float(each) for each in (ends_at and ends_at - self._started_at, left_s) if each is not None]
        self.hard_stop: float | None = self._started + min(left) if left else None
        """On the monotonic clock; None: no end."""
        self._margin_s = min(_MARGIN * min(left), _LONGEST_MARGIN_S) if left else 0.0
        self.arrived_late = bool(left) and min(left) <= 0
        self.stopped_early = False

    @property
    def out_of_time(self) -> bool:
        """Return whether to stop now. Check it before each step, so that the model so far is still sent."""
        if self.hard_stop is None or time_source.monotonic() < self.hard_stop - self._margin_s:
            return False
        self.stopped_early = True
        return True

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Time an evaluation inside the `measured` block: the server charges its part of the energy as evaluation."""
        began = time_source.monotonic()
        try:
            yield
        finally:
            self._evaluated_s = (self._evaluated_s or 0.0) + time_source.monotonic() - began

    @contextmanager
    def running(self, *, own_process: bool = False, always_enter: bool = False) -> Iterator[None]:
        """Measure a block: one PyTorch thread, the slot's seed, and an interrupt when the slot ends.

        Args:
            own_process: The process serves this message only, and is ended if its training cannot be interrupted.
            always_enter: If the slot is over, enter the block and interrupt it, instead of raising before it.

        Raises:
            OutOfTimeError: The slot has ended.
        """
        with ExitStack() as around:
            around.enter_context(_one_thread())
            around.enter_context(_seeded(self.seed))
            try:
                with _stopped_in_time(self, own_process=own_process, always_enter=always_enter):
                    if self._energy is not None:
                        self._energy.start()
                    yield
            except OutOfTimeError as error:
                late = (
                    f"The work for slot {self.slot} arrived after the end of the slot. Check the clock of this machine."
                )
                ended = f"Local training was stopped at the end of slot {self.slot}."
                raise OutOfTimeError(str(error) or (late if self.arrived_late else ended)) from None
            finally:
                self.end()
        told = self.told()
        log.info("Slot %s: %.1f s, %s.", self.slot, told["seconds"], told["energy-method"])

    def told(self) -> dict[str, Any]:
        """Return the report that is sent besides the model."""
        seconds = time_source.monotonic() - self._started if self._ended_s is None else self._ended_s
        if self._kwh is not None and self._energy is not None:
            method = f"measured by {self._energy.name}"
        elif self._power is not None:
            method = f"not measured: {self._power:g} W declared, for {seconds:.1f} s"
        else:
            method = "not measured: the scenario's power and the time"
        return {
            "name": self._name or None, "started-at": self._started_at, "ended-at": self._started_at + seconds,
            "seconds": seconds, "evaluation-seconds": self._evaluated_s, "energy-kwh": self._kwh,
            "energy-method": method, "stopped-early": self.stopped_early,
        }  # fmt: skip

    def end(self) -> None:
        """Stop measuring; `running` calls it."""
        if self._ended_s is None:
            self._ended_s = time_source.monotonic() - self._started
            self._kwh = self._energy.stop() if self._energy is not None else None


@contextmanager
def _stopped_in_time(meter: SlotMeter, *, own_process: bool, always_enter: bool) -> Iterator[None]:
    """Interrupt this thread when the meter's time is over."""
    if meter.hard_stop is None:
        yield
        return
    left_s = meter.hard_stop - time_source.monotonic()
    if meter.arrived_late and not always_enter:
        raise OutOfTimeError
    left_s = _ENTER_S if meter.arrived_late else left_s
    done, lock, thread = threading.Event(), threading.Lock(), threading.get_ident()
    ended = interrupted = False

    def watch() -> None:
        nonlocal interrupted
        if done.wait(left_s):
            return
        with lock:
            if ended:
                return
            interrupted = True
            _raise_in(thread, OutOfTimeError)
        if not done.wait(_GIVE_UP_S):
            ends = "; ending its process" if own_process else ""
            log.error("Local training could not be interrupted at the end of its slot%s.", ends)
            if own_process:
                os._exit(1)

    threading.Thread(target=watch, name="slackwater-slot-end", daemon=True).start()
    try:
        yield
    finally:
        # The interrupt may not have been raised yet. Catch it here, so that it is raised nowhere else. Python 3.11 hangs
        # under a tracer if it is withdrawn instead. A plain flag, since any call may be where Python raises it.
        try:
            with lock:
                ended = True
            if interrupted and not isinstance(sys.exception(), OutOfTimeError):
                for _ in range(100):  # Python raises it at a jump back; training may also have caught it already
                    pass
        except OutOfTimeError:
            pass
        done.set()
    if interrupted or meter.arrived_late:  # then its result is not used, even if the block ended by itself
        raise OutOfTimeError


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, for the same result on every machine: sums in PyTorch depend on the number of threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Seed the global generators, and restore them afterwards."""
    if seed is None:
        yield
        return
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy else None
    torch_state = torch.get_rng_state() if torch else None
    random.seed(seed)
    if numpy:
        numpy.random.seed(seed % 2**32)
    if torch:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)
        if torch:
            torch.set_rng_state(torch_state)


def reported_times(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client's report says of time and energy, as fields of `Reply`; None for what is no possible number."""
    return {
        "started_at": _moment(told.get("started-at")),
        "ended_at": _moment(told.get("ended-at")),
        "energy_kwh": _reported(told.get("energy-kwh")),
        "evaluation_seconds": _reported(told.get("evaluation-seconds")),
    }


def reported_result(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a client's report says of its training, as fields of `Reply`: the mean loss and the number of samples."""
    samples = _reported(told.get("num-examples"))
    return {
        "loss": next((_reported(told[key], finite=False) for key in _LOSSES if key in told), None),
        "samples": None if samples is None else int(samples),
    }


def numbers_in(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers of a record by name."""
    found = {name: _reported(value, finite=False) for name, value in record.items()}
    return {str(name): value for name, value in found.items() if value is not None and math.isfinite(value)}


def _reported(value: object, *, finite: bool = True) -> float | None:
    """Return a number that a client reported; None unless it is one, with `finite` at least 0 and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    if not finite:  # the runner handles a loss that is not finite
        return number
    return number if math.isfinite(number) and number >= 0 else None


def _moment(value: object) -> datetime | None:
    number = _reported(value)
    try:
        return None if number is None else datetime.fromtimestamp(number, UTC)
    except (OverflowError, OSError, ValueError):
        return None
