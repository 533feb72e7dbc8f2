"""A second process for slow answers: all end times, metrics, the front.

A process can be killed at once when its answer is no longer wanted, and it leaves the server free to answer. It reads jobs
from a pipe and ends when the pipe closes, so it never outlives the dashboard.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from slackwater.dashboard import plan_json as answers
from slackwater.errors import InfeasibleError, SlackwaterError
from slackwater.planning.problem import Problem

log = logging.getLogger(__name__)
JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "joint": answers.joint_answer, "best": answers.best_answer, "front": answers.front_answer,
}  # fmt: skip
_LOOK_EVERY_S = 0.01
NICE = 5
"""Runs on the same machine, and the sliders, have priority."""


class PlannerProcess:
    """Run one job at a time; kill it when its answer is no longer wanted."""

    def __init__(self, *, nice: int = NICE) -> None:
        self._nice = nice
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, job: str, problem: Problem, end: int | None, wanted: Callable[[], bool]) -> dict[str, Any] | None:
        """Return the answer, or None if it is no longer wanted."""
        while not self._turn.acquire(timeout=_LOOK_EVERY_S):
            if not wanted():
                return None
        try:
            if self._closed or not wanted():
                return None
            return self._run(job, problem, end, wanted)
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the process."""
        self._closed = True
        self._end()

    def _run(self, job: str, problem: Problem, end: int | None, wanted: Callable[[], bool]) -> dict[str, Any] | None:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        answer: list[Any] = []
        stdout = process.stdout

        def read() -> None:
            try:
                answer.append(pickle.load(stdout))
            except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # killed during the job
                answer.append(None)

        try:
            pickle.dump((job, problem, end), process.stdin)
            process.stdin.flush()
        except OSError:  # it died after the last job
            self._end()
            raise SlackwaterError("The planning process ended unexpectedly. Move a slider to try again.") from None
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while not answer:
            reader.join(_LOOK_EVERY_S)
            if not answer and not wanted():
                self._end()
                return None
        if answer[0] is None:
            self._end()
            if self._closed:
                return None
            raise SlackwaterError("The planning process ended unexpectedly, perhaps out of memory.")
        return _unwrapped(answer[0])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slackwater.dashboard.planner_process", str(self._nice)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:  # buffered data has no reader any more
                        log.debug("a pipe of the planning process was broken")


def _unwrapped(answer: tuple[str, Any]) -> dict[str, Any]:
    kind, content = answer
    if kind == "infeasible":
        message, least_kg, end = content
        raise InfeasibleError(message, least_budget_kg=least_kg, end=end)
    if kind == "refused":
        raise SlackwaterError(content)
    result: dict[str, Any] = content
    return result


def _serve(nice: int) -> None:
    """Read jobs from stdin and write answers to stdout, until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the dashboard, which then closes the pipe
    if hasattr(os, "nice"):
        os.nice(nice)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a solver's output must not mix with the answers
    jobs: queue.SimpleQueue[tuple[str, Problem, int | None]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    while True:
        job, problem, end = jobs.get()
        try:
            answer: tuple[str, Any] = ("done", JOBS[job](problem, end))
        except InfeasibleError as error:
            answer = ("infeasible", (str(error), error.least_budget_kg, error.end))
        except SlackwaterError as error:
            answer = ("refused", str(error))
        pickle.dump(answer, out)
        out.flush()


def _read_jobs(jobs: queue.SimpleQueue[tuple[str, Problem, int | None]]) -> None:
    """Read jobs in a separate thread, so that a closed pipe is noticed during a job too."""
    while True:
        try:
            jobs.put(pickle.load(sys.stdin.buffer))
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(0)


if __name__ == "__main__":
    _serve(int(sys.argv[1]) if len(sys.argv) > 1 else NICE)
