"""emissions.csv in CodeCarbon's columns, one row for each client, so that tools which read CodeCarbon read Slackwater.

What the ledger does not know stays empty: the split into CPU, GPU and RAM, the machine, the place. `energy_consumed`
includes PUE as the ledger's energy does, and `emissions` are the ledger's kg, at hourly intensity and not at
CodeCarbon's yearly means.

Only a live run has emitted anything by its clock. Of every other run the columns that tools add up (`emissions`,
`emissions_rate`, `energy_consumed`) are empty, and its figures are in columns of their own, named after the kind of run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from slackwater.accounting.account import SERVER
from slackwater.accounting.cells import csv_text
from slackwater.accounting.standards import reserved_hours
from slackwater.accounting.statement import Statement
from slackwater.ledger.kinds import KINDS
from slackwater.ledger.queries import Work

COLUMNS = (
    "timestamp", "project_name", "run_id", "experiment_id", "duration", "emissions", "emissions_rate", "cpu_power",
    "gpu_power", "ram_power", "cpu_energy", "gpu_energy", "ram_energy", "energy_consumed", "water_consumed",
    "country_name", "country_iso_code", "region", "cloud_provider", "cloud_region", "os", "python_version",
    "codecarbon_version", "cpu_count", "cpu_model", "gpu_count", "gpu_model", "longitude", "latitude",
    "ram_total_size", "tracking_mode", "cpu_utilization_percent", "gpu_utilization_percent",
    "ram_utilization_percent", "ram_used_gb", "on_cloud", "pue", "wue",
)  # fmt: skip
_SUMMED = ("emissions", "emissions_rate", "energy_consumed")


def emissions_csv(statement: Statement) -> str:
    """Return the file's text; the client's name is the project, the run's number the run."""
    if statement.run.kind == "live":
        columns: tuple[str, ...] = COLUMNS
        rows = list(_rows(statement))
    else:
        label = KINDS[statement.run.kind].label
        columns = (*COLUMNS, *(f"{label}_{name}" for name in _SUMMED))
        rows = [_unmistakable(row, label) for row in _rows(statement)]
    return csv_text(columns, ([row.get(name) for name in columns] for row in rows))


def _unmistakable(row: dict[str, object], label: str) -> dict[str, object]:
    """Return a row that nobody takes for measured emissions, whatever column is looked at or added up."""
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
