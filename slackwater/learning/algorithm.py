"""Algorithm 1 of the paper: training by a schedule that is known in advance or decided slot by slot."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from slackwater.learning.checkpoint import Checkpoint
from slackwater.learning.evaluate import Score, evaluate, evaluate_each
from slackwater.learning.flat import ModelMaker, average_buffers
from slackwater.learning.global_model import GlobalModel
from slackwater.learning.guide import ScheduledRound, ScheduleSource, TrainingState
from slackwater.learning.local import DEVICES, LocalUpdate, stream
from slackwater.learning.probe import Need, Probe, probe
from slackwater.learning.registry import make_aggregator
from slackwater.learning.result import Progress, Result, TrainingDiverged
from slackwater.learning.screening import NormWarnings
from slackwater.learning.server import IterateAverage, make_server
from slackwater.learning.settings import Settings
from slackwater.learning.task import Samples, Task
from slackwater.learning.workers import Job, StopRequested, Workers
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run
from slackwater.units import iso

log = logging.getLogger(__name__)
Callback = Callable[[Progress], None]
_PROBES = 3  # purpose of random numbers, beside those of `slackwater.learning.local`


class Training:
    """One run, from its beginning or from its checkpoint, to the end of its schedule."""

    def __init__(
        self, run: Run, schedule: ScheduleSource, task: Task, settings: Settings, notes: tuple[str, ...]
    ) -> None:
        self.run_file, self.schedule, self.task, self.settings, self.notes = run, schedule, task, settings, notes
        self.problem = schedule.problem
        self.stop = threading.Event()  # set it to stop after the clients that train now
        self.names = [str(name) for name in self.problem.fleet.names]
        self.device = torch.device(settings.device)
        self.data = [self._on_device(samples) for samples in task.clients]
        self.regions = [[self._on_device(samples) for samples in region] for region in task.devices]

        maker = ModelMaker(task, seed=settings.seed, device=self.device)
        self.workers = Workers(task, maker, settings.work, threads=settings.threads, device=self.device)
        torch.set_num_threads(1)  # as after every round, or a norm could differ in its last bits
        self.workspace = maker()
        average = None if settings.averaging is None else IterateAverage(settings.averaging, schedule.rounds)
        theta, buffers = self.workspace.vector.clone(), self.workspace.copy_buffers()
        self.model = GlobalModel(
            theta, buffers, clients=len(self.names),
            aggregator=make_aggregator(settings.aggregator, settings.memory_dtype),
            server=make_server(settings.server, settings.server_lr), average=average,
        )  # fmt: skip
        self.norm_warnings = NormWarnings(self.names, settings.lr)
        self.history = list(run.rounds())
        self.checkpoint = Checkpoint(run)
        if groups := self.checkpoint.load(self.device):
            self.model.restore(groups)
            self.schedule.restore(groups.get("guide", {}))
        else:
            with run.transaction():
                self.model.size(schedule.most).tell(run)
                self._save(None)

    def algorithm_1(self, progress: Callback | None = None) -> None:
        """Train every round of the schedule (line 1)."""
        state = TrainingState(history=self.history, ledger=self.run_file.ledger, probe=self._probe)
        while (due := self.schedule.next(state)) is not None:  # line 2: for t = 1, .., T + s
            if self.stop.is_set():
                raise StopRequested
            began = time.perf_counter()
            number, slot = len(self.history), due.slot

            # 1. Charge the slot before any of its energy is used.
            self._charge(due)

            # 2. Lines 3 to 8: every scheduled client trains from the same model and sends Delta_c = theta - theta_c.
            updates = self._train_clients(number, due)
            warnings = self.norm_warnings.of({c: float(sent.update.norm()) for c, sent in updates.items()}, slot)

            # 3. Lines 9 to 15: FedAvg and a plain step in the window, else the aggregator and the server optimiser.
            step = self.model.step(
                updates, slot=slot, number=number, in_window=due.in_window, pi=due.pi, weights=due.weights
            )
            if not step.finite:
                raise self._diverged(number, slot, None)

            # 4. Evaluate the model if it is due, then save round and checkpoint in one transaction.
            score = self._score(self.model.theta) if self._is_due(number) else None
            done = RoundRecord(
                slot=slot,
                number=number,
                slot_start=self.problem.slot_start(slot),
                in_window=due.in_window,
                participants=tuple(self.names[client] for client in updates),
                weights={self.names[client]: weight for client, weight in step.weights.items()},
                losses={self.names[client]: sent.loss for client, sent in updates.items()},
                loss=math.fsum(sent.loss for sent in updates.values()) / len(updates),
                update_norm=step.update_norm,
                spent_kg=self.run_file.ledger.spent_kg(through=slot),  # a later slot may be charged, and not kept
                seconds=time.perf_counter() - began,
                accuracy=None if score is None else score.accuracy,
                test_loss=None if score is None else score.loss,
            )
            self._keep(done, score, warnings)
            if progress is not None:
                progress(Progress(done=done, rounds=self.schedule.rounds, budget_kg=self.problem.budget_kg))
        self._charge(None)  # idle draw up to the end, where nobody trains in the last slots
        self._score_last_round()

    def result(self) -> Result:
        """Evaluate the final model on all test data, and return the result of the run."""
        last_slot, theta, final = self.history[-1].slot if self.history else 0, self.model.theta, self.model.final()
        last = self._last_score()
        score = last if final is theta else self._score(final)
        name: Literal["last", "averaged"] = "last" if self.model.average is None else "averaged"
        self.workspace.load(final, self.model.buffers)
        with self.workers.all_threads():
            own = evaluate_each(self.workspace, self.task.client_tests, self.task)
            losses = evaluate_each(self.workspace, self.task.clients, self.task) if self.settings.training_loss else ()

        def record(client: str, found: Score, data: Literal["test", "train"]) -> EvaluationRecord:
            return EvaluationRecord(slot=last_slot, model=name, client=client, data=data, **asdict(found))

        records = [record("", score, "test")]
        records += [record(client, found, "test") for client, found in zip(self.names, own, strict=False)]
        records += [record(client, found, "train") for client, found in zip(self.names, losses, strict=False)]
        with self.run_file.transaction():
            self.run_file.record_evaluation(*records)
            self.run_file.set_status("done")
        return Result(
            accuracy=score.accuracy, test_loss=score.loss,
            loss=sum(s.loss for s in losses) / len(losses) if losses else None,
            client_accuracy={client: s.accuracy for client, s in zip(self.names, own, strict=False)},
            worst_client_accuracy=min((s.accuracy for s in own), default=None), last_accuracy=last.accuracy,
            kind=self.run_file.kind, emissions_kg=self.run_file.ledger.spent_kg(), budget_kg=self.problem.budget_kg,
            history=tuple(self.history),
            never=tuple(self.names[client] for client in self.schedule.never(self.history)), notes=self.notes,
            model=self.workspace.state_dict(), seconds=math.fsum(done.seconds for done in self.history),
            folder=self.run_file.folder,
        )  # fmt: skip

    def _charge(self, due: ScheduledRound | None) -> None:
        """Charge all slots up to this round that are not charged yet; None: up to the end."""
        self.schedule.charge(self.run_file.ledger, due)

    def _train_clients(self, number: int, due: ScheduledRound) -> dict[int, LocalUpdate]:
        """Return updates by client, in the order of clients; a region's is the mean over the devices drawn from it."""
        jobs = [job for client in due.clients for job in self._jobs(client, due.slot)]
        sent = self.workers.train(jobs, self.model.theta, self.model.buffers, self.stop)
        by_client: dict[int, list[LocalUpdate]] = {client: [] for client in due.clients}
        for job, update in zip(jobs, sent, strict=True):
            if not update.finite:
                raise self._diverged(number, due.slot, job.client)
            by_client[job.client].append(update)
        return {client: _mean(updates) for client, updates in by_client.items()}

    def _jobs(self, client: int, slot: int) -> list[Job]:
        seed = self.settings.seed
        if not self.regions:
            return [Job(client=client, samples=self.data[client], seed=stream(seed, client, slot))]
        region = self.regions[client]
        draw = np.random.default_rng(stream(stream(seed, client, slot), DEVICES))
        chosen = sorted(int(i) for i in draw.choice(len(region), size=self.settings.devices_per_slot, replace=False))
        return [Job(client=client, samples=region[i], seed=stream(seed, client, slot, i)) for i in chosen]

    def _probe(self, need: Need, samples: Mapping[int, int], slot: int) -> dict[int, Probe]:
        """Probe the current model on so many samples of each client, drawn anew in each slot."""
        self.workspace.load(self.model.theta, self.model.buffers)
        found: dict[int, Probe] = {}
        with self.workers.all_threads():
            for client, count in samples.items():
                held = self.data[client]
                draw = torch.Generator().manual_seed(stream(self.settings.seed, client, slot, _PROBES))
                index = torch.randperm(len(held), generator=draw)[:count].to(held.x.device)
                found[client] = probe(self.workspace, Samples(x=held.x[index], y=held.y[index]), self.task, need)
        return found

    def _is_due(self, number: int) -> bool:
        every = self.settings.eval_every
        return number == self.schedule.rounds - 1 or (every > 0 and (number + 1) % every == 0)

    def _score(self, theta: Tensor) -> Score:
        self.workspace.load(theta, self.model.buffers)
        with self.workers.all_threads():
            return evaluate(self.workspace, self.task.test, self.task)

    def _score_last_round(self) -> None:
        """Evaluate the last round where nobody knew in its turn that it would be the last."""
        if self.history and self.history[-1].accuracy is None:
            done, score = self.history[-1], self._score(self.model.theta)
            with self.run_file.transaction():
                self.run_file.set_score(done.slot, score.accuracy, score.loss)
                self._record_score(done.slot, score)
            self.history[-1] = replace(done, accuracy=score.accuracy, test_loss=score.loss)

    def _last_score(self) -> Score:
        done = self.history[-1] if self.history else None
        if done is None or done.accuracy is None or done.test_loss is None:
            return self._score(self.model.theta)
        return Score(accuracy=done.accuracy, loss=done.test_loss, samples=len(self.task.test))

    def _record_score(self, slot: int, score: Score) -> None:
        record = EvaluationRecord(slot=slot, model="last", client="", data="test", **asdict(score))
        self.run_file.record_evaluation(record)

    def _keep(self, done: RoundRecord, score: Score | None, warnings: list[str]) -> None:
        with self.run_file.transaction():
            self.run_file.record(done)
            for warning in warnings:
                log.warning(warning)
                self.run_file.log(warning, level="warning", slot=done.slot)
            if score is not None:
                self._record_score(done.slot, score)
            self._save(done.slot)
        self.history.append(done)

    def _save(self, slot: int | None) -> None:
        self.checkpoint.save(slot, self.model.tensors() | {"guide": self.schedule.state()})

    def _on_device(self, samples: Samples) -> Samples:
        return Samples(x=samples.x.to(self.device), y=samples.y.to(self.device))

    def _diverged(self, number: int, slot: int, client: int | None) -> TrainingDiverged:
        who = "The global model" if client is None else f"The loss of client {self.names[client]!r}"
        folder = self.run_file.folder
        lost = "is lost, since the run had no folder (--out, or out= in Python)"
        where = f"is kept in {folder}" if folder else lost
        kept = f"The model of round {number} {where}." if number else "No round was completed."
        return TrainingDiverged(
            f"{who} is no longer a number in round {number + 1} of {self.schedule.rounds} (slot {slot}, "
            f"{iso(self.problem.slot_start(slot))}). {kept} Try an lr below {self.settings.lr:g}, or an aggregator with "
            f"bounded weights such as 'memory' (this run: {self.settings.aggregator!r}).",
            client=None if client is None else self.names[client],
            slot=slot,
            number=number,
        )


def _mean(sent: list[LocalUpdate]) -> LocalUpdate:
    if len(sent) == 1:
        return sent[0]
    update = sent[0].update.clone()
    for other in sent[1:]:
        update += other.update
    return LocalUpdate(
        update=update / len(sent),
        buffers=average_buffers([each.buffers for each in sent]),
        loss=math.fsum(each.loss for each in sent) / len(sent),
        finite=True,
    )
