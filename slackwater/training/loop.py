"""Train with a schedule (Algorithm 1 of the paper), resume after a stop, and train the no-slack baseline."""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from slackwater import time_source
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.lazy import Viewed
from slackwater.ledger.run import EvaluationRecord, RoundRecord, Run
from slackwater.ledger.schema import KINDS, RunKind, damage
from slackwater.ledger.score import ACCURACY, MetricLabel
from slackwater.planning.plan import Plan
from slackwater.planning.problem import Problem
from slackwater.planning.schedule import no_slack_plan
from slackwater.training.aggregators import make_aggregator
from slackwater.training.global_model import Checkpoint, GlobalModel, IterateAverage, NormWarnings, make_server
from slackwater.training.local import (
    DEVICES,
    Job,
    LocalUpdate,
    Need,
    Probe,
    Score,
    StopRequested,
    Workers,
    evaluate,
    evaluate_each,
    probe,
    steps_of,
)
from slackwater.training.process import memory_kept, save_model, stopping, stream, threads
from slackwater.training.progress_bar import ProgressBar
from slackwater.training.schedule_source import ByPlan, ScheduledRound, ScheduleSource, TrainingState
from slackwater.training.settings import EVAL_EVERY, Settings, check, check_model, described, notes_of, plan_of, rebuilt
from slackwater.training.task import ModelMaker, Samples, Task
from slackwater.training.vectors import average_buffers
from slackwater.units import iso


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The argument of a progress callback after every round."""

    done: RoundRecord
    rounds: int
    """Slots with participants in the whole plan."""
    budget_kg: float
    metric: MetricLabel = ACCURACY
    """What the rounds' scores measure."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result(Viewed):
    """A trained model, its score and its emissions."""

    score: float
    """By the task's metric, on the global test set; of the averaged model with averaging."""
    metric: MetricLabel = ACCURACY
    """Name, direction and unit of the scores."""
    test_loss: float
    loss: float | None
    """F of equation (1): the mean over clients of their mean training loss; None if it was not requested."""
    client_scores: Mapping[str, float]
    """On each client's own distribution; empty if the task has no test data by client."""
    worst_client_score: float | None
    last_score: float
    """Of the last global model; the same as `score` without averaging."""
    kind: RunKind
    """Kind of run. Training here is simulated: its kg are what it would have emitted."""
    synthetic: bool = False
    """Whether the carbon intensity is synthetic."""
    emissions_kg: float
    """Sum of the ledger."""
    budget_kg: float
    history: tuple[RoundRecord, ...]
    """Every slot with participants."""
    never: tuple[str, ...]
    """Clients that never train before the window."""
    notes: tuple[str, ...]
    """Warnings about the result."""
    model: Mapping[str, Tensor]
    """state_dict, on the CPU."""
    seconds: float
    """Wall time of the rounds, over all sessions."""
    folder: Path | None

    @property
    def accuracy(self) -> float:
        """Return the score if the metric is accuracy; raise for any other metric."""
        self._check_accuracy("score")
        return self.score

    @property
    def client_accuracy(self) -> Mapping[str, float]:
        """Return the scores by client if the metric is accuracy."""
        self._check_accuracy("client_scores")
        return self.client_scores

    @property
    def worst_client_accuracy(self) -> float | None:
        """Return the worst client's score if the metric is accuracy."""
        self._check_accuracy("worst_client_score")
        return self.worst_client_score

    @property
    def last_accuracy(self) -> float:
        """Return the last model's score if the metric is accuracy."""
        self._check_accuracy("last_score")
        return self.last_score

    def _check_accuracy(self, instead: str) -> None:
        if self.metric != ACCURACY:
            raise ScenarioError(f"This run measures {self.metric.name}, not accuracy: read result.{instead}.")

    def __repr__(self) -> str:
        """Show score, rounds and emissions on one line."""
        return (
            f"Result({self.metric.name} {self.metric.text(self.score)} after {len(self.history)} rounds, {self.emissions_kg:.4g} of "
            f"{self.budget_kg:.4g} kg, {self.kind}, folder={None if self.folder is None else str(self.folder)!r})"
        )


class TrainingStopped(SlackwaterError):
    """Ctrl-C stopped the run between two clients; it can be resumed."""

    exit_code = 130


