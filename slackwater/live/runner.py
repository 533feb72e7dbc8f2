"""Carry out a plan slot by slot; no slot is trained or charged twice."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from slackwater.errors import SlackwaterError
from slackwater.intensity.feed import ProviderFeed
from slackwater.intensity.forecast.forecasters import forecaster
from slackwater.intensity.providers.provider_errors import UnavailableError
from slackwater.ledger.ledger import Ledger
from slackwater.ledger.queries import ToCome
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run
from slackwater.ledger.schema import damage
from slackwater.ledger.score import measured_by, score_in
from slackwater.live.charging import BYTES_PER_MB, Charging, Meter, model_bytes
from slackwater.live.clock import Clock, Unhurried, WallClock
from slackwater.live.folder import (
    MODEL,
    PLAN,
    LiveResult,
    LiveSettings,
    NoRoundsError,
    RunStopped,
    load_actuals,
    load_archive,
    load_settings,
)
from slackwater.live.schedule_sources import (
    Decision,
    FixedPlan,
    IntensityFeed,
    Playback,
    Providers,
    Replanned,
    ScheduleSource,
)
from slackwater.live.sites import Arrays, Attendance, Chooser, Mask, Reply, Transport, Work
from slackwater.live.trust import run_id
from slackwater.live.updates import LiveModel, ModelDiverged
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.storage import plan_from_dict
from slackwater.replanning.backtest import BLEND, backtest_forecaster, without_intensity
from slackwater.training.global_model import Checkpoint, Update
from slackwater.training.process import save_arrays, stopping, stream, threads
from slackwater.units import iso

Evaluate = Callable[[Arrays], Mapping[str, float]]
"""Evaluates a model: one metric, such as `accuracy`, and `loss` and `samples` are stored. It may be slow: the round is saved
before. An attribute `metric` of the function gives the direction and unit of its own metric."""

OnRound = Callable[[RoundRecord, Arrays], Mapping[str, float] | None]
"""Called after every round that is saved, with its model; the numbers that it returns are stored with the round."""
ModelMaker = Callable[[Arrays, int, LiveSettings], Any]
"""Makes the global model from the first arrays, the number of clients and the settings; see `LiveModel`."""

_MARGIN, _MOST_MARGIN_S = 0.05, 60.0
_ASK_AGAIN = timedelta(minutes=5)  # retry interval while no intensity is known because all providers are down
_COMING = 8  # coming slots that `status` can show
_TOGETHER_S = 0.2
"""Replies within this time share a commit, which takes milliseconds; until then they count at their upper bound."""
_STATE_GONE = "the state after it was damaged, and the run continues from an earlier one"
_SAME_SIZE = 0.03  # share by which the real model may differ from `model_mb` without a warning
_NAMED_FAILURES = 3  # clients whose failure the error of a run without a round names
_TOO_LATE = "too little time was left after asking the clients."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Times of one slot, by the wall clock."""

    sent_at: datetime
    clients_stop_at: datetime
    until: datetime  # later replies are ignored


