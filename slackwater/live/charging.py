"""Charges of a live run, each step in one transaction: at the start of a round, at every reply, at its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from slackwater import time_source
from slackwater.errors import ScenarioError
from slackwater.ledger.journal import Attempt, EnergyReport, Outcome, charged_kwh
from slackwater.ledger.ledger import WAITING, Cause, Charge, Method, OverBudgetError
from slackwater.ledger.run import Level, Run
from slackwater.live.schedule_sources import Decision, ScheduleSource
from slackwater.live.sites import Arrays, Attendance, Mask, Reply
from slackwater.planning.problem import Problem
from slackwater.units import iso

BYTES_PER_GB, BYTES_PER_MB = 1e9, 1e6
MOST_OF_PLANNED = 3.0
"""Bound of a measured energy, as a multiple of the declared power over all the time that the client may train, with PUE. A
power that was guessed may be wrong by a factor of two; more is a broken meter, a wrong unit or a false report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Energy of one client's round."""

    energy_kwh: float  # for the ledger's training line: with PUE, without idle draw, which has its own line
    seconds: float | None
    method: Method
    corrects: bool  # whether it replaces the charge made at the start
    evaluation_kwh: float | None = None  # for the evaluation line; None: unchanged
    network_kwh: float | None = None  # for the network line; None: unchanged
    idle_kwh: float = 0.0  # idle draw in its time, which was subtracted from a measured energy


class Meter:
    """Energy of replies; `slot_seconds` is the wall time of a slot, 0 if slots do not wait."""

    def __init__(self, problem: Problem, slot_seconds: float) -> None:
        fleet, costs = problem.fleet, problem.costs
        self._full, self._pue = costs.training_kwh, fleet.pue
        self._idle = costs.idle_kwh + costs.up_kwh  # a client that trains is up
        self._share, self._network = problem.evaluation_share, costs.network_kwh
        self._kwh_per_byte = problem.network_kwh_per_gb / BYTES_PER_GB
        self._by_power = ~np.isnan(fleet.power_w) & np.isnan(fleet.energy_kwh)
        self._slot_s = slot_seconds
        self._pace = slot_seconds / (problem.slot_hours * 3600.0) if slot_seconds else 1.0
        share = 1.0 if problem.round_minutes is None else problem.round_minutes / problem.traces.slot_minutes
        self.allowed_seconds = slot_seconds * share
        """Longest training in a slot, as wall time: the charge at the start is its power over this time."""

    def read(
        self, client: int, reply: Reply, sent_at: datetime, now: datetime, booked_kwh: float | None = None
    ) -> Reading:
        """Return the energy of the round. A late or lost client may still draw power, so its full charge stays.

        `booked_kwh` is the training energy charged at the start, if the client trains below full power.
        """
        full = float(self._full[client]) if booked_kwh is None else booked_kwh
        if reply.outcome in ("late", "lost"):
            return Reading(energy_kwh=full, seconds=None, method="modelled", corrects=False)
        seconds, network = _seconds(reply, sent_at, now), self._sent_kwh(client, reply)
        measured = reply.energy_kwh
        method: Method = "modelled"
        waiting = 0.0
        if measured is not None and math.isfinite(measured) and measured >= 0:
            waiting = float(self._idle[client]) * (min(1.0, seconds / self._slot_s) if self._slot_s else 0.0)
            energy, method = charged_kwh(measured, self.pue(client), waiting), "measured"
        elif self._slot_s and self._by_power[client]:
            energy = full * min(1.0, seconds / self.allowed_seconds)
        else:
            return Reading(energy_kwh=full, seconds=seconds, method=method, corrects=False, network_kwh=network)
        training, evaluation = self._parts(energy, seconds, reply.evaluation_seconds)
        return Reading(
            energy_kwh=training, seconds=seconds, method=method, corrects=True, evaluation_kwh=evaluation,
            network_kwh=network, idle_kwh=waiting,
        )  # fmt: skip

    def possible_kwh(self, client: int, held_kwh: float) -> float:
        """Return the energy of a round at the declared power, by the wall clock: a meter counts real seconds.

        `held_kwh` is what was charged at the start, for the scenario's time. A slot may be shorter in a rehearsal.
        """
        return held_kwh * (self._pace if self._by_power[client] else 1.0)

    def pue(self, client: int) -> float:
        """Return the power usage effectiveness of a client's site."""
        return float(self._pue[client])

    def _parts(self, energy_kwh: float, seconds: float, evaluation_s: float | None) -> tuple[float, float | None]:
        """Return the energy of training and of evaluation: by the client's times, else by the planned share."""
        if evaluation_s is None or not math.isfinite(evaluation_s) or evaluation_s < 0:
            return energy_kwh, self._share * energy_kwh if self._share else None
        evaluation = energy_kwh * (min(1.0, evaluation_s / seconds) if seconds > 0 else 0.0)
        return energy_kwh - evaluation, evaluation

    def _sent_kwh(self, client: int, reply: Reply) -> float | None:
        """Return the energy of sending the model and the reply; None if the network is not counted."""
        booked = float(self._network[client])
        if not booked:
            return None
        back = 0 if reply.arrays is None else model_bytes(reply.arrays)
        return booked / 2 + self._kwh_per_byte * back