class TrainingDiverged(SlackwaterError):
    """The loss or the model is not finite; the last good model is in the run's file."""

    def __init__(self, message: str, *, client: str | None, slot: int, number: int) -> None:
        super().__init__(message)
        self.client, self.slot, self.number = client, slot, number


class EventFile:
    """A progress callback that writes loss, score, kg and participants of each round, by slot."""

    def __init__(self, folder: Path, *, kind: RunKind, then: Callable[[Progress], None] | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(mode=0o700, exist_ok=True)
        # A resumed run adds a file; TensorBoard reads all files of a folder together.
        self._writer = SummaryWriter(str(folder), filename_suffix=".slackwater")
        self._then, self._kg = then, f"kg ({KINDS[kind].label})"

    def __call__(self, progress: Progress) -> None:
        """Write one round."""
        done, at = progress.done, time_source.now().timestamp()
        values = {"loss": done.loss, self._kg: done.spent_kg, "participants": len(done.participants)}
        values["update_norm"] = done.update_norm
        if done.accuracy is not None and done.test_loss is not None:
            values |= {f"test/{progress.metric.name}": done.accuracy, "test/loss": done.test_loss}
        values |= {f"client_loss/{name}": loss for name, loss in done.losses.items()}
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, done.slot, walltime=at)
        self._writer.flush()
        if self._then is not None:
            self._then(progress)

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


log = logging.getLogger(__name__)
Callback = Callable[[Progress], None]
_PROBES = 3  # random stream, besides those of `slackwater.training.local`