class Runner:
    """One run, from its start or its checkpoint to the end of the plan."""

    def __init__(
        self, run: Run, plan: Plan, settings: LiveSettings, *, problem: Problem, transport: Transport,
        initial: Arrays, schedule: ScheduleSource, clock: Clock, evaluate: Evaluate | None, stop: threading.Event,
        make_model: ModelMaker = LiveModel, on_round: OnRound | None = None,
    ) -> None:  # fmt: skip
        """Start or resume a run; `problem` is the plan's with the size of the real model, which the run is charged for."""
        self.run_file, self.plan, self.settings, self.problem = run, plan, settings, problem
        self.transport, self.schedule, self.clock, self.evaluate, self.stop = transport, schedule, clock, evaluate, stop
        self.on_round = on_round
        fleet = plan.problem.fleet
        self.names = [str(name) for name in fleet.names]
        self.row = {name: client for client, name in enumerate(self.names)}
        self.nobody: Mask = np.zeros(len(fleet), dtype=bool)
        self.meter = Meter(problem, clock.slot_seconds)
        self.attendance = Attendance(fleet, gone_after=settings.gone_after, max_rejections=settings.max_rejections)
        self.charging = Charging(run, self.names, self.meter, self.attendance)
        self.model = make_model(initial, len(fleet), settings)
        self.samples: dict[str, int] = {}  # client -> samples in its last update
        self.unasked: Mask = self.nobody  # [client], due in this slot but left out by the strategy
        self.checkpoint = Checkpoint(run)
        self.history = list(run.rounds())
        self.metrics: dict[str, float] = {}
        self._waits = False
        self._restore()

    def carry_out(self) -> None:
        """Carry out all remaining slots; `_restore` repairs a stop between any two lines."""
        ledger = self.run_file.ledger
        while not self.schedule.finished:
            # 1. Wait for the slot; skip a missed one.
            slot = self.schedule.slot
            if not self.clock.wait(self.clock.starts_at(slot), self.stop):
                raise self._stopped()
            if stepped := self.clock.stepped_seconds():
                how = f"{'on' if stepped > 0 else 'back'} by {abs(stepped):.0f} s"
                self.charging.say(
                    f"The clock was set {how}, or the machine slept. No slot is trained twice.", "warning", slot
                )
            # 2. Settle the charges whose actuals are known by now.
            if not self._settle(ledger, slot):
                continue
            if self._has_gone_by(slot):
                decision = self._decide(self.nobody)
                self.unasked = self.nobody
                with self.run_file.transaction():
                    self.charging.pass_over(decision)
                    self._realise(decision, self.nobody, self.nobody)
                continue

            # 3. Find out which clients are online, and decide which train.
            present, messages = self.attendance.look(self.transport.online(), slot)
            decision = self._asked(self._decide(present))

            # 4. Charge the slot at its upper bound before any of its energy is used, or do not start.
            began, times = time.perf_counter(), self._times(slot)
            if decision.trains.any() and times.clients_stop_at <= times.sent_at:
                started = self.charging.refuse(decision, self.schedule, messages, _TOO_LATE)
            else:
                started = self.charging.start(decision, self.schedule, messages, times.sent_at)

            # 5. Send the work, and charge the energy in each reply as it arrives.
            replies = self._train(decision, times) if started.any() else {}

            # 6. Reject updates that would spoil the model.
            updates, reasons = self.model.screen(replies)

            # 7. Move the model, with weights that make up for lost slots.
            done = self._step(decision, updates, replies, began) if updates else None

            # 8. Save round, checkpoint and state in one transaction.
            self._keep(decision, started, done, reasons, replies)
            every = self.settings.eval_every
            if done is not None and every > 0 and (done.number + 1) % every == 0:
                self._evaluate(done)
            if done is not None:
                self._tell_round(self.history[-1])

    def result(self) -> LiveResult:
        """Settle what is known, evaluate the final model, and end."""
        ledger, folder = self.run_file.ledger, self.run_file.folder
        assert folder is not None
        with contextlib.suppress(UnavailableError):  # `slackwater resume` settles the rest
            self.schedule.settle(ledger)
        if not self.history:
            raise self._no_rounds()
        if not self.metrics:
            self._evaluate(self.history[-1])
        before = self.run_file.journal.get("before", self.plan.before)
        unlucky = self.charging.unlucky()
        shortfall = {
            name: float(share)
            for name, share in zip(self.names, self.model.weights.shortfall(before), strict=True)
            if share > 0 and name in unlucky
        }
        arrays = self.model.arrays()
        _save(folder, arrays)  # before the status: whoever waits for the end finds the model, and resume can try again
        with self.run_file.transaction():
            if self.run_file.status != "done":
                for name, share in shortfall.items():
                    self.charging.say(
                        f"{name} has only {1 - share:.0%} of its planned weight, because it lost slots.", "warning"
                    )
                self.charging.say(f"The run is done: {len(self.history)} rounds, {ledger.spent_kg():.6g} kg charged.")
            self.run_file.set_status("done")
        return LiveResult(
            arrays=arrays, metrics=self.metrics, emissions_kg=ledger.spent_kg(),
            unsettled_kg=ledger.unsettled_kg(), budget_kg=self.plan.problem.budget_kg, history=tuple(self.history),
            shortfall=shortfall, seconds=math.fsum(done.seconds for done in self.history), folder=folder,
        )  # fmt: skip

    def _no_rounds(self) -> NoRoundsError:
        """Return the error of a run that ended without a round, with the clients' last failures."""
        last = {one.client: f"{one.client}: {one.error or one.outcome}" for one in self.run_file.journal.attempts()}
        why = " ".join(text if text.endswith(".") else f"{text}." for text in list(last.values())[:_NAMED_FAILURES])
        self.run_file.journal.put(ended=True)
        return NoRoundsError(
            f"The plan in {self.run_file.folder} is over without a single round, so there is no model. "
            f"{why or 'No client was ever due.'} Correct this, and start again in another folder."
        )

    def _settle(self, ledger: Ledger, slot: int) -> bool:
        """Return whether any intensity is known to decide a slot; if not, wait a little and ask again.

        Nothing is known only right after a start or resume, while all providers are down and the cache is empty.
        """
        try:
            self.schedule.settle(ledger)
        except UnavailableError as error:
            if not self._waits:
                self.charging.say(
                    f"No round starts until the intensity is known; retrying every 5 minutes. {error}", "warning", slot
                )
            self._waits = True
            if not self.clock.wait(self.clock.now() + _ASK_AGAIN, self.stop):
                raise self._stopped() from None
            return False
        self._waits = False
        return True

    def _decide(self, present: Mask) -> Decision:
        decision = self.schedule.decide(present, self.attendance.away, self.run_file.ledger)
        if not decision.in_window:
            self.model.weights.expect(decision.left)
        return decision

    def _asked(self, decision: Decision) -> Decision:
        """Leave out clients to which a strategy sends nothing: their charges are dropped before the round starts."""
        self.unasked = self.nobody
        if not decision.trains.any() or not isinstance(self.transport, Chooser):
            return decision
        due = [self.names[client] for client in np.flatnonzero(decision.trains)]
        asked = set(self.transport.choose(due, len(self.history), self.model.arrays()))
        out = [name for name in due if name not in asked]
        if not out:
            return decision
        self.unasked = np.isin(self.names, out)
        self.charging.say(
            f"The strategy sends no work in slot {decision.slot} to: {', '.join(out)}.", slot=decision.slot
        )
        return replace(
            decision,
            trains=decision.trains & ~self.unasked,
            charges=tuple(
                line
                for line in decision.charges
                if line.cause == "idle" or (line.client not in out and (line.cause != "server" or asked))
            ),
        )

    # -- steps 1 and 4: time

    def _has_gone_by(self, slot: int) -> bool:
        current = self.clock.current()
        if current is None or current < slot:
            return False
        late_s = (self.clock.now() - self.clock.starts_at(slot)).total_seconds()
        return current > slot or late_s > self.settings.latest_start * self.clock.slot_seconds

    def _times(self, slot: int) -> _Times:
        """Return the end of the slot, or of a shorter round, less a margin for the client and one for the network."""
        now, end, length = self.clock.now(), self.clock.ends_at(slot), self.meter.allowed_seconds
        if length:
            end = min(end, now + timedelta(seconds=length))
        asked = self.settings.margin_seconds
        margin = timedelta(seconds=min(_MARGIN * length, _MOST_MARGIN_S) if asked is None else asked)
        return _Times(sent_at=now, clients_stop_at=end - 2 * margin, until=end - margin)

    # -- step 5: the clients

    def _train(self, decision: Decision, times: _Times) -> dict[int, Reply]:
        """Return replies by client; a client without an answer is late."""
        arrays, slot = self.model.arrays(), decision.slot
        work = {
            self.names[client]: Work(
                slot=slot,
                number=len(self.history),
                attempt=0,
                seed=stream(self.settings.seed, int(client), slot),
                ends_at=times.clients_stop_at,
                arrays=arrays,
                config=self._config(decision.work.get(int(client))),
            )
            for client in np.flatnonzero(decision.trains)
        }
        lines, replies = self.charging.round_lines(slot), dict[int, Reply]()
        unbooked: list[tuple[Reply, datetime]] = []
        booked_s = -math.inf
        for reply in self.transport.train(work, times.until):
            if reply.client not in work or self.row[reply.client] in replies:
                self.charging.say(f"An unexpected reply of {reply.client!r} is ignored.", "warning", slot)
                continue
            replies[self.row[reply.client]] = reply
            unbooked.append((reply, self.clock.now()))
            if time.monotonic() - booked_s > _TOGETHER_S:
                self.charging.take(unbooked, lines, times.sent_at)
                unbooked, booked_s = [], time.monotonic()
        for name in work:
            if self.row[name] not in replies:
                late = replies[self.row[name]] = Reply(client=name, outcome="late", error="no reply")
                unbooked.append((late, self.clock.now()))
        self.charging.take(unbooked, lines, times.sent_at)
        return replies

    def _config(self, work: float | None) -> Mapping[str, bool | int | float | str]:
        """Return the settings that a client gets; `work` is its share of the local steps below full power."""
        return self.settings.config if work is None else {**self.settings.config, "work": work}

    # -- steps 7 and 8: the model

    def _step(
        self, decision: Decision, updates: Mapping[int, Update], replies: Mapping[int, Reply], began: float
    ) -> RoundRecord | None:
        """Move the model; return the round, or None if a strategy made nothing of the updates."""
        number = len(self.history)
        self.samples |= {self.names[c]: count for c in updates if (count := replies[c].samples)}
        if self.settings.weighting == "samples":
            updates = self._by_samples(decision, updates)
        stepped = self.model.step(decision, number, updates)
        if stepped is None:
            return None
        losses = {self.names[c]: loss for c in updates if (loss := replies[c].loss) is not None and math.isfinite(loss)}
        return RoundRecord(
            slot=decision.slot, number=number, slot_start=self.plan.problem.slot_start(decision.slot),
            in_window=decision.in_window, participants=tuple(self.names[client] for client in updates),
            weights={self.names[client]: weight for client, weight in stepped.weights.items()}, losses=losses,
            loss=math.fsum(losses.values()) / len(losses) if losses else math.nan, update_norm=stepped.update_norm,
            spent_kg=self.run_file.ledger.spent_kg(), seconds=time.perf_counter() - began,
            work={self.names[client]: share for client, share in decision.work.items() if client in updates},
        )  # fmt: skip

    def _by_samples(self, decision: Decision, updates: Mapping[int, Update]) -> Mapping[int, Update]:
        """Scale each update by its client's samples, over the mean of those that share its round or run.

        In the window the mean is over the participants, which makes it FedAvg's average. Before it, the aggregators
        weight by participation over the whole run, so the mean is over all clients that have reported.
        """
        named = {client: self.names[client] for client in updates}
        known = {client: float(self.samples[name]) for client, name in named.items() if name in self.samples}
        if len(known) < len(updates):
            lacking = ", ".join(name for client, name in named.items() if client not in known)
            raise SlackwaterError(
                f"weighting is 'samples', but {lacking} did not report num-examples in slot {decision.slot}. Reply with "
                "it, or use weighting = 'equal'."
            )
        usual = known.values() if decision.in_window else [float(count) for count in self.samples.values()]
        mean = math.fsum(usual) / len(usual)
        return {c: replace(sent, update=sent.update * (known[c] / mean)) for c, sent in updates.items()}

    def _keep(
        self, decision: Decision, started: Mask, done: RoundRecord | None, reasons: Mapping[int, str],
        replies: Mapping[int, Reply],
    ) -> None:  # fmt: skip
        used = self.nobody.copy()
        used[[self.row[name] for name in done.participants] if done else []] = True
        with self.run_file.transaction():
            self.charging.reject(decision.slot, reasons)
            for client, note in self.model.notes.items():
                self.charging.say(f"{self.names[client]} {note}.", slot=decision.slot)
            for message in self._count(decision.slot, started, used, reasons):
                self.charging.say(message, "error", decision.slot)
            if done is not None:
                self.run_file.record(done)
                self.checkpoint.save(done.slot, self.model.shared.tensors(), self.model.state())
                sent = {self.names[client]: reply.metrics for client, reply in replies.items()}
                self.run_file.journal.note_metrics(done.slot, {**sent, "": getattr(self.model, "metrics", {})})
            elif started.any():
                self.charging.say(f"No update of slot {decision.slot} is usable.", "warning", decision.slot)
            self._realise(decision, started, used)
        if done is not None:
            self.history.append(done)
            self.metrics = {}

    def _count(self, slot: int, started: Mask, used: Mask, reasons: Mapping[int, str]) -> list[str]:
        """Count rejected updates and missing replies; return messages."""
        answered = used.copy()
        answered[list(reasons)] = True
        messages = [self.attendance.reject(client) for client in sorted(reasons)]
        return [*filter(None, messages), *self.attendance.note(slot, started, answered)]

    def _realise(self, decision: Decision, started: Mask, used: Mask) -> None:
        """Pass the outcome of the slot to the schedule source, and save the state."""
        missed = decision.missing | (decision.trains & ~started) | self.unasked
        self.schedule.realise(drew=started, used=used, missed=missed, ledger=self.run_file.ledger)
        self._put(before=decision.before)

    def _put(self, **more: Any) -> None:
        if (rest_kg := self.schedule.to_come_kg()) is not None:  # after a restart, the earlier value stays
            slot = self.schedule.slot
            schedule = self.schedule.coming()[:, slot : slot + len(rest_kg)]
            more["to_come"] = ToCome(slot=slot, kg=rest_kg, schedule=schedule).to_dict()
        self.run_file.journal.put(
            guide=self.schedule.state(), model=self.model.state(), roster=self.attendance.to_dict(),
            coming=self._coming(), open=None, samples=self.samples, **more,
        )  # fmt: skip

    def _coming(self) -> list[dict[str, Any]]:
        """Return the next rounds, for `status`."""
        coming = self.schedule.coming()
        if not self.schedule.slot and not coming.any():  # before the first slot: the initial plan
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
        """Continue from the checkpoint, or create the first one, and close an unfinished slot.

        Also close a round that `Run.fall_back` undid: its clients have trained, and are not asked again.
        """
        journal, groups = self.run_file.journal, self.checkpoint.load()
        if not groups:
            with self.run_file.transaction():
                planned = self.plan.matrix[:, : self.plan.before].sum(axis=0).max(initial=0)
                most = int(planned) if self.settings.source == "plan" else len(self.names)
                self.model.shared.size(most).tell(self.run_file)
                self.checkpoint.save(None, self.model.shared.tensors(), self.model.state())
                self._put()
                self._tell_model_size()
            return
        with damage(self.run_file.path):
            self.model.restore(groups, journal.get("model"))
            self.schedule.restore(journal.get("guide"))
            self.attendance.restore(journal.get("roster"))
            self.samples = {str(name): int(count) for name, count in journal.get("samples", {}).items()}
            lost, slot = journal.get("lost", []), journal.get("open")
            self._check_names()
        if slot is None and not lost:
            return
        with self.run_file.transaction():
            for undone in lost:
                self.charging.close(undone, _STATE_GONE)
                self.schedule.lose(undone)
            if slot is not None:
                drew = self.charging.close(slot)
                self.schedule.realise(drew=drew, used=self.nobody, missed=drew, ledger=self.run_file.ledger)
            self._put(lost=[])

    def _check_names(self) -> None:
        """Raise if the file names clients that the plan does not have."""
        found = {one.client for one in self.run_file.journal.attempts()}
        found |= {line.client for line in self.run_file.ledger.charges()} - {""}
        if strange := found - set(self.names):
            raise ValueError(f"it has a client {min(strange)!r}, which is not in the plan")

    def _tell_model_size(self) -> None:
        """Warn if the real model does not have the planned size."""
        planned_mb, real_mb = self.plan.problem.model_mb, self.problem.model_mb
        if planned_mb is None or real_mb is None or abs(real_mb - planned_mb) <= _SAME_SIZE * planned_mb:
            return
        self.charging.say(
            f"The model has {real_mb:.6g} MB, but model_mb is {planned_mb:g}. The network is charged for the real size. To "
            f"plan with it, set model_mb = {real_mb:.6g}.",
            "warning",
        )

    # -- around

    def _evaluate(self, done: RoundRecord | None) -> None:
        """Call the user's evaluation; a failure is reported and does not end the run."""
        if self.evaluate is None:
            return
        slot = None if done is None else done.slot
        try:
            metrics = {name: float(value) for name, value in self.evaluate(self.model.arrays()).items()}
        except Exception as error:
            self.charging.say(f"The evaluation failed: {type(error).__name__}: {error}", "error", slot)
            return
        self.metrics = metrics
        if done is None:
            return
        label = getattr(self.evaluate, "metric", None) or measured_by(metrics)
        own = {n: v for n, v in metrics.items() if n not in (label.name, "loss", "samples") and math.isfinite(v)}
        accuracy, loss, samples = score_in(metrics, label), metrics.get("loss"), int(metrics.get("samples", 0))
        with self.run_file.transaction():
            if label != self.run_file.metric:
                self.run_file.journal.put(metric=label.to_dict())
            self.run_file.set_score(done.slot, accuracy, loss)
            self.run_file.journal.note_metrics(done.slot, {"": own})
            self.run_file.record_evaluation(
                EvaluationRecord(
                    slot=done.slot, model="last", client="", data="test", accuracy=accuracy, loss=loss, samples=samples
                )
            )
        self.history[-1] = replace(done, accuracy=accuracy, test_loss=loss)

    def _tell_round(self, done: RoundRecord) -> None:
        """Call the user's function for a round; a failure is reported and does not end the run."""
        if self.on_round is None:
            return
        try:
            found = dict(self.on_round(done, self.model.arrays()) or {})
            numbers = {str(name): float(value) for name, value in found.items() if math.isfinite(value)}
        except SlackwaterError:
            raise
        except Exception as error:
            self.charging.say(f"on_round failed: {type(error).__name__}: {error}", "error", done.slot)
            return
        with self.run_file.transaction():
            self.run_file.journal.note_metrics(done.slot, {"": numbers})

    def _stopped(self) -> RunStopped:
        slot = self.schedule.slot
        return RunStopped(
            f"Stopped before slot {slot} ({iso(self.plan.problem.slot_start(slot))}) with {len(self.history)} rounds done "
            f"and {self.run_file.ledger.spent_kg():.6g} kg charged. Resume with: slackwater resume {self.run_file.folder}"
        )


