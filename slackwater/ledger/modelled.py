"""What a plan says each slot costs, as lines of the ledger: the modelled run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property

import numpy as np

from slackwater.carbon.traces import Provenance
from slackwater.ledger.ledger import Charge, IntensityKind
from slackwater.planning.plan import Plan
from slackwater.units import energy_kwh

_ESTIMATED: IntensityKind = "estimated"


class ModelledCharges:
    """Lines for the slots of a plan.

    Over all its slots they add up to the plan's emissions: training, idle and server.
    """

    def __init__(self, plan: Plan, *, note: str = "") -> None:
        self._plan = plan
        self._problem = plan.problem
        self._costs = plan.problem.costs
        self._matrix = plan.matrix
        self._note = note
        minutes = self._problem.round_minutes or self._problem.traces.slot_minutes
        self._round = timedelta(minutes=minutes)
        self._slot = timedelta(minutes=self._problem.traces.slot_minutes)

    @property
    def slots(self) -> int:
        """Slots until the run is over."""
        return self._problem.rounds + self._plan.end

    @cached_property
    def idle_clients(self) -> list[int]:
        """Clients that draw power while they wait."""
        return [int(client) for client in np.flatnonzero(self._costs.idle_kwh > 0)]

    def of(self, first: int, last: int) -> list[Charge]:
        """Lines of the slots first .. last: idle draw in each of them, training and server where anyone trains."""
        lines: list[Charge] = []
        for slot in range(first, last + 1):
            lines.extend(self._client(slot, client, idle=True) for client in self.idle_clients)
            lines.extend(
                self._client(slot, int(client), idle=False) for client in np.flatnonzero(self._matrix[:, slot])
            )
            lines.extend(self._server(slot))
        return lines

    def _client(self, slot: int, client: int, *, idle: bool) -> Charge:
        costs, start = self._costs, self._problem.slot_start(slot)
        energy = float((costs.idle_kwh if idle else costs.energy_kwh)[client])
        intensity = float(costs.intensity[costs.row[client], slot])
        zone = str(self._problem.fleet.zone[client])
        source, kind = self._source(zone, slot)
        return Charge(
            slot=slot,
            slot_start=start,
            client=str(self._problem.fleet.names[client]),
            zone=zone,
            cause="idle" if idle else "training",
            kg=energy * intensity,
            energy_kwh=energy,
            intensity_kg_per_kwh=intensity,
            intensity_source=source,
            intensity_kind=kind,
            factor=self._problem.traces.factor,
            started_at=start,
            ended_at=start + (self._slot if idle else self._round),
            note="" if idle else self._note,
        )

    def _server(self, slot: int) -> Iterator[Charge]:
        problem, start = self._problem, self._problem.slot_start(slot)
        if self._costs.server_kg is None or not self._matrix[:, slot].any():
            return
        server, energy, intensity = problem.server, None, None
        source, kind = "kg per slot as given in the scenario", _ESTIMATED
        if server is not None:
            energy = float(energy_kwh(server.power_w, problem.slot_hours) * server.pue)
            intensity = float(problem.traces.window(start, 1).intensity[problem.traces.index(server.zone), 0])
            source, kind = self._source(server.zone, slot)
        yield Charge(
            slot=slot,
            slot_start=start,
            client="",
            zone=server.zone if server is not None else "",
            cause="server",
            kg=float(self._costs.server_kg[slot]),
            energy_kwh=energy,
            intensity_kg_per_kwh=intensity,
            intensity_source=source,
            intensity_kind=kind,
            factor=problem.traces.factor,
            started_at=start,
            ended_at=start + self._slot,
        )

    def _source(self, zone: str, slot: int) -> tuple[str, IntensityKind]:
        """Where the intensity is from, and whether it was measured there, filled in, forecast or made up."""
        known = self._provenance.get(zone)
        if known is None:
            return "unknown", "estimated"
        start = self._problem.slot_start(slot)
        return known.source, known.certainty(start, start + self._slot)

    @cached_property
    def _provenance(self) -> dict[str, Provenance]:
        return {known.zone: known for known in self._problem.traces.provenance}
