"""The store and the sweep of all studies: one JSON line per cell, and no cell is measured twice."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slackwater.errors import DataError, InfeasibleError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RESULTS = Path("experiments") / "results"
"""Folder of the stored results, from the top of the repository."""
TRAINED, DIVERGED, INFEASIBLE = "trained", "diverged", "infeasible"
Row = dict[str, Any]
C = TypeVar("C", bound="DataclassInstance")


class Store(Generic[C]):
    """Measured cells of a study in one JSON Lines file.

    A cell is a frozen dataclass; its fields, together with those of `shared`, identify its row. Lines are only ever
    appended, and each is on disk before `add` returns. A last line that was cut off is ignored; of two lines for the
    same cell the later one counts.
    """

    def __init__(self, path: Path, cell: type[C], shared: Mapping[str, Any] | None = None) -> None:
        self.path, self.cell, self.shared = path, cell, dict(shared or {})
        self.defaults = {field.name: field.default for field in fields(cell) if field.default is not MISSING}
        self.names = [*(field.name for field in fields(cell)), *self.shared]
        self._rows: dict[tuple[Any, ...], Row] = {}
        lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                row = json.loads(line)
                self._rows[self._key(row)] = row
            except (ValueError, KeyError, TypeError):
                if number < len(lines):  # without a newline, it is the last line of a killed sweep
                    raise DataError(
                        f"{path}, line {number}: this is not a stored cell. Delete the line; the cell is then trained again."
                    ) from None

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] if name in row else self.defaults[name] for name in self.names)

    def get(self, cell: C) -> Row | None:
        """Return the row of a cell, or None if it has not been measured yet."""
        return self._rows.get(self._key({**asdict(cell), **self.shared}))

    def rows(self) -> list[Row]:
        """Return every stored row, in the order in which they were added."""
        return list(self._rows.values())

    def cells(self) -> Iterator[tuple[C, Row]]:
        """Return each stored cell that has the shared settings, with its row."""
        for row in self._rows.values():
            if all(row.get(name) == value for name, value in self.shared.items()):
                yield (
                    self.cell(**{field.name: row[field.name] for field in fields(self.cell) if field.name in row}),
                    row,
                )

    def add(self, cell: C, measured: Mapping[str, Any]) -> Row:
        """Append the row of a cell and return it."""
        row = {**asdict(cell), **self.shared, **measured}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            file.seek(0)
            whole, _, last = file.read().rpartition(b"\n")
            if last and not _is_json(last):  # the incomplete last line of a killed sweep
                file.truncate(len(whole) + 1 if whole else 0)
            elif last:
                file.write(b"\n")
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows[self._key(row)] = row
        return row

    def accuracy(self, cell: C) -> float | None:
        """Return the accuracy of a cell in percent, None if it is infeasible or unknown. A diverged run counts as chance."""
        row = self.get(cell)
        if row is None or row["status"] == INFEASIBLE:
            return None
        return 10.0 if row["status"] == DIVERGED else 100 * float(row["accuracy"])

    def accuracies(self, cells: Iterable[C]) -> list[float]:
        """Return the accuracies in percent of those cells that have one."""
        return [accuracy for accuracy in map(self.accuracy, cells) if accuracy is not None]


def sweep(cells: Iterable[C], measure: Callable[[C], Row], store: Store[C], *, jobs: int = 1) -> Iterator[Row]:
    """Measure the cells that are not stored, in order, `jobs` at a time; store and yield each when it is done.

    Each job is a process with one thread: two cells in parallel are faster than one on two threads.
    """
    todo = [cell for cell in dict.fromkeys(cells) if store.get(cell) is None]
    if jobs == 1 or len(todo) <= 1:
        for cell in todo:
            yield store.add(cell, measure(cell))
        return
    context = get_context("spawn")  # a fork of a process that has used PyTorch's threads can hang
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_in_a_worker) as pool:
        running = {pool.submit(measure, cell): cell for cell in todo}
        try:
            while running:
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield store.add(running.pop(done), done.result())
        finally:
            for left in running:
                left.cancel()


def trained(measure: Callable[[], Row]) -> Row:
    """Return the result of `measure` with its status and wall time; an infeasible or diverged run is a result too."""
    from slackwater.training.loop import TrainingDiverged

    began = time.perf_counter()
    try:
        row = {"status": TRAINED, **measure()}
    except InfeasibleError as error:
        row = {"status": INFEASIBLE, "note": str(error)}
    except TrainingDiverged as error:
        row = {"status": DIVERGED, "note": str(error)}
    return {**row, "seconds": round(time.perf_counter() - began, 1)}


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _in_a_worker() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    logging.getLogger("slackwater.training").setLevel(logging.ERROR)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings about clients that never train: the rows contain them, and they would hide the progress."""
    logger = logging.getLogger("slackwater.training")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
