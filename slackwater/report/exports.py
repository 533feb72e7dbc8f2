"""Files for other tools: ledger lines as CSV, CodeCarbon rows, and the snippet of a model card."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from slackwater.charts.style import printable
from slackwater.ledger.queries import Work
from slackwater.ledger.schema import KINDS
from slackwater.report.account import SERVER, snapshot
from slackwater.report.standards import reserved_hours
from slackwater.report.statement import Statement
from slackwater.units import G_PER_KG

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""A spreadsheet may evaluate a text that starts with one of these (OWASP, CSV injection)."""


def safe(value: object) -> object:
    """Return the cell with a ' before text that could be a formula; numbers stay numbers, and None is an empty cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        # Replace characters that move the cursor, turn the writing direction or end the text for some readers.
        text = "".join(c if c.isprintable() or c in "\t\r\n" else "\N{REPLACEMENT CHARACTER}" for c in value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a CSV file as text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([safe(value) for value in row] for row in rows)
    return out.getvalue()


CODECARBON_COLUMNS = (
    "timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions", "emissions_rate", "cpu_power",
    "gpu_power", "ram_power", "cpu_energy", "gpu_energy", "ram_energy", "energy_consumed", "water_consumed",
    "country_name", "country_iso_code", "region", "cloud_provider", "cloud_region", "os", "python_version",
    "codecarbon_version", "cpu_count", "cpu_model", "gpu_count", "gpu_model", "longitude", "latitude",
    "ram_total_size", "tracking_mode", "cpu_utilization_percent", "gpu_utilization_percent",
    "ram_utilization_percent", "ram_used_gb", "on_cloud", "pue", "wue",
)  # fmt: skip
_SUMMED = ("emissions", "emissions_rate", "energy_consumed")


def emissions_csv(statement: Statement) -> str:
    """Return the file's text: the project is the client's name, the run id the run's number."""
    if statement.run.kind == "live":
        columns: tuple[str, ...] = CODECARBON_COLUMNS
        rows = list(_rows(statement))
    else:
        label = KINDS[statement.run.kind].label
        columns = (*CODECARBON_COLUMNS, *(f"{label}_{name}" for name in _SUMMED))
        rows = [_unmistakable(row, label) for row in _rows(statement)]
    return csv_text(columns, ([row.get(name) for name in columns] for row in rows))


def _unmistakable(row: dict[str, object], label: str) -> dict[str, object]:
    """Return a row that cannot be mistaken for measured emissions, in any column or sum."""
    kept = {name: value for name, value in row.items() if name not in _SUMMED}
    return kept | {
        "project_name": f"{row['project_name']} ({label})",
        "experiment_id": f"{row['experiment_id']}-{label}",
        "tracking_mode": label,
        **{f"{label}_{name}": row[name] for name in _SUMMED},
    }


def _rows(statement: Statement) -> Iterator[dict[str, object]]:
    fleet = statement.plan.problem.fleet
    pue = {str(name): float(value) for name, value in zip(fleet.names, fleet.pue, strict=True)}
    if statement.plan.problem.server is not None:
        pue[""] = statement.plan.problem.server.pue
    zones: dict[str, list[str]] = {}
    for group in statement.account.by_client.groups:
        zones.setdefault(group.key[0], []).append(group.key[1])
    by_client: dict[str, list[Work]] = {}
    for one in statement.work:
        by_client.setdefault(one.client, []).append(one)
    for client, parts in by_client.items():
        seconds = 3600 * (reserved_hours(statement.plan, parts) if client else _server_hours(statement, parts))
        kg = math.fsum(one.kg for one in parts)
        yield {
            "timestamp": max((one.last for one in parts if one.last), default="")[:19],
            "project_name": client or SERVER,
            "run_id": statement.run.id,
            "experiment_id": "slackwater",
            "duration": seconds,
            "emissions": kg,
            "emissions_rate": kg / seconds if seconds else 0.0,
            "energy_consumed": math.fsum(one.energy_kwh for one in parts),
            "region": "; ".join(dict.fromkeys(zones.get(client, ()))),
            "tracking_mode": "machine",
            "on_cloud": "N",
            "pue": pue.get(client, 1.0),
        }


def _server_hours(statement: Statement, parts: list[Work]) -> float:
    return sum(one.slots for one in parts) * statement.run.slot_minutes / 60


LINE_COLUMNS = (
    "id", "slot", "slot_start", "client", "zone", "cause", "kind", "attempt", "planned", "started_at", "ended_at",
    "energy_kwh", "intensity_kg_per_kwh", "intensity_source", "intensity_kind", "factor", "kg", "method", "corrects",
    "note", "booked_at", "run_kind",
)  # fmt: skip


def lines_csv(statement: Statement) -> str:
    """Return the charges of a statement as CSV; kg have all digits, so that the column adds up to the total.

    Every row names the kind of run, so that an excerpt does too.
    """
    with snapshot(Path(statement.run.folder)) as run:
        kind = {"run_kind": KINDS[statement.run.kind].label}
        lines = (line | kind for line in run.lines(statement.account.last_line))
        return csv_text(LINE_COLUMNS, ([line[name] for name in LINE_COLUMNS] for line in lines))


_MOST_ZONES = 20


def model_card(statement: Statement) -> str:
    """Return YAML front matter, in which emissions are in grams as the Hub requires, and a sentence with the score."""
    run = statement.run
    zones = list(run.zones)
    more = f" and {len(zones) - _MOST_ZONES} more" if len(zones) > _MOST_ZONES else ""
    synthetic = ", synthetic intensity: not a record of real emissions" if run.synthetic else ""
    words = KINDS[run.kind]
    kind = f"{words.label} run" if run.kind == "live" else f"{words.label} run, not measured emissions"
    source = (
        f"{kind}: Slackwater {run.slackwater}, location-based, hourly {run.factor} intensity, "
        f"energy {' and '.join(statement.uncertainty.charged_kg_by_method) or 'unknown'}{synthetic}"
    )
    scored = f"{run.metric.title} {run.metric.text(run.score)} on the test set{run.metric.direction}, after {run.rounds:,} rounds."
    return "\n".join(
        [
            "---",
            "co2_eq_emissions:",
            f"  emissions: {G_PER_KG * statement.account.total_kg:.3f}",
            f"  source: {_quoted(source)}",
            '  training_type: "pre-training"  # or "fine-tuning", if the model had been trained before',
            f"  geographical_location: {_quoted(', '.join(zones[:_MOST_ZONES]) + more)}",
            f"  hardware_used: {_quoted(f'{run.clients} federated clients, {run.client_rounds} client-rounds')}",
            "---",
            *([] if run.score is None else ["", scored]),
            "",
        ]
    )


def _quoted(text: str) -> str:
    """Return a YAML string. JSON escapes as YAML does except beyond 16 bits, so those characters stay as they are."""
    return json.dumps(printable(text), ensure_ascii=False)
