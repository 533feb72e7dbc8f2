"""Carries a plan out, slot by slot: nothing trained twice, nothing charged twice, nothing lost that was kept."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import torch

from slackwater.learning.checkpoint import Checkpoint
from slackwater.learning.local import stream
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run
from slackwater.live.books import Books
from slackwater.live.clock import Clock
from slackwater.live.folder import LiveResult, RunStopped
from slackwater.live.guide import Decision, Guide
from slackwater.live.metering import Meter
from slackwater.live.model import GlobalModel, Sent
from slackwater.live.roster import Mask, Roster
from slackwater.live.settings import LiveSettings
from slackwater.live.transport import Arrays, Reply, Transport, Work
from slackwater.planning.plan import Plan
from slackwater.units import iso

Evaluate = Callable[[Arrays], Mapping[str, float]]
"""Judges a model: `accuracy`, `loss` and `samples` are kept. It may take its time: the round is kept before."""

_MARGIN, _MOST_MARGIN_S = 0.05, 60.0
_COMING = 8
"""Slots to come that `status` can show."""
_TOGETHER_S = 0.2
"""Answers that come within it share a commit, which takes milliseconds; until then they count at their upper bound."""
_TOO_LATE = "too little of it was left when the clients had been asked."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Of one slot, by the wall clock."""

    sent_at: datetime
    clients_stop_at: datetime
    until: datetime
    """No answer is taken after it."""