log = logging.getLogger(__name__)

_PLAYED = "persistence"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def carry_out(
    folder: str | Path,
    transport: Transport,
    initial: Arrays,
    *,
    evaluate: Evaluate | None = None,
    clock: Clock | None = None,
    stop: threading.Event | None = None,
    on_round: OnRound | None = None,
    make_model: ModelMaker = LiveModel,
) -> LiveResult:
    """Start or resume the run that `prepare` put into `folder`, and return when it is done.

    `initial` is the model to start with; a checkpoint replaces it. `make_model` makes the global model, by default ours
    with its aggregators. Raises `NoRoundsError` if not one round was held. Setting `stop` ends the run after the current round
    with `RunStopped`; so do SIGINT and SIGTERM in the main thread. After any other `SlackwaterError` (full disk,
    unreachable provider, ..) the same call resumes the run.
    """
    where, stop = Path(folder), stop or threading.Event()
    with (
        _opened(where) as run,
        damage(run.path, of=(sqlite3.Error,)),
        stopping(stop, after="the round", signals=_SIGNALS),
        threads(1),
    ):
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        settings = LiveSettings.from_dict(run.settings)
        problem = plan.problem
        if problem.model_mb is not None:  # the network is charged for the real model
            problem = problem.with_settings(model_mb=model_bytes(initial) / BYTES_PER_MB)
        try:
            if run.status != "done":
                run.set_status("running")
            runner = Runner(
                run, plan, settings, transport=transport, initial=initial, problem=problem,
                schedule=_schedule(where, plan, settings, problem), clock=clock or _clock(run, plan, settings),
                evaluate=evaluate, stop=stop, make_model=make_model, on_round=on_round,
            )  # fmt: skip
            runner.carry_out()
            result = runner.result()
        except RunStopped:
            run.set_status("stopped")
            raise
        except SlackwaterError as error:
            with contextlib.suppress(SlackwaterError):  # it may be the disk that is full
                run.log(str(error), level="error")
                if run.status == "running":
                    run.set_status("diverged" if isinstance(error, ModelDiverged) else "failed")
            raise
    return result


