"""Two standards computed from the ledger: SCI (ISO/IEC 21031) and GHG Protocol scope 2."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater.errors import ScenarioError, SlackwaterError
from slackwater.intensity.load import TYPICAL, TYPICAL_SOURCE, load_traces
from slackwater.ledger.queries import Cell, Work
from slackwater.planning.plan import Plan
from slackwater.report.account import CAUSES, FLOP, RUN, TOKEN, Account, ReportSettings, share_of
from slackwater.report.comparison import AnnualAverage
from slackwater.units import G_PER_KG

HOURS_PER_YEAR = 8760.0
_BESIDE = {cause: name for cause, name in CAUSES.items() if cause not in ("training", "idle", "startup")}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitScore:
    """SCI per further unit, as in SCI for AI."""

    unit: str
    units: float
    score_g: float
    """g CO2e per unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStep:
    """One row of the bridge from the ledger to SCI."""

    name: str
    kg: float
    is_total: bool
    """Whether it sums all rows above that are not totals."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SCI:
    """SCI = (O + M) per R, with O = E x I, hour by hour."""

    operational_kg: float
    """O: the ledger's total, plus PUE if given."""
    embodied_kg: float | None
    """M. None: not given, and not in the score."""
    units: float
    """R."""
    functional_unit: str
    energy_kwh: float
    """E, including PUE."""
    reserved_hours: float
    """TiR over all clients: training, plus waiting if the ledger has idle draw."""
    boundary: tuple[str, ...]
    """Sentences on what the score includes and excludes."""
    per: tuple[UnitScore, ...] = ()
    """Per training token and per FLOP, if their number was given."""

    @property
    def score_g(self) -> float:
        """Return the score, g CO2e per functional unit."""
        return G_PER_KG * (self.operational_kg + (self.embodied_kg or 0.0)) / self.units


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope2:
    """Purchased electricity, location-based; market-based figures need contracts, which the ledger does not have."""

    factor: str
    hourly_kg: float | None
    """At the ledger's intensity; None if that is not a grid average."""
    annual_kg: float | None
    """The same energy at annual means, for comparison."""
    direct_kg: float | None
    """Hourly, at direct intensity, which scope 2 requires if the ledger counts the life cycle. None: not known."""
    notes: tuple[str, ...]

    @property
    def reported_kg(self) -> float | None:
        """Return the figure to report: direct if known, else the ledger's."""
        return self.hourly_kg if self.direct_kg is None else self.direct_kg

    @property
    def reported_factor(self) -> str:
        """Return which emissions the reported figure counts."""
        return self.factor if self.direct_kg is None else "direct"


def embodied_share_kg(device_kg: float, reserved_hours: float, lifetime_years: float, share: float = 1.0) -> float:
    """Return M = TE x (TiR / EL) x (RR / ToR), kg: 1,000 kg over 4 years are 28.5 g an hour."""
    return device_kg * reserved_hours / (lifetime_years * HOURS_PER_YEAR) * share


def functional_units(settings: ReportSettings, *, rounds: int, client_rounds: int, accuracy: float | None) -> float:
    """Return R as given, or as counted from the run."""
    if settings.units is not None:
        return settings.units
    name = unit_name(settings.functional_unit)
    counted: dict[str, float] = {RUN: 1.0, "run": 1.0, "round": rounds, "client-round": client_rounds}
    counted["accuracy point"] = 100.0 * (accuracy or 0.0)
    counted |= {unit: units for unit, units in ((TOKEN, settings.tokens), (FLOP, settings.flops)) if units is not None}
    if name in (TOKEN, FLOP) and name not in counted:
        raise ScenarioError(
            f"The run does not record its number of {name!r}. Give it with --{'tokens' if name == TOKEN else 'flops'}."
        )
    if name not in counted:
        known = ", ".join(f"'{one}'" for one in counted if one != "run")
        raise ScenarioError(f"The run does not record its number of {name!r}. Give it with --units, or choose {known}.")
    if not counted[name] > 0:
        raise ScenarioError(f"The run has no {name} yet. Choose another functional unit, or give --units.")
    return counted[name]


def unit_name(text: str) -> str:
    """Return the unit's name: `per round`, `Round` and `rounds` become `round`; other texts stay as they are."""
    name = " ".join(text.split())
    name = name[4:] if name.lower().startswith("per ") else name
    plain = name.lower().replace("client round", "client-round")
    plain = plain[:-1] if plain.endswith("s") else plain
    plain = {"token": TOKEN, "flop": FLOP}.get(plain, plain)
    return plain if plain in (RUN, "run", "round", "client-round", "accuracy point", TOKEN, FLOP) else name