class Runner:
    """One run, from its beginning or from its checkpoint, to the end of the plan."""

    def __init__(
        self,
        run: Run,
        plan: Plan,
        settings: LiveSettings,
        *,
        transport: Transport,
        initial: Arrays,
        guide: Guide,
        clock: Clock,
        evaluate: Evaluate | None,
        stop: threading.Event,
    ) -> None:
        self.run_file, self.plan, self.settings = run, plan, settings
        self.transport, self.guide, self.clock, self.evaluate, self.stop = transport, guide, clock, evaluate, stop
        fleet = plan.problem.fleet
        self.names = [str(name) for name in fleet.names]
        self.row = {name: client for client, name in enumerate(self.names)}
        self.nobody: Mask = np.zeros(len(fleet), dtype=bool)
        self.meter = Meter(plan.problem, clock.slot_seconds)
        self.roster = Roster(fleet, gone_after=settings.gone_after, max_rejections=settings.max_rejections)
        self.books = Books(run, self.names, self.meter, self.roster)
        self.model = GlobalModel(initial, len(fleet), settings)
        self.checkpoint = Checkpoint(run)
        self.history = list(run.rounds())
        self.metrics: dict[str, float] = {}
        self._restore()

    def carry_out(self) -> None:
        """All slots that are left. A stop between any two lines is made good by `_restore` when the run is taken up."""
        ledger = self.run_file.ledger
        while not self.guide.finished:
            # 1. Wait for the slot; one that has gone by is passed over.
            slot = self.guide.slot
            if not self.clock.wait(self.clock.starts_at(slot), self.stop):
                raise self._stopped()
            self._tell_if_stepped(slot)
            # 2. What was booked at its upper bound is settled, as far as actuals are known by now.
            self.guide.settle(ledger)
            if self._has_gone_by(slot):
                self._pass_over()
                continue

            # 3. See who is there, and decide who trains.
            present, messages = self.roster.look(self.transport.online(), slot)
            decision = self._decide(present)

            # 4. Book everything at its upper bound before anything of it is used; or do not start.
            began, times = time.perf_counter(), self._times(slot)
            if decision.trains.any() and times.clients_stop_at <= times.sent_at:
                started = self.books.refuse(decision, self.guide, messages, _TOO_LATE)
            else:
                started = self.books.start(decision, self.guide, messages, times.sent_at)

            # 5. Send the work and take the answers as they come; what each has drawn is booked then.
            replies = self._train(decision, times) if started.any() else {}

            # 6. Keep out what would spoil the model.
            updates, reasons = self.model.screen(replies)

            # 7. One step of the model, with weights that make up for what was lost.
            done = self._step(decision, updates, replies, began) if updates else None

            # 8. Kept: round, checkpoint and state together, or none of them.
            self._keep(decision, started, done, reasons)
            if done is not None and self._is_due(done):
                self._evaluate(done)

    def result(self) -> LiveResult:
        """Settle what can be, evaluate what came out, and end."""
        ledger, folder = self.run_file.ledger, self.run_file.folder
        assert folder is not None
        self.guide.settle(ledger)
        if not self.metrics:
            self._evaluate(self.history[-1] if self.history else None)
        before = self.run_file.journal.get("before", self.plan.before)
        unlucky = self.books.unlucky()
        shortfall = {
            name: float(share)
            for name, share in zip(self.names, self.model.weights.shortfall(before), strict=True)
            if share > 0 and name in unlucky
        }
        with self.run_file.transaction():
            if self.run_file.status != "done":
                for name, share in shortfall.items():
                    self.books.say(f"{name} ends with {1 - share:.0%} of its weight: slots of it were lost.", "warning")
                self.books.say(f"The run is over: {len(self.history)} rounds, {ledger.spent_kg():.6g} kg charged.")
            self.run_file.set_status("done")
        return LiveResult(
            arrays=self.model.arrays(),
            metrics=self.metrics,
            emissions_kg=ledger.spent_kg(),
            unsettled_kg=ledger.unsettled_kg(),
            budget_kg=self.plan.problem.budget_kg,
            history=tuple(self.history),
            shortfall=shortfall,
            seconds=math.fsum(done.seconds for done in self.history),
            folder=folder,
        )

    def _decide(self, present: Mask) -> Decision:
        decision = self.guide.decide(present, self.roster.away, self.run_file.ledger)
        if not decision.in_window:
            self.model.weights.expect(decision.left)
        return decision

    # -- steps 1 and 4: time

    def _tell_if_stepped(self, slot: int) -> None:
        if stepped := self.clock.stepped_seconds():
            how = f"{'on' if stepped > 0 else 'back'} by {abs(stepped):.0f} s"
            self.books.say(f"The clock was set {how}, or the machine slept. No slot is done twice.", "warning", slot)

    def _has_gone_by(self, slot: int) -> bool:
        current = self.clock.current()
        if current is None or current < slot:
            return False
        late_s = (self.clock.now() - self.clock.starts_at(slot)).total_seconds()
        return current > slot or late_s > self.settings.latest_start * self.clock.slot_seconds

    def _pass_over(self) -> None:
        decision = self._decide(self.nobody)
        with self.run_file.transaction():
            self.books.pass_over(decision)
            self._realise(decision, self.nobody, self.nobody)

    def _times(self, slot: int) -> _Times:
        """The end of the slot, or of a round that is shorter, with a margin for the client and one for the way."""
        now, end, length = self.clock.now(), self.clock.ends_at(slot), self.meter.allowed_seconds
        if length:
            end = min(end, now + timedelta(seconds=length))
        asked = self.settings.margin_seconds
        margin = timedelta(seconds=min(_MARGIN * length, _MOST_MARGIN_S) if asked is None else asked)
        return _Times(sent_at=now, clients_stop_at=end - 2 * margin, until=end - margin)

    # -- step 5: the clients

    def _train(self, decision: Decision, times: _Times) -> dict[int, Reply]:
        """Replies by client; who does not answer is late."""
        arrays, slot = self.model.arrays(), decision.slot
        work = {
            self.names[client]: Work(
                slot=slot,
                number=len(self.history),
                attempt=0,
                seed=stream(self.settings.seed, int(client), slot),
                ends_at=times.clients_stop_at,
                arrays=arrays,
                config=self.settings.config,
            )
            for client in np.flatnonzero(decision.trains)
        }
        lines, replies = self.books.training_lines(slot), dict[int, Reply]()
        unbooked: list[tuple[Reply, datetime]] = []
        booked_s = -math.inf
        for reply in self.transport.train(work, times.until):
            if reply.client not in work or self.row[reply.client] in replies:
                self.books.say(f"An answer of {reply.client!r} was not asked for: it is left out.", "warning", slot)
                continue
            replies[self.row[reply.client]] = reply
            unbooked.append((reply, self.clock.now()))
            if time.monotonic() - booked_s > _TOGETHER_S:
                self.books.take(unbooked, lines, times.sent_at)
                unbooked, booked_s = [], time.monotonic()
        for name in work:
            if self.row[name] not in replies:
                late = replies[self.row[name]] = Reply(client=name, outcome="late", error="no answer came")
                unbooked.append((late, self.clock.now()))
        self.books.take(unbooked, lines, times.sent_at)
        return replies

    # -- steps 7 and 8: the model

    def _step(
        self, decision: Decision, updates: Mapping[int, Sent], replies: Mapping[int, Reply], began: float
    ) -> RoundRecord:
        number = len(self.history)
        stepped = self.model.step(decision, number, updates)
        losses = {self.names[c]: loss for c in updates if (loss := replies[c].loss) is not None and math.isfinite(loss)}
        return RoundRecord(
            slot=decision.slot,
            number=number,
            slot_start=self.plan.problem.slot_start(decision.slot),
            in_window=decision.in_window,
            participants=tuple(self.names[client] for client in updates),
            weights={self.names[client]: weight for client, weight in stepped.weights.items()},
            losses=losses,
            loss=math.fsum(losses.values()) / len(losses) if losses else math.nan,
            update_norm=stepped.update_norm,
            spent_kg=self.run_file.ledger.spent_kg(),
            seconds=time.perf_counter() - began,
        )

    def _keep(self, decision: Decision, started: Mask, done: RoundRecord | None, reasons: Mapping[int, str]) -> None:
        used = self.nobody.copy()
        used[[self.row[name] for name in done.participants] if done else []] = True
        with self.run_file.transaction():
            self.books.reject(decision.slot, reasons)
            for message in self._count(decision.slot, started, used, reasons):
                self.books.say(message, "error", decision.slot)
            if done is not None:
                self.run_file.record(done)
                self.checkpoint.save(done.slot, self.model.tensors())
            elif started.any():
                self.books.say(f"No update of slot {decision.slot} could be used.", "warning", decision.slot)
            self._realise(decision, started, used)
        if done is not None:
            self.history.append(done)
            self.metrics = {}

    def _count(self, slot: int, started: Mask, used: Mask, reasons: Mapping[int, str]) -> list[str]:
        """Who was rejected, and from whom nothing came."""
        answered = used.copy()
        answered[list(reasons)] = True
        messages = [self.roster.reject(client) for client in sorted(reasons)]
        return [*filter(None, messages), *self.roster.note(slot, started, answered)]

    def _realise(self, decision: Decision, started: Mask, used: Mask) -> None:
        """Tell the guide what came of the slot, and keep what the run remembers."""
        missed = decision.missing | (decision.trains & ~started)
        self.guide.realise(drew=started, used=used, missed=missed, ledger=self.run_file.ledger)
        self._put(before=decision.before)

    def _put(self, **more: Any) -> None:
        self.run_file.journal.put(
            guide=self.guide.state(),
            model=self.model.state(),
            roster=self.roster.to_dict(),
            coming=self._coming(),
            open=None,
            **more,
        )

    def _coming(self) -> list[dict[str, Any]]:
        """The next rounds, for `status`."""
        coming = self.guide.coming()
        if (
            not self.guide.slot and not coming.any()
        ):  # it plans when the first slot begins; until then the plan it began with
            coming = self.plan.matrix
        return [
            {
                "slot": int(slot),
                "at": self.clock.starts_at(int(slot)).isoformat(timespec="seconds"),
                "clients": [self.names[c] for c in np.flatnonzero(coming[:, slot])],
            }
            for slot in np.flatnonzero(coming.any(axis=0))[:_COMING]
        ]

    def _restore(self) -> None:
        """Take up the checkpoint, or make the first one; a slot that was under way is closed."""
        journal, groups = self.run_file.journal, self.checkpoint.load(torch.device("cpu"))
        if not groups:
            with self.run_file.transaction():
                self.checkpoint.save(0, self.model.tensors())
                self._put()
            return
        self.model.restore(groups, journal.get("model"))
        self.guide.restore(journal.get("guide"))
        self.roster.restore(journal.get("roster"))
        if (slot := journal.get("open")) is None:
            return
        with self.run_file.transaction():
            drew = self.books.close(slot)
            self.guide.realise(drew=drew, used=self.nobody, missed=drew, ledger=self.run_file.ledger)
            self._put()

    # -- around

    def _is_due(self, done: RoundRecord) -> bool:
        every = self.settings.eval_every
        return every > 0 and (done.number + 1) % every == 0

    def _evaluate(self, done: RoundRecord | None) -> None:
        """The user's own judgement of the model; its failure is told, and does not end a run of days."""
        if self.evaluate is None:
            return
        slot = None if done is None else done.slot
        try:
            metrics = {name: float(value) for name, value in self.evaluate(self.model.arrays()).items()}
        except Exception as error:
            self.books.say(f"The evaluation failed: {type(error).__name__}: {error}", "error", slot)
            return
        self.metrics = metrics
        if done is None:
            return
        accuracy, loss, samples = metrics.get("accuracy"), metrics.get("loss"), int(metrics.get("samples", 0))
        with self.run_file.transaction():
            self.run_file.set_score(done.slot, accuracy, loss)
            self.run_file.record_evaluation(
                EvaluationRecord(
                    slot=done.slot, model="last", client="", data="test", accuracy=accuracy, loss=loss, samples=samples
                )
            )
        self.history[-1] = replace(done, accuracy=accuracy, test_loss=loss)

    def _stopped(self) -> RunStopped:
        slot = self.guide.slot
        return RunStopped(
            f"Stopped before slot {slot} ({iso(self.plan.problem.slot_start(slot))}) with {len(self.history)} rounds done "
            f"and {self.run_file.ledger.spent_kg():.6g} kg charged. Go on with: slackwater resume {self.run_file.folder}"
        )
