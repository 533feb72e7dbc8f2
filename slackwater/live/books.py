"""What a live run writes down, each step in one transaction: at the start of a round, at every answer, at its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from slackwater.ledger.journal import Attempt, Outcome
from slackwater.ledger.ledger import Cause, Charge, Method, OverBudgetError
from slackwater.ledger.run import Level, Run
from slackwater.live.guide import Decision, ScheduleSource
from slackwater.live.metering import Meter
from slackwater.live.roster import Attendance, Mask
from slackwater.live.transport import Reply

log = logging.getLogger(__name__)

_SERVER_GONE = "the server stopped before the round was kept"
_ERROR = 500  # characters of a client's error that are kept
_SHOWN = 200  # of those that an event shows
_ROUNDING = 1e-9

Lines = dict[Cause, Charge]
"""One client's charges of a round, by cause: training always, network and evaluation where they are counted."""


class Charging:
    """The run's ledger and journal, by clients' names."""

    def __init__(self, run: Run, names: Sequence[str], meter: Meter, attendance: Attendance) -> None:
        self._run, self._ledger, self._journal = run, run.ledger, run.journal
        self._names, self._meter, self._attendance = list(names), meter, attendance
        self._row = {name: client for client, name in enumerate(names)}
        self._nobody: Mask = np.zeros(len(names), dtype=bool)

    def start(self, decision: Decision, schedule: ScheduleSource, messages: Sequence[str], sent_at: datetime) -> Mask:
        """Charge a slot at its upper bound, and record the decision; return who may start [client].

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
        """Charge only the idle draw of a slot whose round does not start; nobody starts."""
        slot, idle = decision.slot, [line for line in _lines(decision) if line.cause == "idle"]
        with self._run.transaction():
            self._note_decision(decision, messages)
            self._ledger.charge(*idle, spent=True)
            self._journal.note(*self._attempts(slot, decision.trains, "refused", error=why))
            self._journal.put(guide=schedule.state(), open=slot)
            self.say(f"The round of slot {slot} does not start: {why}", "warning", slot)
        return self._nobody

    def pass_over(self, decision: Decision) -> None:
        """Charge the idle draw of a slot that has gone by, even over the budget."""
        with self._run.transaction():
            self._journal.note_planned(decision.slot, decision.expected_kg)
            self._ledger.charge(*_lines(decision), spent=True)
            if decision.missing.any():
                who = self.named(decision.missing)
                self.say(f"Slot {decision.slot} went by without a round; planned: {who}.", "warning", decision.slot)

    def round_lines(self, slot: int) -> dict[str, Lines]:
        """Return client -> cause -> its charge in a slot, as booked at the start; idle draw is left out."""
        lines: dict[str, Lines] = {}
        for line in self._ledger.charges(slot=slot):
            if line.kind == "charge" and line.cause not in ("idle", "server"):
                lines.setdefault(line.client, {})[line.cause] = line
        return lines

    def take(self, came: Sequence[tuple[Reply, datetime]], lines: Mapping[str, Lines], sent_at: datetime) -> None:
        """Charge what replies, with the time at which each came, say of energy; whether updates are used is known later."""
        with self._run.transaction():
            for reply, at in came:
                self._take(reply, lines[reply.client], sent_at, at)

    def reject(self, slot: int, reasons: Mapping[int, str]) -> None:
        """Record updates that are not used; their energy stays charged."""
        for one in self._journal.attempts(slot=slot):
            if why := reasons.get(self._row[one.client]):
                self._journal.note(replace(one, outcome="rejected", error=why))
                self.say(f"{one.client} rejected in slot {slot}, charged: {why}.", "warning", slot)

    def close(self, slot: int, why: str = _SERVER_GONE) -> Mask:
        """Record an unfinished slot as lost; it stays charged. Return who had started [client]."""
        sent = [one for one in self._journal.attempts(slot=slot) if one.sent_at is not None]
        unused = [one for one in sent if one.outcome in ("running", "done")]
        self._journal.note(*(replace(one, outcome="lost", error=why) for one in unused))
        if sent:
            self.say(f"Slot {slot} is lost, and stays charged: {why}.", "warning", slot)
        return np.isin(self._names, [one.client for one in sent])

    def unlucky(self) -> set[str]:
        """Return the clients with a slot that came to nothing."""
        return {one.client for one in self._journal.attempts() if one.outcome != "done"}

    def say(self, message: str, level: Level = "info", slot: int | None = None) -> None:
        """Note an event, and log it."""
        log.log(logging.INFO if level == "info" else logging.WARNING, "%s", message)
        self._run.log(message, level=level, slot=slot)

    def named(self, who: Mask) -> str:
        """Return the names of clients [client], in a row."""
        return ", ".join(self._names[client] for client in np.flatnonzero(who))

    def _take(self, reply: Reply, lines: Lines, sent_at: datetime, now: datetime) -> None:
        read, line = self._meter.read(self._row[reply.client], reply, sent_at, now), lines["training"]
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
        held_kwh = sum(one.energy_kwh or 0.0 for cause, one in lines.items() if cause != "network")
        drew_kwh = read.energy_kwh + (read.evaluation_kwh or 0.0)
        if drew_kwh > held_kwh * (1 + _ROUNDING):
            self.say(
                f"{reply.client} drew {drew_kwh:.4g} kWh in slot {line.slot}, more than the "
                f"{held_kwh:.4g} kWh that it was held at; all of it is charged. Is its power_w right?",
                "warning",
                line.slot,
            )
        if reply.outcome != "done":
            why = f": {attempt.error[:_SHOWN].strip()}" if attempt.error else "."
            self.say(f"{reply.client} {reply.outcome} in slot {line.slot}, charged{why}", "warning", line.slot)

    def _book(self, lines: Lines, cause: Cause, energy_kwh: float, method: Method) -> None:
        """Bring one cause of a round to its energy; one that nobody planned becomes a new line."""
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
                f"Not there in slot {decision.slot}, and not charged: {self.named(decision.missing)}.",
                "warning",
                decision.slot,
            )
        if decision.replan is not None:
            self._journal.note_replan(decision.replan)

    def _attempts(self, slot: int, who: Mask, outcome: Outcome, **more: Any) -> list[Attempt]:
        return [Attempt(slot=slot, client=self._names[c], outcome=outcome, **more) for c in np.flatnonzero(who)]


def _lines(decision: Decision) -> list[Charge]:
    """Return what a decision books; each line says whether the plan in force expected it."""
    expected = decision.expected_kg
    return [replace(line, planned=(line.client, line.cause) in expected) for line in decision.charges]
