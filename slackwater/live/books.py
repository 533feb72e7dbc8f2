"""What a live run writes down, each step in one transaction: at the start of a round, at every answer, at its end."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from slackwater.ledger.journal import Attempt, Outcome
from slackwater.ledger.ledger import Charge, OverBudgetError
from slackwater.ledger.run import Level, Run
from slackwater.live.guide import Decision, Guide
from slackwater.live.metering import Meter
from slackwater.live.roster import Mask, Roster
from slackwater.live.transport import Reply

log = logging.getLogger(__name__)

_SERVER_GONE = "the server stopped before the round was kept"
_ERROR = 500
"""Characters of a client's error that are kept."""
_SHOWN = 200
"""Of those that an event shows."""
_ROUNDING = 1e-9


class Books:
    """The run's ledger and journal, by clients' names."""

    def __init__(self, run: Run, names: Sequence[str], meter: Meter, roster: Roster) -> None:
        self._run, self._ledger, self._journal = run, run.ledger, run.journal
        self._names, self._meter, self._roster = list(names), meter, roster
        self._row = {name: client for client, name in enumerate(names)}
        self._nobody: Mask = np.zeros(len(names), dtype=bool)

    def start(self, decision: Decision, guide: Guide, messages: Sequence[str], sent_at: datetime) -> Mask:
        """Book a slot at its upper bound, with what the guide has decided; who may start [client].

        A round that the budget has no room for does not start.
        """
        trains = decision.trains
        try:
            with self._run.transaction():
                self._note_decision(decision, messages)
                self._ledger.charge(*decision.charges, protected_kg=decision.protected_kg, spent=not trains.any())
                self._journal.note(*self._attempts(decision.slot, trains, "running", sent_at=sent_at))
                self._journal.put(guide=guide.state(), open=decision.slot if trains.any() else None)
            return trains
        except OverBudgetError as error:
            return self.refuse(decision, guide, messages, str(error))

    def refuse(self, decision: Decision, guide: Guide, messages: Sequence[str], why: str) -> Mask:
        """A round that does not start; only the idle draw of its slot is charged. Nobody starts."""
        slot, idle = decision.slot, [line for line in decision.charges if line.cause == "idle"]
        with self._run.transaction():
            self._note_decision(decision, messages)
            self._ledger.charge(*idle, spent=True)
            self._journal.note(*self._attempts(slot, decision.trains, "refused", error=why))
            self._journal.put(guide=guide.state(), open=slot)
            self.say(f"The round of slot {slot} does not start: {why}", "warning", slot)
        return self._nobody

    def pass_over(self, decision: Decision) -> None:
        """A slot that has gone by; its idle draw was drawn, budget or not."""
        with self._run.transaction():
            self._ledger.charge(*decision.charges, spent=True)
            if decision.missing.any():
                who = self.named(decision.missing)
                self.say(f"Slot {decision.slot} went by without a round; planned: {who}.", "warning", decision.slot)

    def training_lines(self, slot: int) -> dict[str, Charge]:
        """Client -> its charge in a slot, as booked at the start."""
        lines = self._ledger.charges(slot=slot)
        return {line.client: line for line in lines if line.cause == "training" and line.kind == "charge"}

    def take(self, came: Sequence[tuple[Reply, datetime]], lines: Mapping[str, Charge], sent_at: datetime) -> None:
        """Book what answers, with the time at which each came, say of energy; whether updates are used is known later."""
        with self._run.transaction():
            for reply, at in came:
                self._take(reply, lines[reply.client], sent_at, at)

    def reject(self, slot: int, reasons: Mapping[int, str]) -> None:
        """Updates that are not used; their energy stays charged."""
        for one in self._journal.attempts(slot=slot):
            if why := reasons.get(self._row[one.client]):
                self._journal.note(replace(one, outcome="rejected", error=why))
                self.say(f"{one.client} rejected in slot {slot}, charged: {why}.", "warning", slot)

    def close(self, slot: int) -> Mask:
        """A slot that was booked and not kept is lost: it stays charged. Who had started [client]."""
        sent = [one for one in self._journal.attempts(slot=slot) if one.sent_at is not None]
        unused = [one for one in sent if one.outcome in ("running", "done")]
        self._journal.note(*(replace(one, outcome="lost", error=_SERVER_GONE) for one in unused))
        if sent:
            self.say(f"Slot {slot} is lost, and stays charged: {_SERVER_GONE}.", "warning", slot)
        return np.isin(self._names, [one.client for one in sent])

    def unlucky(self) -> set[str]:
        """Clients with a slot that came to nothing."""
        return {one.client for one in self._journal.attempts() if one.outcome != "done"}

    def say(self, message: str, level: Level = "info", slot: int | None = None) -> None:
        """Note an event, and log it."""
        log.log(logging.INFO if level == "info" else logging.WARNING, "%s", message)
        self._run.log(message, level=level, slot=slot)

    def named(self, who: Mask) -> str:
        """Names of clients [client], in a row."""
        return ", ".join(self._names[client] for client in np.flatnonzero(who))

    def _take(self, reply: Reply, line: Charge, sent_at: datetime, now: datetime) -> None:
        read = self._meter.read(self._row[reply.client], reply, sent_at, now)
        attempt = Attempt(
            slot=line.slot,
            client=reply.client,
            sent_at=sent_at,
            ended_at=now,
            outcome=reply.outcome,
            seconds=read.seconds,
            energy_kwh=read.energy_kwh,
            method=read.method,
            error=reply.error[:_ERROR],
        )
        assert line.energy_kwh is not None
        self._journal.note(attempt)
        if read.corrects:
            self._ledger.correct(
                line, read.energy_kwh, method=read.method, started_at=reply.started_at, ended_at=reply.ended_at
            )
        if read.energy_kwh > line.energy_kwh * (1 + _ROUNDING):
            self.say(
                f"{reply.client} drew {read.energy_kwh:.4g} kWh in slot {line.slot}, more than the "
                f"{line.energy_kwh:.4g} kWh that it was held at; all of it is charged. Is its power_w right?",
                "warning",
                line.slot,
            )
        if reply.outcome != "done":
            why = f": {attempt.error[:_SHOWN].strip()}" if attempt.error else "."
            self.say(f"{reply.client} {reply.outcome} in slot {line.slot}, charged{why}", "warning", line.slot)

    def _note_decision(self, decision: Decision, messages: Sequence[str]) -> None:
        for message in (*messages, *decision.messages):
            self.say(message, "warning", decision.slot)
        if decision.missing.any():
            absent = self._attempts(decision.slot, decision.missing, "offline")
            self._journal.note(*(replace(one, error=self._roster.why_absent(self._row[one.client])) for one in absent))
            self.say(
                f"Not there in slot {decision.slot}, and not charged: {self.named(decision.missing)}.",
                "warning",
                decision.slot,
            )
        if decision.replan is not None:
            self._journal.note_replan(decision.replan)

    def _attempts(self, slot: int, who: Mask, outcome: Outcome, **more: Any) -> list[Attempt]:
        return [Attempt(slot=slot, client=self._names[c], outcome=outcome, **more) for c in np.flatnonzero(who)]
