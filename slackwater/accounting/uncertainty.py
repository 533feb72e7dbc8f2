"""How sure the figures are: what the ledger itself shows, and a range only where somebody gives one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slackwater.accounting.account import Account, share_of
from slackwater.accounting.settings import ReportSettings
from slackwater.ledger.queries import Cell

MEANING = {
    "actual": "measured or reported for that hour by the source",
    "forecast": "expected when it was charged",
    "estimated": "filled in or estimated by the source",
    "bound": "a stated upper bound, until the actual value is known",
    "synthetic": "typical profiles, not measured: shows the method, and is no evidence of real emissions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """What is known, and a range where it was given."""

    charged_kg_by_intensity: dict[str, float]
    """Charges by the kind of their intensity; corrections and settlements are left out, so that shares add up."""
    charged_kg_by_method: dict[str, float]
    unsettled_kg: float
    low_kg: float | None
    high_kg: float | None
    relative: float | None
    """Of the range, 0.1 for +- 10 %; None: not quantified."""
    sentences: tuple[str, ...]


def uncertainty(account: Account, cells: Sequence[Cell], unsettled_kg: float, settings: ReportSettings) -> Uncertainty:
    """Return what is known about how certain the total is."""
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
        unsigned = f" and {share} without signs" if share else ""
        what = "Settled against actual intensity" if difference.kind == "settlement" else "Corrected"
        said.append(
            f"{what}: {difference.lines:,} charges of {difference.charged_kg:.4f} kg, by {difference.kg:+.4f} kg "
            f"together{unsigned}."
        )
    if kinds & {"forecast", "bound"}:
        said.append(f"{unsettled_kg:.4f} kg rest on forecasts, or on upper bounds, that no actual value has replaced.")
    if "synthetic" in kinds:
        said.append("Synthetic intensity resembles a real year in its statistics and records no hour of it.")
    if "measured" not in methods:
        said.append(
            "No energy was measured: it is power x time as the scenario gives them. How far that is from the meter is "
            "not quantified."
        )
    for name, value in (("intensity", settings.intensity_uncertainty), ("energy", settings.energy_uncertainty)):
        said.append(
            f"Of the {name}: ± {value:.1%}, as given by the user."
            if value is not None
            else f"Of the {name}: not quantified; give a range with --{name}-uncertainty."
        )
    if settings.intensity_uncertainty is not None and settings.energy_uncertainty is not None:
        said.append(
            "The two are combined as the root of the sum of squares, each taken as one error common to all lines and "
            "independent of the other (IPCC 2006 guidelines, volume 1, chapter 3, approach 1)."
        )
    said.append("Grid averages are not what one more kWh causes; marginal effects are not counted.")
    return said