def _save(folder: Path, arrays: Arrays) -> None:
    try:
        save_arrays(folder / MODEL, arrays)
    except OSError as error:
        raise SlackwaterError(
            f"{folder / MODEL} cannot be written: {error.strerror}. The model is in the run's file. Free disk space, then: "
            f"slackwater resume {folder}"
        ) from None


def settle(folder: str | Path) -> float:
    """Settle a finished run with the actuals known since; return the kg that are still at an upper bound.

    It needs no transport. An unfinished run settles as it continues.
    """
    where = Path(folder)
    with Run.open(where) as run, damage(run.path, of=(sqlite3.Error,)):
        plan = plan_from_dict(run.plan, f"The plan of the run in {where}")
        schedule = _schedule(where, plan, LiveSettings.from_dict(run.settings), plan.problem)
        with damage(run.path):
            schedule.restore(run.journal.get("guide"))
        if run.status == "done":
            with run.transaction():
                schedule.settle(run.ledger)
        return run.ledger.unsettled_kg()


def _opened(folder: Path) -> Run:
    """Open the run in the folder, or create one from the prepared files."""
    if Run.begun(folder):
        return Run.open(folder)
    plan, settings = Plan.load(folder / PLAN), load_settings(folder)
    task = settings.engine.get("task")
    return Run.create(
        folder, plan=plan.to_dict(), budget_kg=plan.problem.budget_kg, settings=settings.to_dict(),
        task={"name": str(task["name"] if task else settings.engine.get("app") or "live"), "live": True},
        kind=settings.kind, run_id=run_id(folder, settings.engine),
    )  # fmt: skip


