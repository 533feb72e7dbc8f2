"""Algorithm 1 of the paper: training by a schedule, known in advance or decided on the way, every gram charged."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from slackwater.learning.aggregators import FedAvg, Participation
from slackwater.learning.checkpoint import Checkpoint
from slackwater.learning.evaluate import Score, client_losses, evaluate, evaluate_clients, global_loss
from slackwater.learning.flat import ModelMaker, average_buffers
from slackwater.learning.guide import Given, Guide, Standing, Turn
from slackwater.learning.local import DEVICES, LocalUpdate, stream
from slackwater.learning.probe import Need, Probe, probe
from slackwater.learning.registry import make_aggregator
from slackwater.learning.result import Progress, Result, TrainingDiverged
from slackwater.learning.screening import Watch
from slackwater.learning.server import IterateAverage, Plain, make_server
from slackwater.learning.settings import Settings
from slackwater.learning.task import Samples, Task
from slackwater.learning.workers import Job, StopRequested, Workers
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run
from slackwater.units import iso

log = logging.getLogger(__name__)
Callback = Callable[[Progress], None]
Which = Literal["last", "averaged"]
_PROBES = 3
"""Of random numbers, beside the purposes in `slackwater.learning.local`."""


class Training:
    """One run, from its beginning or from its checkpoint, to where its guide ends it."""

    def __init__(self, run: Run, guide: Guide, task: Task, settings: Settings, notes: tuple[str, ...]) -> None:
        self.run_file, self.guide, self.task, self.settings, self.notes = run, guide, task, settings, notes
        self.problem = guide.problem
        self.stop = threading.Event()
        """Set it to stop after the clients under way."""
        self.names = [str(name) for name in self.problem.fleet.names]
        self.device = torch.device(settings.device)
        self.data = [self._on_device(samples) for samples in task.clients]
        self.regions = [[self._on_device(samples) for samples in region] for region in task.devices]

        maker = ModelMaker(task, seed=settings.seed, device=self.device)
        self.workers = Workers(task, maker, settings.work, threads=settings.threads, device=self.device)
        torch.set_num_threads(1)  # as after every round, or a norm could differ in its last bits
        self.workspace = maker()
        self.theta: Tensor = self.workspace.vector.clone()
        self.buffers = self.workspace.copy_buffers()
        self.aggregator, self.fedavg = make_aggregator(settings.aggregator), FedAvg()
        self.server, self.plain = make_server(settings.server, settings.server_lr), Plain()
        self.average = None if settings.averaging is None else IterateAverage(settings.averaging, guide.rounds)
        self.watch = Watch(self.names, settings.lr)
        self.history = list(run.rounds())
        self.checkpoint = Checkpoint(run)
        self._restore()

    def algorithm_1(self, progress: Callback | None = None) -> None:
        """The schedule is the guide's (line 1)."""
        standing = Standing(history=self.history, ledger=self.run_file.ledger, probe=self._probe)
        while (turn := self.guide.next(standing)) is not None:  # line 2: for t = 1, .., T + s
            if self.stop.is_set():
                raise StopRequested
            began = time.perf_counter()
            number, slot, in_window = len(self.history), turn.slot, turn.in_window

            # 1. The slot is charged before anything of it is used.
            self._charge(turn)

            # 2. Lines 3 to 8: everyone scheduled trains from the same model and sends Delta_c = theta - theta_c.
            updates = self._train_clients(number, turn)
            warnings = self.watch.warnings({c: float(sent.update.norm()) for c, sent in updates.items()}, slot)

            # 3. Line 9: plain FedAvg in the window (10), else the aggregator, in the paper U-FedAvg (13).
            rule = self.fedavg if in_window else self.aggregator if turn.weights is None else Given(turn.weights)
            who = Participation(slot=slot, number=number, clients=len(self.names), pi=turn.pi)
            total = rule.aggregate({client: sent.update for client, sent in updates.items()}, who)

            # 4. Lines 11 and 14: the server's step; in the window theta - Delta, whatever the optimiser.
            self.theta = (self.plain if in_window else self.server).step(self.theta, total.update)
            self.buffers = average_buffers([sent.buffers for sent in updates.values()])
            if not bool(torch.isfinite(self.theta).all()):
                raise self._diverged(number, slot, None)
            if self.average is not None:
                self.average.add(number, self.theta)

            # 5. Evaluated if it is due, then kept: round and checkpoint together, or neither.
            score = self._score(self.theta) if self._is_due(number) else None
            done = RoundRecord(
                slot=slot,
                number=number,
                slot_start=self.problem.slot_start(slot),
                in_window=in_window,
                participants=tuple(self.names[client] for client in updates),
                weights={self.names[client]: weight for client, weight in total.weights.items()},
                losses={self.names[client]: sent.loss for client, sent in updates.items()},
                loss=math.fsum(sent.loss for sent in updates.values()) / len(updates),
                update_norm=float(total.update.norm()),
                spent_kg=self.run_file.ledger.spent_kg(),
                seconds=time.perf_counter() - began,
                accuracy=None if score is None else score.accuracy,
                test_loss=None if score is None else score.loss,
            )
            self._keep(done, score, warnings)
            if progress is not None:
                progress(Progress(done=done, rounds=self.guide.rounds, budget_kg=self.problem.budget_kg))
        self._charge(None)  # idle draw up to the end, where nobody trains in the last slots
        self._score_last_round()

    def result(self) -> Result:
        """Evaluate what came out, once on everything."""
        last_slot = self.history[-1].slot if self.history else 0
        last = self._last_score()
        final = self.theta if self.average is None else self.average.mean(self.theta)
        name: Which = "last" if self.average is None else "averaged"
        score = last if final is self.theta else self._score(final)
        self.workspace.load(final, self.buffers)
        with self.workers.all_threads():
            own = evaluate_clients(self.workspace, self.task)
            losses = client_losses(self.workspace, self.task) if self.settings.training_loss else ()
        records = [_record(last_slot, name, "", score, data="test")]
        records += [_record(last_slot, name, *each, data="test") for each in zip(self.names, own.clients, strict=False)]
        records += [_record(last_slot, name, *each, data="train") for each in zip(self.names, losses, strict=False)]
        with self.run_file.transaction():
            self.run_file.record_evaluation(*records)
            self.run_file.set_status("done")
        return Result(
            accuracy=score.accuracy,
            test_loss=score.loss,
            loss=global_loss(losses) if losses else None,
            client_accuracy={client: s.accuracy for client, s in zip(self.names, own.clients, strict=False)},
            worst_client_accuracy=own.worst,
            last_accuracy=last.accuracy,
            emissions_kg=self.run_file.ledger.spent_kg(),
            budget_kg=self.problem.budget_kg,
            history=tuple(self.history),
            never=tuple(self.names[client] for client in self.guide.never(self.history)),
            notes=self.notes,
            model=self.workspace.state_dict(),
            seconds=math.fsum(done.seconds for done in self.history),
            folder=self.run_file.folder,
        )

    def close(self) -> None:
        """End the threads."""
        self.workers.close()

    def _charge(self, turn: Turn | None) -> None:
        """Book what is not booked up to this turn, None: to the end."""
        self.guide.charge(self.run_file.ledger, turn)

    def _train_clients(self, number: int, turn: Turn) -> dict[int, LocalUpdate]:
        """Updates by client, in the order of clients; a region's is the mean over the devices drawn from it."""
        jobs = [job for client in turn.clients for job in self._jobs(client, turn.slot)]
        sent = self.workers.train(jobs, self.theta, self.buffers, self.stop)
        for job, update in zip(jobs, sent, strict=True):
            if not update.finite:
                raise self._diverged(number, turn.slot, job.client)
        return {
            client: _mean([update for job, update in zip(jobs, sent, strict=True) if job.client == client])
            for client in turn.clients
        }

    def _jobs(self, client: int, slot: int) -> list[Job]:
        seed = self.settings.seed
        if not self.regions:
            return [Job(client=client, samples=self.data[client], seed=stream(seed, client, slot))]
        region = self.regions[client]
        draw = np.random.default_rng(stream(stream(seed, client, slot), DEVICES))
        chosen = sorted(int(i) for i in draw.choice(len(region), size=self.settings.devices_per_slot, replace=False))
        return [Job(client=client, samples=region[i], seed=stream(seed, client, slot, i)) for i in chosen]

    def _probe(self, need: Need, samples: Mapping[int, int], slot: int) -> dict[int, Probe]:
        """The current model on so many of each client's samples, drawn anew in each slot."""
        self.workspace.load(self.theta, self.buffers)
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
        return number == self.guide.rounds - 1 or (every > 0 and (number + 1) % every == 0)

    def _score(self, theta: Tensor) -> Score:
        self.workspace.load(theta, self.buffers)
        with self.workers.all_threads():
            return evaluate(self.workspace, self.task.test, self.task)

    def _score_last_round(self) -> None:
        """Where nobody knew that it would be the last, it was not evaluated in its turn."""
        if self.history and self.history[-1].accuracy is None:
            done, score = self.history[-1], self._score(self.theta)
            with self.run_file.transaction():
                self.run_file.set_score(done.slot, score.accuracy, score.loss)
                self.run_file.record_evaluation(_record(done.slot, "last", "", score, data="test"))
            self.history[-1] = replace(done, accuracy=score.accuracy, test_loss=score.loss)

    def _last_score(self) -> Score:
        done = self.history[-1] if self.history else None
        if done is None or done.accuracy is None or done.test_loss is None:
            return self._score(self.theta)
        return Score(accuracy=done.accuracy, loss=done.test_loss, samples=len(self.task.test))

    def _keep(self, done: RoundRecord, score: Score | None, warnings: list[str]) -> None:
        with self.run_file.transaction():
            self.run_file.record(done)
            for warning in warnings:
                log.warning(warning)
                self.run_file.log(warning, level="warning", slot=done.slot)
            if score is not None:
                self.run_file.record_evaluation(_record(done.slot, "last", "", score, data="test"))
            if self.run_file.folder is not None:
                self.checkpoint.save(done.slot, self._state())
        self.history.append(done)

    def _state(self) -> dict[str, dict[str, Tensor]]:
        return {
            "model": {"theta": self.theta},
            "buffers": self.buffers,
            "aggregator": self.aggregator.state(),
            "server": self.server.state(),
            "average": {} if self.average is None else self.average.state(),
            "guide": self.guide.state(),
        }

    def _restore(self) -> None:
        groups = self.checkpoint.load(self.device)
        if not groups:
            return
        self.theta, self.buffers = groups["model"]["theta"], groups.get("buffers", {})
        self.aggregator.restore(groups.get("aggregator", {}))
        self.server.restore(groups.get("server", {}))
        if self.average is not None:
            self.average.restore(groups.get("average", {}))
        self.guide.restore(groups.get("guide", {}))

    def _on_device(self, samples: Samples) -> Samples:
        return Samples(x=samples.x.to(self.device), y=samples.y.to(self.device))

    def _diverged(self, number: int, slot: int, client: int | None) -> TrainingDiverged:
        who = "The global model" if client is None else f"The loss of client {self.names[client]!r}"
        when = iso(self.problem.slot_start(slot))
        where = (
            f"is kept in {self.run_file.folder}"
            if self.run_file.folder
            else "is lost, since the run had no folder (--out, or out= in Python)"
        )
        kept = f"The model of round {number} {where}." if number else "No round was completed."
        return TrainingDiverged(
            f"{who} is no longer a number in round {number + 1} of {self.guide.rounds} (slot {slot}, {when}). {kept} "
            "Try an lr below "
            f"{self.settings.lr:g}, or an aggregator with bounded weights such as 'memory' (this run: "
            f"{self.settings.aggregator!r}).",
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


def _record(slot: int, model: Which, client: str, score: Score, *, data: Literal["test", "train"]) -> EvaluationRecord:
    return EvaluationRecord(
        slot=slot,
        model=model,
        client=client,
        data=data,
        accuracy=score.accuracy,
        loss=score.loss,
        samples=score.samples,
    )
