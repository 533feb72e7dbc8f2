"""Two standards, as arithmetic on what the ledger says: SCI (ISO/IEC 21031) and GHG Protocol scope 2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.accounting.comparison import AnnualAverage
from slackwater.accounting.reading import Work
from slackwater.accounting.settings import RUN, ReportSettings
from slackwater.carbon.load import TYPICAL, TYPICAL_SOURCE, load_traces
from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.planning.plan import Plan
from slackwater.units import G_PER_KG

HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SCI:
    """SCI = (O + M) per R, with O = E x I, hour by hour."""

    operational_kg: float
    """O: the ledger's total, and PUE where it was given."""
    embodied_kg: float | None
    """M; None where nobody said, and then it is not in the score."""
    units: float
    """R."""
    functional_unit: str
    energy_kwh: float
    """E, PUE included."""
    reserved_hours: float
    """TiR over all clients: training, and waiting where idle draw is in the ledger."""
    boundary: tuple[str, ...]
    """What is in the score and what is not, in sentences."""

    @property
    def score_g(self) -> float:
        """g CO2e per functional unit."""
        return G_PER_KG * (self.operational_kg + (self.embodied_kg or 0.0)) / self.units


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope2:
    """Purchased electricity, location-based; market-based figures need contracts that a ledger does not hold."""

    factor: str
    hourly_kg: float | None
    """With the ledger's own intensity; None where that is no grid average."""
    annual_kg: float | None
    """The same energy at annual means, for comparison."""
    direct_kg: float | None
    """Hourly, at direct intensity: what scope 2 asks for where the ledger counts the life cycle. None where not known."""
    notes: tuple[str, ...]


def embodied_share_kg(device_kg: float, reserved_hours: float, lifetime_years: float, share: float = 1.0) -> float:
    """M = TE x (TiR / EL) x (RR / ToR), kg: 1,000 kg over 4 years are 28.5 g an hour."""
    return device_kg * reserved_hours / (lifetime_years * HOURS_PER_YEAR) * share


def functional_units(settings: ReportSettings, *, rounds: int, client_rounds: int, accuracy: float | None) -> float:
    """R: as given, or counted where the functional unit is one that the run knows."""
    if settings.units is not None:
        return settings.units
    name = unit_name(settings.functional_unit)
    counted: dict[str, float] = {RUN: 1.0, "run": 1.0, "round": rounds, "client-round": client_rounds}
    counted["accuracy point"] = 100.0 * (accuracy or 0.0)
    if name not in counted:
        known = ", ".join(f"'{one}'" for one in counted if one != "run")
        raise ScenarioError(
            f"How many of {name!r} the run made is not in its file: give the number with --units, or choose {known}."
        )
    if not counted[name] > 0:
        raise ScenarioError(f"The run has no {name} to count so far. Choose another functional unit, or give --units.")
    return counted[name]


def unit_name(text: str) -> str:
    """`per round`, `Round` and `rounds` are `round`; a text of the user's own stays as it is."""
    name = " ".join(text.split())
    name = name[4:] if name.lower().startswith("per ") else name
    plain = name.lower().replace("client round", "client-round")
    plain = plain[:-1] if plain.endswith("s") else plain
    return plain if plain in (RUN, "run", "round", "client-round", "accuracy point") else name


def sci(
    plan: Plan, work: Sequence[Work], total_kg: float, energy_kwh: float, units: float, settings: ReportSettings
) -> SCI:
    """The score of a run."""
    pue_of = {str(name): float(pue) for name, pue in zip(plan.problem.fleet.names, plan.problem.fleet.pue, strict=True)}
    pue_of[""] = plan.problem.server.pue if plan.problem.server is not None else 1.0
    # Only sites without a PUE of their own: theirs is in the ledger's energy already.
    plain = [one for one in work if pue_of.get(one.client, 1.0) == 1.0]
    more = (settings.pue or 1.0) - 1.0
    hours = reserved_hours(plan, work)
    embodied = settings.embodied_total_kg
    if settings.embodied_kg is not None:
        embodied = embodied_share_kg(settings.embodied_kg, hours, settings.lifetime_years)
    return SCI(
        operational_kg=math.fsum([total_kg, *(more * one.kg for one in plain)]),
        embodied_kg=embodied,
        units=units,
        functional_unit=unit_name(settings.functional_unit),
        energy_kwh=math.fsum([energy_kwh, *(more * one.energy_kwh for one in plain)]),
        reserved_hours=hours,
        boundary=_boundary(plan, work, settings, hours, pue_of),
    )