class Training:
    """One run, from its start or its checkpoint to the end of its schedule."""

    def __init__(
        self, run: Run, schedule: ScheduleSource, task: Task, settings: Settings, notes: tuple[str, ...]
    ) -> None:
        self.run_file, self.schedule, self.task, self.settings, self.notes = run, schedule, task, settings, notes
        self.problem = schedule.problem
        self.stop = threading.Event()  # set it to stop after the clients that are training
        self.names = [str(name) for name in self.problem.fleet.names]
        self.device = torch.device(settings.device)
        self.data = [samples.on(self.device) for samples in task.clients]
        self.regions = [[samples.on(self.device) for samples in region] for region in task.devices]

        maker = ModelMaker(task, seed=settings.seed, device=self.device)
        self.workers = Workers(task, maker, settings.work, threads=settings.threads, device=self.device)
        torch.set_num_threads(1)  # as after every round: otherwise the last bits of a norm could differ
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
                spent_kg=self.run_file.ledger.spent_kg(through=slot),  # a later slot may be charged before a stop
                seconds=time.perf_counter() - began,
                accuracy=None if score is None else _known(score.value),
                test_loss=None if score is None else score.loss,
                work=self._work_done(due),
            )
            self._keep(done, score, warnings)
            if progress is not None:
                progress(
                    Progress(
                        done=done, rounds=self.schedule.rounds, budget_kg=self.problem.budget_kg, metric=self.task.label
                    )
                )
        self._charge(None)  # idle draw up to the end, if the last slots have no participants
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
            return _evaluation(last_slot, name, client, data, found)

        records = [record("", score, "test")]
        records += [record(client, found, "test") for client, found in zip(self.names, own, strict=False)]
        records += [record(client, found, "train") for client, found in zip(self.names, losses, strict=False)]
        with self.run_file.transaction():
            self.run_file.record_evaluation(*records)
            self.run_file.set_status("done")
        return Result(
            score=score.value, metric=self.task.label, test_loss=score.loss,
            loss=sum(s.loss for s in losses) / len(losses) if losses else None,
            client_scores={client: s.value for client, s in zip(self.names, own, strict=False)},
            worst_client_score=self.task.label.worst(s.value for s in own), last_score=last.value,
            kind=self.run_file.kind, synthetic=self.problem.traces.synthetic,
            emissions_kg=self.run_file.ledger.spent_kg(), budget_kg=self.problem.budget_kg, history=tuple(self.history),
            never=tuple(self.names[client] for client in self.schedule.never(self.history)), notes=self.notes,
            model=self.workspace.state_dict(), seconds=math.fsum(done.seconds for done in self.history),
            folder=self.run_file.folder,
        )  # fmt: skip

    def _charge(self, due: ScheduledRound | None) -> None:
        """Charge all slots up to this round that are not charged yet; None: up to the end."""
        self.schedule.charge(self.run_file.ledger, due)

    def _train_clients(self, number: int, due: ScheduledRound) -> dict[int, LocalUpdate]:
        """Return updates by client, in the order of clients; a region's is the mean over the devices drawn from it."""
        jobs = [job for client in due.clients for job in self._jobs(client, due.slot, due.work.get(client, 1.0))]
        sent = self.workers.train(jobs, self.model.theta, self.model.buffers, self.stop)
        by_client: dict[int, list[LocalUpdate]] = {client: [] for client in due.clients}
        for job, update in zip(jobs, sent, strict=True):
            if not update.finite:
                raise self._diverged(number, due.slot, job.client)
            by_client[job.client].append(update)
        return {client: _mean(updates) for client, updates in by_client.items()}

    def _work_done(self, due: ScheduledRound) -> dict[str, float]:
        """Return client -> share of its local steps at full power, after rounding, of clients below full power."""
        full = self.settings.work
        done: dict[str, float] = {}
        for client, share in due.work.items():
            held = [len(job.samples) for job in self._jobs(client, due.slot, share)]
            taken = sum(steps_of(samples, replace(full, share=share)) for samples in held)
            done[self.names[client]] = taken / sum(steps_of(samples, full) for samples in held)
        return done

    def _jobs(self, client: int, slot: int, share: float) -> list[Job]:
        seed = self.settings.seed
        if not self.regions:
            return [Job(client=client, samples=self.data[client], seed=stream(seed, client, slot), share=share)]
        region = self.regions[client]
        draw = np.random.default_rng(stream(stream(seed, client, slot), DEVICES))
        chosen = sorted(int(i) for i in draw.choice(len(region), size=self.settings.devices_per_slot, replace=False))
        return [Job(client=client, samples=region[i], seed=stream(seed, client, slot, i), share=share) for i in chosen]

    def _probe(self, need: Need, samples: Mapping[int, int], slot: int) -> dict[int, Probe]:
        """Probe the current model on a number of samples of each client, drawn again in each slot."""
        self.workspace.load(self.model.theta, self.model.buffers)
        found: dict[int, Probe] = {}
        with self.workers.all_threads():
            for client, count in samples.items():
                held = self.data[client]
                draw = torch.Generator().manual_seed(stream(self.settings.seed, client, slot, _PROBES))
                x, y = held.take(torch.randperm(len(held), generator=draw)[:count])
                found[client] = probe(self.workspace, Samples(x=x, y=y), self.task, need)
        return found

    def _is_due(self, number: int) -> bool:
        every = self.settings.eval_every
        return number == self.schedule.rounds - 1 or (every > 0 and (number + 1) % every == 0)

    def _score(self, theta: Tensor) -> Score:
        self.workspace.load(theta, self.model.buffers)
        with self.workers.all_threads():
            return evaluate(self.workspace, self.task.test, self.task)

    def _score_last_round(self) -> None:
        """Evaluate the last round, if it was not known to be the last."""
        if self.history and self.history[-1].test_loss is None:
            done, score = self.history[-1], self._score(self.model.theta)
            with self.run_file.transaction():
                self.run_file.set_score(done.slot, _known(score.value), score.loss)
                self._record_score(done.slot, score)
            self.history[-1] = replace(done, accuracy=_known(score.value), test_loss=score.loss)

    def _last_score(self) -> Score:
        done = self.history[-1] if self.history else None
        if done is None or done.accuracy is None or done.test_loss is None:
            return self._score(self.model.theta)
        return Score(value=done.accuracy, loss=done.test_loss, samples=len(self.task.test))

    def _record_score(self, slot: int, score: Score) -> None:
        self.run_file.record_evaluation(_evaluation(slot, "last", "", "test", score))

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

    def _diverged(self, number: int, slot: int, client: int | None) -> TrainingDiverged:
        who = "The global model" if client is None else f"The loss of client {self.names[client]!r}"
        folder = self.run_file.folder
        lost = "is lost, because the run has no folder (--out, or out= in Python)"
        where = f"is kept in {folder}" if folder else lost
        kept = f"The model of round {number} {where}." if number else "No round was completed."
        return TrainingDiverged(
            f"{who} is no longer finite in round {number + 1} of {self.schedule.rounds} (slot {slot}, "
            f"{iso(self.problem.slot_start(slot))}). {kept} Try an lr below {self.settings.lr:g}, or an aggregator with "
            f"bounded weights such as 'memory' (this run: {self.settings.aggregator!r}).{self._unread(client)}",
            client=None if client is None else self.names[client],
            slot=slot,
            number=number,
        )

    def _unread(self, client: int | None) -> str:
        """Return what else may be wrong with a client whose data is read by the batch, so that nobody has seen all of it."""
        if client is None or isinstance(self.data[client], Samples):
            return ""
        return " Or look for values that are not numbers in its dataset."