def sci(
    plan: Plan, work: Sequence[Work], total_kg: float, energy_kwh: float, units: float, settings: ReportSettings
) -> SCI:
    """Return the SCI score of a run."""
    pue_of = {str(name): float(pue) for name, pue in zip(plan.problem.fleet.names, plan.problem.fleet.pue, strict=True)}
    pue_of[""] = plan.problem.server.pue if plan.problem.server is not None else 1.0
    # Only sites without a PUE in the scenario: the ledger includes the scenario's. The network has no site.
    plain = [one for one in work if pue_of.get(one.client, 1.0) == 1.0 and one.cause != "network"]
    more = (settings.pue or 1.0) - 1.0
    hours = reserved_hours(plan, work)
    embodied = settings.embodied_total_kg
    if settings.embodied_kg is not None:
        embodied = embodied_share_kg(settings.embodied_kg, hours, settings.lifetime_years)
    operational = math.fsum([total_kg, *(more * one.kg for one in plain)])
    grams = G_PER_KG * (operational + (embodied or 0.0))
    given = [(TOKEN, settings.tokens), (FLOP, settings.flops)]
    return SCI(
        operational_kg=operational,
        embodied_kg=embodied,
        units=units,
        functional_unit=unit_name(settings.functional_unit),
        energy_kwh=math.fsum([energy_kwh, *(more * one.energy_kwh for one in plain)]),
        reserved_hours=hours,
        boundary=_boundary(plan, work, settings, hours, pue_of),
        per=tuple(UnitScore(unit=name, units=n, score_g=grams / n) for name, n in given if n is not None),
    )


def bridge(found: Account, score: SCI, settings: ReportSettings) -> tuple[BridgeStep, ...]:
    """Return the rows from the ledger's lines to the emissions that SCI divides."""
    by_cause = {group.key[0]: group for group in found.by_cause.groups}
    steps = [
        BridgeStep(
            name=CAUSES.get(cause, cause),
            kg=by_cause[cause].kg if cause in by_cause else 0.0,
            is_total=False,
            note="" if cause in by_cause else "no line",
        )
        for cause in {**CAUSES, **by_cause}
    ]
    steps.append(BridgeStep(name="the ledger's total", kg=found.total_kg, is_total=True, note="sum of all lines"))
    more = "not given" if settings.pue is None else f"--pue {settings.pue:g}; the scenario's PUE is in the lines above"
    overhead = score.operational_kg - found.total_kg
    steps.append(BridgeStep(name="PUE from --pue", kg=overhead, is_total=False, note=more))
    steps.append(BridgeStep(name="O, operational", kg=score.operational_kg, is_total=True))
    embodied = score.embodied_kg or 0.0
    how = "not given" if score.embodied_kg is None else f"{score.reserved_hours:g} device-hours"
    how = "given in total" if settings.embodied_total_kg is not None else how
    steps.append(BridgeStep(name="M, embodied", kg=embodied, is_total=False, note=how))
    steps.append(BridgeStep(name="O + M", kg=score.operational_kg + embodied, is_total=True))
    return tuple(steps)


