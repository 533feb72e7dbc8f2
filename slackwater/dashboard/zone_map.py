"""The Map view: where the zones are, how dirty they are hour by hour, and who is in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from slackwater.dashboard.library import Library
from slackwater.dashboard.plans import most_slack
from slackwater.dashboard.zones import place
from slackwater.report.view import has_times
from slackwater.units import G_PER_KG, iso


def map_answer(library: Library, source: str) -> dict[str, Any]:
    """Return every zone with its place (None if unknown), intensity by slot and number of clients."""
    problem = library.problem(source).problem
    wide = problem.with_settings(slack=most_slack(problem))
    names, counts = np.unique(np.asarray(problem.fleet.zone, dtype=str), return_counts=True)
    zones = []
    for row, (zone, clients) in enumerate(zip(names.tolist(), counts.tolist(), strict=True)):
        where = place(zone)
        zones.append(
            {
                "zone": zone,
                "longitude": None if where is None else where[0],
                "latitude": None if where is None else where[1],
                "clients": clients,
                "intensity_g_per_kwh": np.round(wide.costs.intensity[row] * G_PER_KG, 2).tolist(),
            }
        )
    return {
        "source": source,
        "start": iso(problem.first_slot) if has_times(problem) else None,
        "slot_minutes": problem.traces.slot_minutes,
        "slots": wide.horizon,
        "synthetic": problem.traces.synthetic,
        "zones": zones,
    }
