"""Evidence for auditors: the intensity data with hash and licence, and one number recomputed in full."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from slackwater.intensity.load import TYPICAL_SOURCE
from slackwater.report.account import Snapshot
from slackwater.units import iso

RECOMPUTE = r"""
import csv, hashlib

values = {}
for line in csv.DictReader(open("lines.csv", encoding="utf-8", newline="")):
    if line["intensity_kg_per_kwh"]:
        row = line["zone"], line["slot_start"], float(line["intensity_kg_per_kwh"])
        values.setdefault((line["intensity_source"], line["intensity_kind"]), set()).add(row)
for (source, kind), rows in values.items():
    text = "".join(f"{zone},{start},{value!r}\n" for zone, start, value in sorted(rows))
    print((source, kind, hashlib.sha256(text.encode()).hexdigest()))
""".lstrip()
"""Python that recomputes the hashes from the file that --csv wrote; the report prints it."""
_TERMS = {
    "neso": ("National Energy System Operator (NESO), Carbon Intensity API", "CC BY 4.0"),
    "energycharts": ("Energy-Charts, Fraunhofer ISE", "CC BY 4.0"),
    "electricitymaps": ("Electricity Maps", "Electricity Maps' terms of service; no redistribution"),
    "watttime": ("WattTime", "WattTime's terms of service; not open"),
    "entsoe": ("ENTSO-E Transparency Platform, generation by fuel, with IPCC factors", "ENTSO-E's terms of use"),
    "eia": ("U.S. Energy Information Administration, generation by fuel, with IPCC factors", "public domain"),
    TYPICAL_SOURCE: ("Slackwater's embedded typical year, synthetic", "Apache-2.0"),
}
"""Attribution and licence by source name, as in docs/guides/providers.md."""
_OURS = ("computed by Slackwater from earlier actual values", "as those values")
_FILES = ("the user's own data", "as stated by the file's publisher")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The ledger's intensity values from one source."""

    source: str
    kind: str
    """actual, forecast, estimated, synthetic or bound."""
    zones: tuple[str, ...]
    values: int
    first: str
    """Start of the first slot with a value."""
    last: str
    sha256: str
    """Hash of the distinct lines `zone,slot_start,kg_per_kwh`, sorted, each ended by a line feed."""
    attribution: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedLine:
    """One charge with all its ledger lines: energy x intensity = kg."""

    line: int
    """Number of the charge in the ledger."""
    changed_by: tuple[int, ...]
    """Numbers of its corrections and settlements."""
    client: str
    cause: str
    zone: str
    slot_start: str
    energy_kwh: float
    intensity_kg_per_kwh: float
    source: str
    kind: str
    """Kind of the intensity."""
    kg: float
    """Sum of these lines in the ledger."""
    product_kg: float
    """Energy x intensity."""


def data_sources(run: Snapshot) -> tuple[DataSource, ...]:
    """Return the intensity data behind the ledger, by source and kind."""
    found = []
    for (source, kind), group in groupby(run.intensity_values(), key=lambda one: one[:2]):
        rows = [(zone, start, value) for _, _, zone, start, value in group]
        attribution, licence = terms_of(source, kind)
        found.append(
            DataSource(
                source=source,
                kind=kind,
                zones=tuple(dict.fromkeys(zone for zone, _, _ in rows)),
                values=len(rows),
                first=min(start for _, start, _ in rows),
                last=max(start for _, start, _ in rows),
                sha256=hash_of_values(rows),
                attribution=attribution,
                licence=licence,
            )
        )
    return tuple(found)


def hash_of_values(rows: Iterable[tuple[str, str, float]]) -> str:
    """Return the SHA-256 of zone, start of the slot and kg/kWh, as `RECOMPUTE` does."""
    text = "".join(f"{zone},{start},{value!r}\n" for zone, start, value in sorted(set(rows)))
    return hashlib.sha256(text.encode()).hexdigest()


def terms_of(source: str, kind: str) -> tuple[str, str]:
    """Return the attribution and licence of a source, joined if it names several."""
    if kind == "bound":
        return _OURS
    known = [_TERMS[name] for name in _TERMS if re.search(rf"(?<![\w/.]){re.escape(name)}(?![\w/.])", source)]
    if not known:
        return _FILES
    return "; ".join(name for name, _ in known), "; ".join(dict.fromkeys(licence for _, licence in known))


def checked_line(run: Snapshot) -> CheckedLine | None:
    """Return the largest training charge, recomputed; None if no line has energy and intensity."""
    found = run.checked_line()
    if found is None:
        return None
    charge, later = found
    newest = (later or [charge])[-1]
    lines = (charge, *later)
    energy = math.fsum(one.energy_kwh or 0.0 for one in lines)
    intensity = newest.intensity_kg_per_kwh or 0.0
    return CheckedLine(
        line=charge.id or 0,
        changed_by=tuple(one.id or 0 for one in later),
        client=charge.client,
        cause=charge.cause,
        zone=charge.zone,
        slot_start=iso(charge.slot_start),
        energy_kwh=energy,
        intensity_kg_per_kwh=intensity,
        source=newest.intensity_source,
        kind=newest.intensity_kind,
        kg=math.fsum(one.kg for one in lines),
        product_kg=energy * intensity,
    )