def reserved_hours(plan: Plan, work: Sequence[Work]) -> float:
    """Return the hours for which the clients' devices were reserved for the run, summed over clients."""
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
        "I is the location-based intensity of each zone and slot; market-based instruments are excluded.",
        f"Idle draw of {idle} of {len(plan.problem.fleet)} clients is included."
        if idle
        else "Idle draw is not included: the scenario gives none (idle_w). SCI also requires reserved energy.",
    ]
    charged = [name for cause, name in _BESIDE.items() if cause in causes]
    absent = [name for cause, name in _BESIDE.items() if cause not in causes]
    said += [f"Included besides training: {', '.join(charged)}."] if charged else []
    said += [f"Not included, because nothing was given or charged: {', '.join(absent)}."] if absent else []
    if settings.pue is not None:
        said.append(f"PUE {settings.pue:g} was applied to sites without one in the scenario.")
    said.append(f"The scenario has a PUE for {known} of {len(plan.problem.fleet)} clients; the ledger includes it.")
    if settings.embodied_kg is not None:
        said.append(
            f"M: {settings.embodied_kg:g} kg a device over {settings.lifetime_years:g} years, for {hours:g} device-hours; "
            "the whole device is reserved (RR / ToR = 1). The server's is not included."
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
    """Return location-based emissions by hour; `energy` is kWh by zone and slot."""
    factor = plan.problem.traces.factor
    notes = [
        "This is scope 2 for the buyer of the clients' electricity; for a coordinator who does not buy it, it is scope 3.",
        "Market-based figures are not given: the ledger has no certificates or contracts.",
    ]
    if factor not in ("direct", "lifecycle"):
        notes.insert(0, f"The intensity is {factor}; scope 2 requires grid averages, so there is no scope 2 figure.")
        return Scope2(factor=factor, hourly_kg=None, annual_kg=None, direct_kg=None, notes=tuple(notes))
    direct = total_kg if factor == "direct" else None
    if factor == "lifecycle":
        notes.insert(
            0,
            "The ledger's intensity counts the life cycle; its part upstream of the power station belongs to scope 3, "
            "category 3. Scope 2 in the strict sense needs direct intensity.",
        )
        direct, said = _direct_kg(plan, energy, data)
        notes.insert(1, said)
        direct = None if direct is None else direct + kg_without_energy
        shown = "The direct figure is shown first" if direct is not None else "The life-cycle figure is shown instead"
        notes.insert(0, f"{shown}: scope 2 counts emissions where electricity is generated.")
    if kg_without_energy:
        notes.append(f"{kg_without_energy:.4f} kg without energy are counted as entered.")
    return Scope2(factor=factor, hourly_kg=total_kg, annual_kg=annual.kg, direct_kg=direct, notes=tuple(notes))


def _direct_kg(plan: Plan, energy: Mapping[tuple[str, int], float], data: str | None) -> tuple[float | None, str]:
    """Return the ledger's energy at direct intensity, kg, and a note; None if neither data nor typical year has it."""
    traces = plan.problem.traces
    typical = bool(traces.provenance) and all(one.source == TYPICAL_SOURCE for one in traces.provenance)
    if not energy or (data is None and not typical):
        return None, "Direct intensity is not available. Give a folder that has it with --data."
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
        return None, f"Direct intensity is not available: {error}"
    row = {zone: number for number, zone in enumerate(found.zones)}
    kg = math.fsum(kwh * float(found.intensity[row[zone], slot]) for (zone, slot), kwh in energy.items())
    source = "the embedded typical year (synthetic)" if data is None else Path(data).name or data
    return kg, f"The direct figure is the ledger's energy, hour by hour, at the direct intensity of {source}."


MEANING = {
    "actual": "measured or reported for that hour by the source",
    "forecast": "forecast at the time of the charge",
    "estimated": "filled in or estimated by the source",
    "bound": "an upper bound, until the actual value is known",
    "synthetic": "typical profiles, not measured: shows the method, not real emissions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """What the total is based on, and its range if one was given."""

    charged_kg_by_intensity: dict[str, float]
    """Charges by kind of intensity, without corrections and settlements, so that shares add up."""
    charged_kg_by_method: dict[str, float]
    unsettled_kg: float
    low_kg: float | None
    high_kg: float | None
    relative: float | None
    """Relative range: 0.1 is ± 10 %. None: not quantified."""
    sentences: tuple[str, ...]


def uncertainty(account: Account, cells: Sequence[Cell], unsettled_kg: float, settings: ReportSettings) -> Uncertainty:
    """Return the uncertainty of the total."""
    charged = [cell for cell in cells if cell.kind == "charge"]
    given = [value for value in (settings.intensity_uncertainty, settings.energy_uncertainty) if value is not None]
    relative = math.hypot(*given) if given else None
    total = account.total_kg
    return Uncertainty(
        charged_kg_by_intensity=_sums((cell.intensity_kind, cell.kg) for cell in charged),
        charged_kg_by_method=_sums((cell.method, cell.kg) for cell in charged),
        unsettled_kg=unsettled_kg,
        low_kg=None if relative is None else max(0.0, total * (1 - relative)),
        high_kg=None if relative is None else total * (1 + relative),
        relative=relative,
        sentences=tuple(_sentences(account, charged, unsettled_kg, settings)),
    )


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    grouped: dict[str, list[float]] = {}
    for key, kg in pairs:
        grouped.setdefault(key, []).append(kg)
    return {key: math.fsum(part) for key, part in sorted(grouped.items())}


def _sentences(account: Account, charged: Sequence[Cell], unsettled_kg: float, settings: ReportSettings) -> list[str]:
    said = []
    kinds = {cell.intensity_kind for cell in charged}
    methods = {cell.method for cell in charged}
    for difference in account.differences:
        share = share_of(difference.absolute_kg, difference.charged_kg)
        unsigned = f"; the absolute changes are {share} of them" if share else ""
        what = "Settled against actual intensity" if difference.kind == "settlement" else "Corrected"
        said.append(
            f"{what}: {difference.lines:,} charges of {difference.charged_kg:.4f} kg changed by {difference.kg:+.4f} kg "
            f"in total{unsigned}."
        )
    if kinds & {"forecast", "bound"}:
        said.append(
            f"{unsettled_kg:.4f} kg are charged at forecasts or upper bounds that no actual value has replaced yet."
        )
    said += [
        f"{one.client} reported {one.reported_kwh:.4g} kWh in slot {one.slot}, more than is possible. The bound of "
        f"{one.bound_kwh:.4g} kWh is charged until a person confirms the report."
        for one in account.quarantined
    ]
    if "synthetic" in kinds:
        said.append("Synthetic intensity has the statistics of a real year but records no real hour.")
    if "measured" not in methods:
        said.append(
            "No energy was measured: it is power x time from the scenario. The difference from a meter is not quantified."
        )
    for name, value in (("intensity", settings.intensity_uncertainty), ("energy", settings.energy_uncertainty)):
        said.append(
            f"Uncertainty of the {name}: ± {value:.1%}, given by the user."
            if value is not None
            else f"Uncertainty of the {name}: not quantified; give it with --{name}-uncertainty."
        )
    if settings.intensity_uncertainty is not None and settings.energy_uncertainty is not None:
        said.append(
            "The two are combined as the root of the sum of squares. Each is one error common to all lines, "
            "independent of the other (IPCC 2006 guidelines, volume 1, chapter 3, approach 1)."
        )
    said.append("Grid averages do not show what one more kWh causes; marginal effects are not counted.")
    return said