def _known(value: float) -> float | None:
    """Return a score as the run's file holds it: None where the metric does not exist."""
    return None if math.isnan(value) else value


def _evaluation(
    slot: int, model: Literal["last", "averaged"], client: str, data: Literal["test", "train"], score: Score
) -> EvaluationRecord:
    return EvaluationRecord(
        slot=slot, model=model, client=client, data=data, accuracy=_known(score.value), loss=score.loss,
        samples=score.samples,
    )  # fmt: skip


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


MODEL = "model.pt"


def _bar(cleanup: contextlib.ExitStack) -> Callback:
    """Return a callback that moves a progress bar."""
    bar = ProgressBar("train")
    cleanup.callback(bar.close)

    def show(now: Progress) -> None:
        score = "" if now.done.accuracy is None else f", {now.metric.name} {now.metric.text(now.done.accuracy, 1)}"
        bar.step(f"{now.done.spent_kg:.3f} of {now.budget_kg:.4g} kg, loss {now.done.loss:.3f}{score}", now.rounds)

    return show


def train(
    plan: Plan,
    task: Task,
    *,
    aggregator: str | None = None,
    local_steps: int = 30,
    local_epochs: int | None = None,
    batch_size: int = 128,
    lr: float = 0.1,
    weight_decay: float = 5e-4,
    seed: int = 0,
    out: str | Path | None = None,
    eval_every: int = EVAL_EVERY,
    training_loss: bool = True,
    server: str = "plain",
    server_lr: float | None = None,
    memory_dtype: str = "float32",
    averaging: float | None = None,
    devices_per_slot: int | None = None,
    device_kwh: float | None = None,
    device: str = "cpu",
    precision: str = "fp32",
    threads: int | None = None,
    progress: Callback | bool | None = None,
    tensorboard: bool = False,
) -> Result:
    """Train a task by a plan (Algorithm 1), and return the model, its score and its emissions.

    The same plan, task and settings give the same bits on the same machine.

    Args:
        plan: The schedule: which clients train in which slot.
        task: Model and data of the clients, such as `sw.tasks.digits(clients=7)`.
        aggregator: How updates are combined before the window. Default: the plan's recommendation.
        local_steps: SGD steps of a client in a round, each on `batch_size` samples with the learning rate `lr`.
        out: New folder for `run.db` (ledger and rounds), `state/` (the checkpoint that `resume` reads) and `model.pt`.
        eval_every: Rounds between evaluations; 0 evaluates at the end only.
        precision: `bf16` halves the time of a step where the processor has it, `auto` uses it only there; `fp32` is exact.
        progress: Called after every round; True shows a progress bar.

    `slackwater.training.settings.Settings` describes the other settings.
    """
    settings = Settings(
        aggregator=plan.aggregator if aggregator is None else aggregator, local_steps=local_steps,
        local_epochs=local_epochs, batch_size=batch_size, lr=lr, weight_decay=weight_decay, seed=seed,
        eval_every=eval_every, training_loss=training_loss, server=server, server_lr=server_lr,
        memory_dtype=memory_dtype, averaging=averaging, devices_per_slot=devices_per_slot, device_kwh=device_kwh,
        device=device, precision=precision, threads=torch.get_num_threads() if threads is None else threads, tensorboard=tensorboard,
    )  # fmt: skip
    check(plan, task, settings)
    if tensorboard and out is None:
        raise ScenarioError("tensorboard=True needs a folder to write to: name one with --out (out= in Python).")
    check_model(task, settings)
    run = Run.create(
        out, plan=plan.to_dict(), budget_kg=plan.problem.budget_kg, settings=settings.to_dict(), task=described(task),
        kind="simulated",
    )  # fmt: skip
    return carry_out(run, _by_plan(plan, settings), task, settings, notes_of(plan, task, settings), progress)