def model_bytes(arrays: Arrays) -> int:
    """Return the size of a model's arrays, in bytes."""
    return sum(int(array.nbytes) for array in arrays.values())


def _seconds(reply: Reply, sent_at: datetime, now: datetime) -> float:
    """Return the seconds by the client's clock, if they fit the time that we measured."""
    seen = max(0.0, (now - sent_at).total_seconds())
    if reply.started_at is None or reply.ended_at is None:
        return seen
    own = (reply.ended_at - reply.started_at).total_seconds()
    return own if 0 <= own <= seen else seen


log = logging.getLogger(__name__)

_SERVER_GONE = "the server stopped before the round was saved"
_ERROR = 500  # characters of a client's error that are kept
_SHOWN = 200  # of those that an event shows
_ROUNDING = 1e-9
_REPORTS = 8  # reports that a message names

Lines = dict[Cause, Charge]
"""One client's charges of a round, by cause: training always, network and evaluation if counted."""


class Charging:
    """The run's ledger and journal, by clients' names."""

    def __init__(self, run: Run, names: Sequence[str], meter: Meter, attendance: Attendance) -> None:
        self._run, self._ledger, self._journal = run, run.ledger, run.journal
        self._names, self._meter, self._attendance = list(names), meter, attendance
        self._row = {name: client for client, name in enumerate(names)}
        self._nobody: Mask = np.zeros(len(names), dtype=bool)

    def start(self, decision: Decision, schedule: ScheduleSource, messages: Sequence[str], sent_at: datetime) -> Mask:
        """Charge a slot at its upper bound, and record the decision; return which clients may start [client].

        A round starts only if it fits the budget.
        """
        trains = decision.trains
        try:
            with self._run.transaction():
                self._note_decision(decision, messages)
                self._ledger.charge(*_lines(decision), protected_kg=decision.protected_kg, spent=not trains.any())
                self._journal.note(*self._attempts(decision.slot, trains, "running", sent_at=sent_at))
                self._journal.put(guide=schedule.state(), open=decision.slot if trains.any() else None)
            return trains
        except OverBudgetError as error:
            return self.refuse(decision, schedule, messages, str(error))

    def refuse(self, decision: Decision, schedule: ScheduleSource, messages: Sequence[str], why: str) -> Mask:
        """Charge only idle draw and starts of a slot whose round does not begin; no client trains."""
        slot, idle = decision.slot, [line for line in _lines(decision) if line.cause in WAITING]
        with self._run.transaction():
            self._note_decision(decision, messages)
            self._ledger.charge(*idle, spent=True)
            self._journal.note(*self._attempts(slot, decision.trains, "refused", error=why))
            self._journal.put(guide=schedule.state(), open=slot)
            self.say(f"The round of slot {slot} does not start: {why}", "warning", slot)
        return self._nobody

    def pass_over(self, decision: Decision) -> None:
        """Charge the idle draw of a missed slot, even over the budget."""
        with self._run.transaction():
            self._journal.note_planned(decision.slot, decision.expected_kg)
            self._ledger.charge(*_lines(decision), spent=True)
            if decision.missing.any():
                who = self.named(decision.missing)
                self.say(f"Slot {decision.slot} was missed; planned: {who}.", "warning", decision.slot)

    def round_lines(self, slot: int) -> dict[str, Lines]:
        """Return client -> cause -> its charge at the start of a slot, without idle draw and starts."""
        lines: dict[str, Lines] = {}
        for line in self._ledger.charges(slot=slot):
            if line.kind == "charge" and line.cause not in (*WAITING, "server"):
                lines.setdefault(line.client, {})[line.cause] = line
        return lines

    def take(self, came: Sequence[tuple[Reply, datetime]], lines: Mapping[str, Lines], sent_at: datetime) -> None:
        """Charge the energy in replies and their times of arrival; whether updates are used is known later."""
        with self._run.transaction():
            for reply, at in came:
                self._take(reply, lines[reply.client], sent_at, at)

    def reject(self, slot: int, reasons: Mapping[int, str]) -> None:
        """Record updates that are not used; their energy stays charged."""
        for one in self._journal.attempts(slot=slot):
            if why := reasons.get(self._row[one.client]):
                self._journal.note(replace(one, outcome="rejected", error=why))
                self.say(
                    f"The update of {one.client} in slot {slot} is rejected, and stays charged: {why}.", "warning", slot
                )

    def close(self, slot: int, why: str = _SERVER_GONE) -> Mask:
        """Record an unfinished slot as lost; it stays charged. Return which clients had started [client]."""
        sent = [one for one in self._journal.attempts(slot=slot) if one.sent_at is not None]
        unused = [one for one in sent if one.outcome in ("running", "done")]
        self._journal.note(*(replace(one, outcome="lost", error=why) for one in unused))
        if sent:
            self.say(f"Slot {slot} is lost, and stays charged: {why}.", "warning", slot)
        return np.isin(self._names, [one.client for one in sent])

    def unlucky(self) -> set[str]:
        """Return the clients with a lost slot."""
        return {one.client for one in self._journal.attempts() if one.outcome != "done"}

    def say(self, message: str, level: Level = "info", slot: int | None = None) -> None:
        """Record an event, and log it."""
        log.log(logging.INFO if level == "info" else logging.WARNING, "%s", message)
        self._run.log(message, level=level, slot=slot)

    def named(self, who: Mask) -> str:
        """Return the names of clients [client], as one text."""
        return ", ".join(self._names[client] for client in np.flatnonzero(who))

    def _take(self, reply: Reply, lines: Lines, sent_at: datetime, now: datetime) -> None:
        line = lines["training"]
        read = self._meter.read(self._row[reply.client], reply, sent_at, now, line.energy_kwh)
        held_kwh = sum(one.energy_kwh or 0.0 for cause, one in lines.items() if cause != "network")
        drew_kwh = read.energy_kwh + (read.evaluation_kwh or 0.0)
        possible_kwh = self._meter.possible_kwh(self._row[reply.client], held_kwh)
        if read.method == "measured" and drew_kwh > MOST_OF_PLANNED * possible_kwh * (1 + _ROUNDING):
            read = self._quarantine(reply, read, line.slot, possible_kwh)
        elif drew_kwh > held_kwh * (1 + _ROUNDING):
            self.say(
                f"{reply.client} used {drew_kwh:.4g} kWh in slot {line.slot}, more than its upper bound of "
                f"{held_kwh:.4g} kWh. All of it is charged. Check its power_w.",
                "warning",
                line.slot,
            )
        attempt = Attempt(
            slot=line.slot, client=reply.client, sent_at=sent_at, ended_at=now, outcome=reply.outcome,
            seconds=read.seconds, energy_kwh=read.energy_kwh, method=read.method, error=reply.error[:_ERROR],
        )  # fmt: skip
        self._journal.note(attempt)
        if read.corrects:
            self._ledger.correct(
                line, read.energy_kwh, method=read.method, started_at=reply.started_at, ended_at=reply.ended_at
            )
        if read.evaluation_kwh is not None:
            self._book(lines, "evaluation", read.evaluation_kwh, read.method)
        if read.network_kwh is not None:
            self._book(lines, "network", read.network_kwh, "modelled")
        if reply.outcome != "done":
            why = f": {attempt.error[:_SHOWN].strip()}" if attempt.error else "."
            how = "failed" if reply.outcome == "failed" else f"was {reply.outcome}"
            self.say(f"{reply.client} {how} in slot {line.slot}, and stays charged{why}", "warning", line.slot)

    def _quarantine(self, reply: Reply, read: Reading, slot: int, possible_kwh: float) -> Reading:
        """Record a report above the bound of its slot; return the reading at the bound."""
        assert reply.energy_kwh is not None
        evaluation_kwh, pue = read.evaluation_kwh or 0.0, self._meter.pue(self._row[reply.client])
        whole, bound_kwh = charged_kwh(reply.energy_kwh, pue, read.idle_kwh), MOST_OF_PLANNED * possible_kwh
        report = EnergyReport(
            slot=slot, client=reply.client, reported_kwh=reply.energy_kwh, bound_kwh=bound_kwh, pue=pue,
            idle_kwh=read.idle_kwh, training_share=read.energy_kwh / whole, evaluation_share=evaluation_kwh / whole,
        )  # fmt: skip
        self._journal.quarantine(report)
        self.say(
            f"{reply.client} reported {reply.energy_kwh:.4g} kWh in slot {slot}, more than is possible: its declared power "
            f"gives {possible_kwh:.4g} kWh. {bound_kwh:.4g} kWh are charged, {MOST_OF_PLANNED:g} times that. Check its meter, "
            f"then run: slackwater confirm {self._run.folder} --client {reply.client} --slot {slot}",
            "warning",
            slot,
        )
        share = bound_kwh / (read.energy_kwh + evaluation_kwh)
        evaluation = None if read.evaluation_kwh is None else share * read.evaluation_kwh
        return replace(read, energy_kwh=share * read.energy_kwh, evaluation_kwh=evaluation)

    def _book(self, lines: Lines, cause: Cause, energy_kwh: float, method: Method) -> None:
        """Set one cause of a round to its energy; an unplanned cause becomes a new line."""
        if (line := lines.get(cause)) is not None:
            if not math.isclose(energy_kwh, line.energy_kwh or 0.0, rel_tol=_ROUNDING):
                self._ledger.correct(line, energy_kwh, method=method)
            return
        training = lines["training"]
        assert training.intensity_kg_per_kwh is not None
        kg = energy_kwh * training.intensity_kg_per_kwh
        if energy_kwh > 0:
            found = replace(training, cause=cause, energy_kwh=energy_kwh, kg=kg, method=method, planned=False, id=None)
            self._ledger.charge(found, spent=True)

    def _note_decision(self, decision: Decision, messages: Sequence[str]) -> None:
        self._journal.note_planned(decision.slot, decision.expected_kg)
        for message in (*messages, *decision.messages):
            self.say(message, "warning", decision.slot)
        if decision.missing.any():
            absent = self._attempts(decision.slot, decision.missing, "offline")
            self._journal.note(
                *(replace(one, error=self._attendance.why_absent(self._row[one.client])) for one in absent)
            )
            self.say(
                f"Offline in slot {decision.slot}, not charged: {self.named(decision.missing)}.",
                "warning",
                decision.slot,
            )
        if decision.replan is not None:
            self._journal.note_replan(decision.replan)

    def _attempts(self, slot: int, who: Mask, outcome: Outcome, **more: Any) -> list[Attempt]:
        return [Attempt(slot=slot, client=self._names[c], outcome=outcome, **more) for c in np.flatnonzero(who)]


