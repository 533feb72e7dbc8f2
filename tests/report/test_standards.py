"""SCI, scope 2 and the comparisons on an example computed by hand.

alice trains in hours 0 and 3 with 1 kWh each at 0.1 and 0.4 kg/kWh, bob in hours 2 and 3 with 2 kWh each at 0.3 and
0.2: 0.5 + 1.0 = 1.5 kg and 6 kWh.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_runs import plan, rich_plan, write

from slackwater.errors import ScenarioError
from slackwater.ledger.queries import Work
from slackwater.planning.schedule import plan_from_matrix
from slackwater.report.account import ReportSettings
from slackwater.report.comparison import same_work_without_slack
from slackwater.report.standards import embodied_share_kg, unit_name
from slackwater.report.statement import make_statement


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "run", plan())


def test_the_specifications_own_example() -> None:
    assert embodied_share_kg(1000.0, 1.0, 4.0) == pytest.approx(0.0285, abs=5e-5)


def test_sci_by_hand(folder: Path) -> None:
    score = make_statement(folder).sci
    assert (score.operational_kg, score.energy_kwh, score.units) == (pytest.approx(1.5), pytest.approx(6.0), 1.0)
    assert score.score_g == pytest.approx(1500.0)
    # 4 device-hours of 1,000 kg over 4 years: 1000 * 4 / 35040 = 0.1141552 kg; four client-rounds
    settings = ReportSettings(embodied_kg=1000.0, functional_unit="per client-round")
    score = make_statement(folder, settings).sci
    assert score.embodied_kg == pytest.approx(0.11415525)
    assert score.score_g == pytest.approx((1500 + 114.15525) / 4)


def test_sci_counts_idle_server_and_pue_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", rich_plan())
    # alice idles at 50 W in 4 hours: 0.05 * (0.1 + 0.2 + 0.3 + 0.4) = 0.05 kg and 0.2 kWh, beside her rounds
    # bob's PUE is 1.2: 1.2 kg and 4.8 kWh; server 0.15 kWh in hours 0, 2 and 3: 0.15 * 0.8 = 0.12 kg and 0.45 kWh
    score = make_statement(folder).sci
    assert score.operational_kg == pytest.approx(0.5 + 0.05 + 1.2 + 0.12)
    assert score.energy_kwh == pytest.approx(2 + 0.2 + 4.8 + 0.45)
    assert score.reserved_hours == 4 + 2  # alice waits in all four hours
    # a PUE of 2 for those without: alice alone
    doubled = make_statement(folder, ReportSettings(pue=2.0)).sci
    assert doubled.operational_kg == pytest.approx(2 * 0.55 + 1.2 + 0.12)
    assert make_statement(folder, ReportSettings(pue=2.0)).account.total_kg == pytest.approx(1.87)


def test_network_and_evaluation_are_in_every_figure(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", plan(model_mb=5000.0, evaluation_share=0.1))
    # 0.01 kWh/GB x 2 x 5 GB = 0.1 kWh a client-slot: alice 0.05 kg, bob 0.05 kg; evaluation a tenth of 1.5 kg
    found = make_statement(folder)
    assert found.account.total_kg == pytest.approx(1.5 + 0.1 + 0.15) == found.sci.operational_kg
    assert found.planned.planned_kg == pytest.approx(found.planned.realised_kg)
    assert (found.planned.client_slots_as_planned, found.planned.deviations) == (4, ())
    for one in found.planned.by_client:
        assert one.planned_kg == pytest.approx(one.realised_kg)
    # a PUE of 2 for the sites doubles training and evaluation; the network is at none of them
    assert make_statement(folder, ReportSettings(pue=2.0)).sci.operational_kg == pytest.approx(2 * 1.65 + 0.1)


@pytest.mark.parametrize(
    ("unit", "units"),
    [("per round", 3), ("Rounds", 3), ("client round", 4), ("accuracy point", 80), ("training run", 1)],
)
def test_known_units_are_counted(folder: Path, unit: str, units: float) -> None:
    assert make_statement(folder, ReportSettings(functional_unit=unit)).sci.units == pytest.approx(units)


def test_a_unit_of_ones_own_needs_a_number(folder: Path) -> None:
    with pytest.raises(ScenarioError, match="--units"):
        make_statement(folder, ReportSettings(functional_unit="per patient"))
    score = make_statement(folder, ReportSettings(functional_unit="per patient", units=10)).sci
    assert (score.score_g, score.functional_unit) == (pytest.approx(150), "patient")
    assert unit_name("Per Patients") == "Patients"


@pytest.mark.parametrize(
    "wrong",
    [
        {"units": 0.0}, {"pue": 0.9}, {"embodied_kg": -1.0}, {"lifetime_years": 0.0}, {"functional_unit": " "},
        {"embodied_kg": 1.0, "embodied_total_kg": 1.0}, {"energy_uncertainty": float("nan")},
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ScenarioError):
        ReportSettings(**wrong)  # type: ignore[arg-type]


def test_scope_2_by_hand(folder: Path) -> None:
    found = make_statement(folder)
    assert found.scope2.hourly_kg == found.scope2.direct_kg == pytest.approx(1.5)
    # means over the four hours: 0.25 and 0.35; 2 * 0.25 + 4 * 0.35
    assert found.scope2.annual_kg == pytest.approx(1.9)
    assert "not a year" in found.annual.basis


def test_annual_means_and_direct_factors_from_a_folder(tmp_path: Path) -> None:
    base = plan()
    traces = replace(base.problem.traces, factor="lifecycle")
    schedule = plan_from_matrix(replace(base.problem, traces=traces), base.matrix, end=2)
    (tmp_path / "year").mkdir()
    for zone, direct, lifecycle in (("A", 50, 400), ("B", 100, 600)):
        hours = [f"2022-01-0{1 + hour // 24}T{hour % 24:02}:00Z,{direct},{lifecycle}" for hour in range(48)]
        text = "\n".join(["datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh", *hours])
        (tmp_path / "year" / f"{zone}_2022.csv").write_text(text)
    found = make_statement(write(tmp_path / "run", schedule), ReportSettings(data=str(tmp_path / "year")))
    assert found.annual.kg == pytest.approx(2 * 0.4 + 4 * 0.6)
    assert found.scope2.hourly_kg == pytest.approx(1.5)
    assert found.scope2.direct_kg == pytest.approx(2 * 0.05 + 4 * 0.1)
    assert "of year, 2022-01-01 to 2022-01-02" in found.annual.basis


def test_no_slack_by_hand(folder: Path) -> None:
    found = make_statement(folder)
    # alice in hours 0 and 1: 0.1 + 0.2; bob too: 2 * (0.5 + 0.4)
    assert found.same_work.kg == pytest.approx(2.1)
    # everyone until 3 kg are spent: 1.1 + 1.0 in two hours, and 0.9 in the third makes 3.0
    assert (found.same_budget.rounds, found.same_budget.client_rounds) == (3, 6)
    assert found.same_budget.kg == pytest.approx(3.0)


def test_the_baseline_beside_it_is_read(folder: Path) -> None:
    write(folder / "baseline", plan(), until=2)
    found = make_statement(folder).same_budget
    assert (found.kg, found.client_rounds, found.score) == (pytest.approx(0.7), 2, 0.8)


def test_a_baseline_that_is_damaged_does_not_stop_the_report(folder: Path) -> None:
    (folder / "baseline").mkdir()
    (folder / "baseline" / "run.db").write_text("no database")
    assert make_statement(folder).same_budget.kg is None


def test_the_range_is_only_what_was_given(folder: Path) -> None:
    assert make_statement(folder).uncertainty.relative is None
    given = make_statement(folder, ReportSettings(intensity_uncertainty=0.3, energy_uncertainty=0.4)).uncertainty
    assert given.relative == pytest.approx(0.5)
    assert (given.low_kg, given.high_kg) == (pytest.approx(0.75), pytest.approx(2.25))


def test_marginal_intensity_is_no_scope_2(tmp_path: Path) -> None:
    base = plan()
    traces = replace(base.problem.traces, factor="marginal")
    schedule = plan_from_matrix(replace(base.problem, traces=traces), base.matrix, end=2)
    found = make_statement(write(tmp_path / "run", schedule)).scope2
    assert found.hourly_kg is None
    assert "grid averages" in found.notes[0]


def test_work_of_an_unknown_client_is_not_compared() -> None:
    stranger = Work(client="eve", cause="training", slots=1, kg=1.0, energy_kwh=1.0, first=None, last=None)
    assert same_work_without_slack(plan(), [stranger]).kg is None