def _schedule(folder: Path, plan: Plan, settings: LiveSettings, problem: Problem) -> ScheduleSource:
    if settings.source == "plan":
        return FixedPlan(plan, problem)
    asked = without_intensity(problem)
    intensity: IntensityFeed
    if settings.source == "playback":
        actuals = load_actuals(folder)
        archive, lag = load_archive(folder), settings.lag_slots
        played = backtest_forecaster(settings.forecast or _PLAYED, actuals, archive, lag=lag)
        intensity = Playback(asked, actuals, played, lag=settings.lag_slots)
    else:
        named = None if settings.forecast in (None, BLEND) else forecaster(settings.forecast)
        zones = sorted({*map(str, asked.fleet.zone), *([] if asked.server is None else [asked.server.zone])})
        feed = ProviderFeed.of(
            settings.data, zones, slot_minutes=asked.traces.slot_minutes,
            folder=Path(settings.data.get("folder", folder)), forecaster=named,
        )  # fmt: skip
        intensity = Providers(asked, feed)
    chosen = plan.end if plan.problem.planner == "auto" else None
    return Replanned(problem, intensity, replace(settings.replanning, end=chosen), first=plan.matrix)


def _clock(run: Run, plan: Plan, settings: LiveSettings) -> Clock:
    """Return the clock; a compressed one starts with the run, and keeps this start after a restart."""
    seconds = settings.slot_seconds
    if seconds is None:
        return WallClock.real(plan.problem)
    if seconds == 0:
        return Unhurried(plan.problem.slot_hours * 3600.0)
    clock = WallClock(WallClock.real(plan.problem).now(), seconds)
    begun = run.journal.get("begun_at")
    if begun is None:
        run.journal.put(begun_at=clock.begins_at.isoformat())
        return clock
    return WallClock(datetime.fromisoformat(begun), seconds)