def _lines(decision: Decision) -> list[Charge]:
    """Return the charges of a decision; each line says whether the current plan expected it."""
    expected = decision.expected_kg
    return [replace(line, planned=(line.client, line.cause) in expected) for line in decision.charges]


def confirm(folder: str | Path, client: str, slot: int, energy_kwh: float | None = None) -> EnergyReport:
    """Charge a quarantined energy report as a person confirms it, by a correction; the run may go on meanwhile.

    Args:
        folder: The run folder.
        client: Name of the client.
        slot: Slot of the report.
        energy_kwh: What the client really used, as its meter shows it, without PUE. Default: what it reported.

    Raises:
        ScenarioError: There is no such report, or the energy is not a possible number.
    """
    if energy_kwh is not None and not (math.isfinite(energy_kwh) and energy_kwh >= 0):
        raise ScenarioError(f"The energy must be a number of at least 0 kWh, not {energy_kwh!r}.")
    with Run.open(folder, read_only=True) as run:
        _find_report(run, client, slot)
    with Run.open(folder, beside=True) as run, run.transaction():
        report = _find_report(run, client, slot)
        kwh = report.reported_kwh if energy_kwh is None else energy_kwh
        report = replace(report, confirmed_kwh=kwh, confirmed_at=iso(time_source.now()))
        before_kg, note = run.ledger.spent_kg(), f"the energy report is confirmed at {kwh:.6g} kWh"
        training, evaluation = report.parts_kwh(kwh)
        lines = {line.cause: line for line in run.ledger.charges(slot=slot, client=client) if line.kind == "charge"}
        if "evaluation" not in lines:
            training, evaluation = training + evaluation, 0.0
        else:
            run.ledger.correct(lines["evaluation"], evaluation, method="measured", note=note, again=True)
        run.ledger.correct(lines["training"], training, method="measured", note=note, again=True)
        run.journal.quarantine(report)
        for one in run.journal.attempts(slot=slot):
            if one.client == client:
                run.journal.note(replace(one, energy_kwh=training))
        added_kg = run.ledger.spent_kg() - before_kg
        run.log(
            f"The energy report of {client} in slot {slot} is confirmed at {kwh:.6g} kWh: the ledger changes by "
            f"{added_kg:+.6g} kg.",
            slot=slot,
        )
    return report


def _find_report(run: Run, client: str, slot: int) -> EnergyReport:
    reports = run.journal.reports()
    for one in reports:
        if (one.client, one.slot) == (client, slot):
            return one
    known = ", ".join(f"{one.client} in slot {one.slot}" for one in reports[:_REPORTS])
    raise ScenarioError(
        f"{client!r} has no quarantined energy report in slot {slot}. "
        + (f"The run has: {known}." if known else "The run has none.")
    )
