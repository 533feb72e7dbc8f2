"""What a plan says each slot costs, as lines of the ledger."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slackwater.ledger.ledger import Cause, Charge, IntensityKind
from slackwater.planning.costs import RoundCause
from slackwater.planning.plan import Plan
from slackwater.units import energy_kwh

_ESTIMATED: IntensityKind = "estimated"


class ModelledCharges:
    """Lines for the slots of a plan. Over all its slots they add up to the plan's emissions, cause by cause."""

    def __init__(self, plan: Plan, *, note: str = "") -> None:
        problem = plan.problem
        self._problem, self._costs, self._matrix, self._note = problem, problem.costs, plan.matrix, note
        self._round_time = timedelta(minutes=problem.round_minutes or problem.traces.slot_minutes)
        self._slot = timedelta(minutes=problem.traces.slot_minutes)
        self._idle = [int(client) for client in np.flatnonzero(problem.costs.idle_kwh > 0)]
        self._provenance = {known.zone: known for known in problem.traces.provenance}
        self.slots = problem.rounds + plan.end  # until the run is over

    @cached_property
    def _round_kwh(self) -> dict[RoundCause, NDArray[np.float64]]:
        return self._costs.round_kwh

    def of(self, first: int, last: int) -> list[Charge]:
        """Return lines of the slots first .. last: idle draw in each of them, a round and the server where anyone trains."""
        lines: list[Charge] = []
        for slot in range(first, last + 1):
            lines += [self._client(slot, client, "idle", self._costs.idle_kwh) for client in self._idle]
            for client in map(int, np.flatnonzero(self._matrix[:, slot])):
                for cause, kwh in self._round_kwh.items():
                    if cause == "training" or kwh[client] > 0:
                        lines.append(self._client(slot, client, cause, kwh))
            if self._costs.server_kg is not None and self._matrix[:, slot].any():
                lines.append(self._server(slot, float(self._costs.server_kg[slot])))
        return lines

    def _client(self, slot: int, client: int, cause: Cause, kwh: NDArray[np.float64]) -> Charge:
        costs, start, energy = self._costs, self._problem.slot_start(slot), float(kwh[client])
        intensity = float(costs.intensity[costs.row[client], slot])
        zone = str(self._problem.fleet.zone[client])
        source, kind = self._source(zone, slot)
        return Charge(
            slot=slot, slot_start=start, client=str(self._problem.fleet.names[client]), zone=zone, cause=cause,
            kg=energy * intensity, energy_kwh=energy, intensity_kg_per_kwh=intensity, intensity_source=source,
            intensity_kind=kind, factor=self._problem.traces.factor, started_at=start,
            ended_at=start + (self._slot if cause == "idle" else self._round_time),
            note=self._note if cause == "training" else "",
        )  # fmt: skip

    def _server(self, slot: int, kg: float) -> Charge:
        problem, start = self._problem, self._problem.slot_start(slot)
        server, energy, intensity = problem.server, None, None
        source, kind = "kg per slot as given in the scenario", _ESTIMATED
        if server is not None:
            energy = float(energy_kwh(server.power_w, problem.slot_hours) * server.pue)
            intensity = float(problem.traces.window(start, 1).intensity[problem.traces.index(server.zone), 0])
            source, kind = self._source(server.zone, slot)
        return Charge(
            slot=slot, slot_start=start, client="", zone=server.zone if server is not None else "", cause="server",
            kg=kg, energy_kwh=energy, intensity_kg_per_kwh=intensity, intensity_source=source, intensity_kind=kind,
            factor=problem.traces.factor, started_at=start, ended_at=start + self._slot,
        )  # fmt: skip

    def _source(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Return where the intensity is from, and whether it was measured, filled in, forecast or made up."""
        known = self._provenance.get(zone)
        if known is None:
            return "unknown", "estimated"
        start = self._problem.slot_start(slot)
        return known.origin(start, start + self._slot)
