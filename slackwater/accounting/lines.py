"""The ledger's lines as CSV: the evidence under the report, one row for each line, in the order of booking."""

from __future__ import annotations

from pathlib import Path

from slackwater.accounting.cells import csv_text
from slackwater.accounting.reading import snapshot
from slackwater.accounting.statement import Statement
from slackwater.ledger.kinds import KINDS

COLUMNS = (
    "id", "slot", "slot_start", "client", "zone", "cause", "kind", "attempt", "planned", "started_at", "ended_at",
    "energy_kwh", "intensity_kg_per_kwh", "intensity_source", "intensity_kind", "factor", "kg", "method", "corrects",
    "note", "booked_at", "run_kind",
)  # fmt: skip


def lines_csv(statement: Statement) -> str:
    """Return the charges of a statement as CSV; kg have all their digits, so that the column adds up to the total.

    Every row says what kind of run it is of, so that a part of the table still does.
    """
    with snapshot(Path(statement.run.folder)) as run:
        kind = {"run_kind": KINDS[statement.run.kind].label}
        lines = (line | kind for line in run.lines(statement.account.last_line))
        return csv_text(COLUMNS, ([line[name] for name in COLUMNS] for line in lines))
