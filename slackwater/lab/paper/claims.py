"""The paper's claims, each with a verdict computed from the stored cells alone."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackwater.lab.paper import published
from slackwater.lab.paper.figures import effects
from slackwater.lab.paper.output import Output

HOLDS, PARTLY, NOT, OPEN = "holds", "holds in part", "does not hold", "not measured yet"
_LOW = (3, 4, 5)
"""Budgets that the paper calls low, by T: up to 9.69 % of the tables' reference budget."""
_MODERATE = 50
Rows = Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence of the paper, our finding and the verdict."""

    claim: str
    found: str
    verdict: str


def claims(folder: Path) -> Output:
    """Judge all claims from the CSV files that the items wrote into `folder`."""
    read = {name: _read(folder / f"{name}.csv") for name in ("fig5", "fig6", "fig7", "table1a", "table1b", "baseline")}
    found = [
        *_fairness(read["fig5"]),
        *_correlation(read["fig6"]),
        _slack(read["fig7"]),
        _moderate(read["table1a"]),
        _window(read["table1a"], read["table1b"]),
    ]
    rows = [{"claim": one.claim, "found": one.found, "verdict": one.verdict} for one in found]
    return Output(
        name="claims", title="The paper's claims", rows=rows, notes=[f"{c.verdict}: {c.claim} {c.found}" for c in found]
    )


def _read(path: Path) -> Rows:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _verdict(checks: Sequence[bool]) -> str:
    return OPEN if not checks else HOLDS if all(checks) else PARTLY if any(checks) else NOT


def _fairness(rows: Rows) -> list[Claim]:
    by: dict[float, dict[float, float]] = {}
    for row in rows:
        by.setdefault(float(row["budget_kg"]), {})[float(row["alpha"])] = float(row["accuracy_mean"])
    made = []
    for kg, stated in published.FAIRNESS_GAIN.items():
        gain = _gain(by.get(kg, {}))
        found = "" if gain is None else f"We find {gain:+.2f} points."
        checks = [] if gain is None else [gain >= stated / 10, gain >= stated / 2]
        made.append(
            Claim(
                claim=f"At {kg:g} kg small alpha gains {stated:g} points over alpha = 1.",
                found=found,
                verdict=_verdict(checks),
            )
        )
    made.append(_tight(by.get(1.0, {})))
    return made


def _tight(by_alpha: Mapping[float, float]) -> Claim:
    claim = "Under a tight budget (1 kg and below) fairness loses accuracy."
    best = _gain(by_alpha)
    if best is None:
        return Claim(claim=claim, found="", verdict=OPEN)
    fairest = min(by_alpha)
    most = by_alpha[fairest] - by_alpha[1.0]
    found = (
        f"At 1 kg we find {most:+.2f} points with alpha = {fairest:g}, and {best:+.2f} with the best alpha up to 0.1."
    )
    return Claim(claim=claim, found=found, verdict=_verdict([most < 0, best < 0]))


def _gain(by_alpha: Mapping[float, float]) -> float | None:
    fair = [accuracy for alpha, accuracy in by_alpha.items() if alpha <= 0.1]
    return max(fair) - by_alpha[1.0] if fair and 1.0 in by_alpha else None


def _correlation(rows: Rows) -> list[Claim]:
    typed: list[dict[str, Any]] = [
        {key: value if key == "cell" else float(value) for key, value in row.items() if value != ""} for row in rows
    ]
    found = effects(typed)
    texts = {
        "temporal": ("Temporal correlation costs 1 point.", published.TEMPORAL_LOSS),
        "spatial": ("Spatial correlation on top costs another.", published.SPATIAL_LOSS),
        "fine-tuning": ("Fine-tuning gives back up to 3.8 points.", published.FINE_TUNING_GAIN),
    }
    made = []
    for name, (claim, stated) in texts.items():
        value = found.get(name)
        made.append(Claim(claim=claim, found="" if value is None else f"We find {value:.2f}.",
                          verdict=_verdict([] if value is None else [value >= stated / 10, value >= stated / 2])))  # fmt: skip
    return made


def _slack(rows: Rows) -> Claim:
    gains = {int(row["T"]): float(row["gain"]) for row in rows}
    checks = [gain > 0 for gain in gains.values()]
    if gains:
        checks.append(max(gains, key=lambda hours: gains[hours]) == min(gains))
    found = "; ".join(f"T = {hours}: {gain:+.2f}" for hours, gain in sorted(gains.items()))
    return Claim(claim="Slack beats no slack at every budget, most at the tightest (+4.36 at T = 3, +3.24 at T = 4).",
                 found=f"Ours: {found}." if found else "", verdict=_verdict(checks))  # fmt: skip


def _best_end(rows: Rows, hours: int) -> tuple[int, float] | None:
    cells = [
        (int(row["s"]), float(row["accuracy_mean"])) for row in rows if int(row["T"]) == hours and row["accuracy_mean"]
    ]
    return max(cells, key=lambda cell: cell[1]) if len(cells) >= 3 else None


def _moderate(rows: Rows) -> Claim:
    best = {hours: end for hours in _LOW if (end := _best_end(rows, hours)) is not None}
    found = "; ".join(f"T = {hours}: s = {end} ({accuracy:.2f} %)" for hours, (end, accuracy) in best.items())
    return Claim(claim="At low budgets moderate slack (s up to 50 at 9.69 %; the tables' best are 70, 50 and 50) is best.",
                 found=f"Best of the trained: {found}." if found else "",
                 verdict=_verdict([end <= _MODERATE + 20 for end, _ in best.values()]))  # fmt: skip


def _window(one: Rows, three: Rows) -> Claim:
    both = {h: (a[1], b[1]) for h in (4, 5) if (a := _best_end(one, h)) and (b := _best_end(three, h))}
    found = "; ".join(f"T = {hours}: {a:.2f} against {b:.2f} %" for hours, (a, b) in both.items())
    return Claim(claim="At low budgets t_ft = 1 beats t_ft = 3.", found=f"Best of the trained: {found}." if found else "",
                 verdict=_verdict([a > b for a, b in both.values()]))  # fmt: skip