def reserved_hours(plan: Plan, work: Sequence[Work]) -> float:
    """Hours for which the clients' devices were kept for the run, all together."""
    slot_hours = plan.problem.traces.slot_minutes / 60
    round_hours = (plan.problem.round_minutes or plan.problem.traces.slot_minutes) / 60
    waiting = {one.client: one.slots * slot_hours for one in work if one.cause == "idle"}
    training = {one.client: one.slots * round_hours for one in work if one.cause == "training"}
    return math.fsum(max(waiting.get(name, 0.0), training.get(name, 0.0)) for name in {**waiting, **training})


def _boundary(
    plan: Plan, work: Sequence[Work], settings: ReportSettings, hours: float, pue_of: Mapping[str, float]
) -> tuple[str, ...]:
    causes = {one.cause for one in work}
    idle = len({one.client for one in work if one.cause == "idle"})
    known = sum(pue != 1.0 for name, pue in pue_of.items() if name)
    said = [
        "I is the location-based intensity of each zone and slot; market-based instruments are left out.",
        f"Idle draw of {idle} of {len(plan.problem.fleet)} clients is in it."
        if idle
        else "Idle draw is not in it: the scenario gives none (idle_w). SCI asks for reserved energy too.",
        "The server is in it." if "server" in causes else "The server and the network are not in it: none was given.",
    ]
    if settings.pue is not None:
        said.append(f"PUE {settings.pue:g} was applied to the sites for which the scenario has none.")
    said.append(f"The scenario has a PUE for {known} of {len(plan.problem.fleet)} clients; theirs is in the ledger.")
    if settings.embodied_kg is not None:
        said.append(
            f"M: {settings.embodied_kg:g} kg a device over {settings.lifetime_years:g} years, for {hours:g} device-hours; "
            "the whole device is reserved (RR / ToR = 1). The server's is not in it."
        )
    elif settings.embodied_total_kg is not None:
        said.append("M was given in total.")
    else:
        said.append("Embodied emissions (M) were not given and are not in the score.")
    return tuple(said)


def scope2(
    plan: Plan,
    total_kg: float,
    kg_without_energy: float,
    energy: Mapping[tuple[str, int], float],
    annual: AnnualAverage,
    data: str | None,
) -> Scope2:
    """Location-based emissions, hour by hour; `energy` is kWh by zone and slot."""
    factor = plan.problem.traces.factor
    notes = [
        "Scope 2 of whoever buys the clients' electricity; for a coordinator who does not, it is scope 3.",
        "Market-based figures are not given: certificates and contracts are not in the ledger.",
    ]
    if factor not in ("direct", "lifecycle"):
        notes.insert(0, f"The intensity is {factor}; scope 2 asks for grid averages, so no scope 2 figure is given.")
        return Scope2(factor=factor, hourly_kg=None, annual_kg=None, direct_kg=None, notes=tuple(notes))
    direct = total_kg if factor == "direct" else None
    if factor == "lifecycle":
        notes.insert(
            0,
            "The ledger's intensity counts the life cycle: the part upstream of the power station belongs to scope 3, "
            "category 3. A scope 2 figure in the strict sense needs direct intensity.",
        )
        direct, said = _direct_kg(plan, energy, data)
        notes.insert(1, said)
        direct = None if direct is None else direct + kg_without_energy
    if kg_without_energy:
        notes.append(f"{kg_without_energy:.4f} kg without energy are counted as they were given.")
    return Scope2(factor=factor, hourly_kg=total_kg, annual_kg=annual.kg, direct_kg=direct, notes=tuple(notes))


def _direct_kg(plan: Plan, energy: Mapping[tuple[str, int], float], data: str | None) -> tuple[float | None, str]:
    """The ledger's energy at direct intensity, where the user's data or the typical year has it."""
    traces = plan.problem.traces
    typical = bool(traces.provenance) and all(one.source == TYPICAL_SOURCE for one in traces.provenance)
    if not energy or (data is None and not typical):
        return None, "Direct intensity is not at hand; a folder that has it can be given with --data."
    zones, slots = sorted({zone for zone, _ in energy}), max(slot for _, slot in energy) + 1
    hours = -(-slots * traces.slot_minutes // 60)
    hours += -hours * 60 % traces.slot_minutes // 60  # whole slots
    try:
        found = load_traces(
            TYPICAL if data is None else Path(data),
            zones=zones,
            start=plan.problem.first_slot,
            hours=hours,
            factor="direct",
            slot_minutes=traces.slot_minutes,
        )
    except SlackwaterError as error:
        return None, f"Direct intensity is not at hand: {error}"
    row = {zone: number for number, zone in enumerate(found.zones)}
    kg = math.fsum(kwh * float(found.intensity[row[zone], slot]) for (zone, slot), kwh in energy.items())
    source = "the embedded typical year (synthetic)" if data is None else Path(data).name or data
    return kg, f"The direct figure is the ledger's energy, hour by hour, at the direct intensity of {source}."