def resume(
    out: str | Path, *, task: Task | None = None, progress: Callback | bool | None = None, from_last_good: bool = False
) -> Result:
    """Continue a run that was killed or stopped, to the same bits; return the result of one that is done.

    Args:
        out: The run folder.
        task: The task, with the same data as before. Default: a built-in task is made from the run's file.
        progress: Called after every round.
        from_last_good: Continue from the checkpoint before the last one if that is damaged.

    Raises:
        SlackwaterError: The last checkpoint is damaged and `from_last_good` is not set.
    """
    run = Run.open(out)
    try:
        if "policy" in run.settings:
            raise ScenarioError(
                f"The run in {out} uses the policy {run.settings['policy']!r}. Resume it with: slackwater resume {out}, or "
                f"slackwater.lab.policies.resume({str(out)!r}) in Python."
            )
        plan, settings = plan_of(run), Settings.from_dict(run.settings)
        task = rebuilt(run) if task is None else task
        check(plan, task, settings)
        check_same_data(run, task)
        if from_last_good:
            run.fall_back()
        run.set_status("running")
    except BaseException:
        run.close()
        raise
    return carry_out(run, _by_plan(plan, settings), task, settings, notes_of(plan, task, settings), progress)


def check_same_data(run: Run, task: Task) -> None:
    """Raise if the task's data are not those of the run."""
    was, now = run.task, described(task)
    if (was["samples"], was["fingerprint"]) != (now["samples"], now["fingerprint"]):
        raise ScenarioError(
            f"The run in {run.folder} was started with other data than the task {task.name!r} has now: "
            f"{sum(was['samples'])} samples over {len(was['samples'])} clients then, {sum(now['samples'])} over "
            f"{len(now['samples'])} now. Make the task with the same data."
        )


def baseline(problem: Problem, task: Task, **settings: Any) -> Result:
    """Train without slack: all clients in every slot from the first until the budget is spent (FedAvg).

    Args:
        problem: Clients, intensity and budget.
        task: Model and data of the clients.
        settings: As for `train`.
    """
    settings.setdefault("aggregator", "fedavg")
    return train(no_slack_plan(problem), task, **settings)


def _by_plan(plan: Plan, settings: Settings) -> ByPlan:
    together = settings.devices_per_slot
    return ByPlan(plan, note="" if together is None else f"{together} devices together")


def carry_out(
    run: Run,
    schedule: ScheduleSource,
    task: Task,
    settings: Settings,
    notes: tuple[str, ...],
    progress: Callback | bool | None,
) -> Result:
    """Train from the state in the run's file to the end of the schedule."""
    with (
        run,
        damage(run.path, of=(sqlite3.Error,)),
        threads(settings.threads),
        memory_kept(),
        contextlib.ExitStack() as cleanup,
    ):
        try:
            if not run.events():
                for note in notes:
                    log.warning(note)
                    run.log(note, level="warning")
            if isinstance(progress, bool):
                progress = _bar(cleanup) if progress else None
            training = Training(run, schedule, task, settings, notes)
            cleanup.callback(training.workers.close)
            if settings.tensorboard and run.folder is not None:
                progress = EventFile(run.folder / "tensorboard", kind=run.kind, then=progress)
                cleanup.callback(progress.close)
            with stopping(training.stop, after="the clients"):
                training.algorithm_1(progress)
                result = training.result()
            if run.folder is not None:
                save_model(run.folder / MODEL, result.model)
            return result
        except StopRequested:
            run.set_status("stopped")
            again = (
                f"Resume with: slackwater resume {run.folder}"
                if run.folder
                else "The run has no folder (--out, or out= in Python), so it cannot be resumed."
            )
            raise TrainingStopped(
                f"Stopped after {len(training.history)} of {schedule.rounds} rounds, {run.ledger.spent_kg():.6g} "
                f"kg charged. {again}"
            ) from None
        except TrainingDiverged as error:
            run.set_status("diverged")
            run.log(str(error), level="error", slot=error.slot)
            raise
        except OSError as error:
            raise SlackwaterError(
                f"{error.filename or run.folder} cannot be written: {error.strerror}. Finished rounds are kept. "
                f"Free disk space, then: slackwater resume {run.folder}"
            ) from None
