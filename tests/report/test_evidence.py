"""What an auditor asks for: hashes and licences of the data, one number worked out, the bridge to SCI, who reports."""

from __future__ import annotations

import ast
import csv
import io
import math
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from report_runs import eventful, first_plan, plan, replanned, rich_plan, write

from slackwater.intensity.load import TYPICAL_SOURCE
from slackwater.ledger.run import Run
from slackwater.planning.schedule import plan_from_matrix
from slackwater.report import tables
from slackwater.report.account import ReportSettings
from slackwater.report.blocks import Kilograms, Table, percent_change
from slackwater.report.content import document
from slackwater.report.evidence import RECOMPUTE, terms_of
from slackwater.report.exports import lines_csv
from slackwater.report.statement import Statement, make_statement


def facts(statement: Statement) -> dict[str, str]:
    """All tables of two columns, as one."""
    blocks = [block for section in document(statement).sections for block in section.blocks]
    return {row[0]: row[1] for block in blocks if isinstance(block, Table) for row in block.rows}


def test_the_docs_print_the_same_recipe() -> None:
    assert f"```python\n{RECOMPUTE}```" in (Path(__file__).parents[2] / "docs/guides/report.md").read_text()


@pytest.mark.parametrize(
    "make", [lambda f: write(f, rich_plan()), replanned, eventful], ids=["plan", "live", "eventful"]
)
def test_the_hash_is_recomputed_from_the_lines_as_the_report_says(tmp_path: Path, make: object) -> None:
    statement = make_statement(make(tmp_path / "run"))  # type: ignore[operator]
    (tmp_path / "lines.csv").write_text(lines_csv(statement), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", RECOMPUTE], cwd=tmp_path, capture_output=True, text=True, check=True)
    hashes = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert {(one.source, one.kind, one.sha256) for one in statement.sources} == set(hashes)
    assert all(re.fullmatch("[0-9a-f]{64}", one.sha256) for one in statement.sources)


def test_a_changed_value_changes_its_hash_and_no_other(tmp_path: Path) -> None:
    before = {one.source: one.sha256 for one in make_statement(write(tmp_path / "a", plan())).sources}
    base = plan()
    intensity = base.problem.traces.intensity.copy()
    intensity[0, 0] += 1e-12
    traces = replace(base.problem.traces, intensity=intensity)
    changed = plan_from_matrix(replace(base.problem, traces=traces), base.matrix, end=2)
    after = {one.source: one.sha256 for one in make_statement(write(tmp_path / "b", changed)).sources}
    assert before.keys() == after.keys() == {"meter <of> A", "meter <of> B"}
    assert before["meter <of> A"] != after["meter <of> A"]
    assert before["meter <of> B"] == after["meter <of> B"]


def test_every_source_is_listed_with_its_values_and_licence(tmp_path: Path) -> None:
    found = {(one.source, one.kind): one for one in make_statement(replanned(tmp_path / "run")).sources}
    actual = found["neso", "actual"]
    assert (actual.values, actual.zones, actual.licence) == (4, ("A", "B"), "CC BY 4.0")
    assert (actual.first[:16], actual.last[:16]) == ("2022-01-01T22:00", "2022-01-02T01:00")
    assert "NESO" in actual.attribution
    assert found["upper bound from the last 28 days", "bound"].attribution.startswith("computed by Slackwater")


@pytest.mark.parametrize(
    ("source", "attribution", "licence"),
    [
        (
            "electricitymaps v4: 24 h actual, lifecycle, fetched 2026-01-01T00:00Z",
            "Electricity Maps",
            "terms of service",
        ),
        ("energycharts: 3 h actual; neso: 2 h actual", "Energy-Charts", "CC BY 4.0"),
        ("entsoe", "ENTSO-E", "terms"),
        ("eia", "U.S. Energy Information", "public domain"),
        ("watttime", "WattTime", "not open"),
        (TYPICAL_SOURCE, "typical year", "Apache-2.0"),
        ("FR_2022.csv", "user's own data", "publisher"),
        ("neso.csv", "user's own data", "publisher"),
        ("media/eia.csv", "user's own data", "publisher"),
    ],
)
def test_terms_of_sources(source: str, attribution: str, licence: str) -> None:
    found = terms_of(source, "actual")
    assert attribution in found[0]
    assert licence in found[1]


def test_one_number_is_worked_out_from_its_source(tmp_path: Path) -> None:
    statement = make_statement(replanned(tmp_path / "run", until=3))
    found = statement.checked
    assert found is not None
    # bob in slot 1: held at 2 kWh x 0.55 kg/kWh, settled at 0.4
    assert (found.client, found.zone, found.slot_start) == ("bob", "B", "2022-01-01T23:00Z")
    assert (found.energy_kwh, found.intensity_kg_per_kwh, found.source, found.kind) == (2.0, 0.4, "neso", "actual")
    assert found.product_kg == pytest.approx(0.8)
    assert found.kg == pytest.approx(0.8, abs=1e-12)
    lines = list(csv.DictReader(io.StringIO(lines_csv(statement))))
    about = [line for line in lines if int(line["id"]) in (found.line, *found.changed_by)]
    assert math.fsum(float(line["kg"]) for line in about) == pytest.approx(found.kg, abs=1e-15)
    assert len(about) == 1 + len(found.changed_by) == 2
    shown = facts(statement)
    assert shown["source row"] == "B, 2022-01-01T23:00Z: 0.4 kg/kWh"
    assert shown["result"] == "they agree"


def test_a_line_that_does_not_add_up_is_said_to_differ(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", plan())
    with Run.open(folder) as run:
        line = max(run.ledger.charges(), key=lambda one: one.kg)
        run.ledger.charge(replace(line, id=None, attempt=1, kg=1.4))
    shown = facts(make_statement(folder))
    assert shown["result"].startswith("they differ by +0.8")


def test_nothing_to_check_is_said(tmp_path: Path) -> None:
    statement = make_statement(write(tmp_path / "run", plan(), until=-1, status="running"))
    assert statement.checked is None
    assert statement.sources == ()
    assert "nothing was charged" in facts(statement)["period covered"]


@pytest.mark.parametrize(
    "make", [lambda f: write(f, rich_plan()), replanned, eventful], ids=["plan", "live", "eventful"]
)
@pytest.mark.parametrize(
    "settings",
    [
        ReportSettings(),
        ReportSettings(pue=1.37, embodied_kg=1234.5, functional_unit="round"),
        ReportSettings(embodied_total_kg=1 / 3),
    ],
    ids=["plain", "all", "total"],
)
def test_the_bridge_adds_up(tmp_path: Path, make: object, settings: ReportSettings) -> None:
    statement = make_statement(make(tmp_path / "run"), settings)  # type: ignore[operator]
    steps, score = statement.bridge, statement.sci
    running = 0.0
    for step in steps:
        if step.is_total:
            assert step.kg == pytest.approx(running, abs=1e-12), step.name
        else:
            running += step.kg
    totals = [step.kg for step in steps if step.is_total]
    assert totals[0] == statement.account.total_kg
    assert totals[1] == score.operational_kg
    assert 1000 * totals[2] / score.units == pytest.approx(score.score_g)
    for digits in (0, 1, 3, 4, 6):  # what is shown adds up too, however coarsely it is rounded
        table = tables.bridge(statement, Kilograms(digits))
        shown = Decimal(0)
        for number, (_, text, _) in enumerate(table.rows[:-1]):
            value = Decimal(text.replace(",", ""))
            if number in table.sums:
                assert shown == value
            else:
                shown += value


def test_every_cause_is_a_row(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", rich_plan())
    with Run.open(folder) as run:
        line = next(one for one in run.ledger.charges() if one.cause == "training")
        run.ledger.charge(replace(line, id=None, cause="network", kg=0.01, energy_kwh=0.1))
        run.ledger.charge(replace(line, id=None, cause="evaluation", kg=0.02, energy_kwh=0.2))
    statement = make_statement(folder)
    names = (
        "training computation",
        "communication (network)",
        "evaluation",
        "idle",
        "server and aggregation",
        "start-up",
    )
    assert [step.name for step in statement.bridge][:6] == list(names)
    by_cause = {step.name: step.kg for step in statement.bridge}
    assert (by_cause["communication (network)"], by_cause["evaluation"], by_cause["start-up"]) == (0.01, 0.02, 0.0)
    table = tables.happened(statement, Kilograms(4))[0]
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows][:6] == [f"cause: {name}" for name in names]
    assert any("communication (network), evaluation" in text for text in statement.sci.boundary)


def test_no_slack_counts_every_cause(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", plan())
    before = make_statement(folder).same_work.kg
    with Run.open(folder) as run:
        for line in [one for one in run.ledger.charges() if one.client == "alice"]:
            run.ledger.charge(replace(line, id=None, cause="network", kg=0.1 * line.kg, energy_kwh=0.1))
    # alice sends 0.1 kWh in each of her two slots; without slack that is in hours 0 and 1: 0.1 * (0.1 + 0.2)
    assert before is not None
    assert make_statement(folder).same_work.kg == pytest.approx(before + 0.03)


def test_date_period_organisation_and_preparer(tmp_path: Path) -> None:
    base = first_plan()
    asked = replace(base.problem, reported_by={"organisation": "Example <Labs>", "preparer": "A. Person"})
    folder = write(tmp_path / "run", plan_from_matrix(asked, base.matrix, end=2))
    statement = make_statement(folder, ReportSettings(prepared_on=date(2026, 3, 1)))
    made = statement.preparation
    assert (made.organisation, made.preparer, made.prepared_on) == ("Example <Labs>", "A. Person", "2026-03-01")
    assert (made.period_start, made.period_end) == ("2022-01-01T22:00Z", "2022-01-02T02:00Z")
    shown = facts(statement)
    assert shown["organisation"] == "Example <Labs>"
    assert shown["prepared by"] == "A. Person"
    assert shown["date of the report"] == "2026-03-01"
    other = make_statement(folder, ReportSettings(organisation="Other", preparer="B")).preparation
    assert (other.organisation, other.preparer) == ("Other", "B")
    assert "not given" in facts(make_statement(write(tmp_path / "none", plan())))["organisation"]


def test_sci_per_token_and_per_flop(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", plan())
    score = make_statement(folder, ReportSettings(tokens=3e6, flops=1e15, embodied_total_kg=0.5)).sci
    assert {one.unit: one.score_g for one in score.per} == {
        "training token": pytest.approx(2000 / 3e6),
        "FLOP": pytest.approx(2e-12),
    }
    assert score.score_g == pytest.approx(2000)
    per_token = make_statement(folder, ReportSettings(tokens=3e6, functional_unit="per token")).sci
    assert (per_token.functional_unit, per_token.score_g) == ("training token", pytest.approx(1500 / 3e6))
    assert make_statement(folder).sci.per == ()


def test_scope_2_shows_the_direct_figure_first_and_says_so(tmp_path: Path) -> None:
    base = plan()
    traces = replace(base.problem.traces, factor="lifecycle")
    schedule = plan_from_matrix(replace(base.problem, traces=traces), base.matrix, end=2)
    (tmp_path / "year").mkdir()
    for zone, direct, lifecycle in (("A", 50, 400), ("B", 100, 600)):
        hours = [f"2022-01-0{1 + hour // 24}T{hour % 24:02}:00Z,{direct},{lifecycle}" for hour in range(48)]
        text = "\n".join(["datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh", *hours])
        (tmp_path / "year" / f"{zone}_2022.csv").write_text(text)
    folder = write(tmp_path / "run", schedule)
    with_direct = make_statement(folder, ReportSettings(data=str(tmp_path / "year")))
    rows = tables.scope2(with_direct, Kilograms(4)).rows
    assert rows[0] == ("reported: hourly, direct", "0.5000 kg CO2e")
    assert rows[1][0] == "hourly, lifecycle (the ledger)"
    assert with_direct.scope2.reported_kg == pytest.approx(0.5)
    assert with_direct.scope2.notes[0].startswith("The direct figure is shown first")
    glance = next(item for item in document(with_direct).sections[0].blocks[0].items if "Scope 2" in item.name)  # type: ignore[union-attr]
    assert glance.value == "0.5000"
    assert "direct" in glance.note
    without = make_statement(folder)
    assert tables.scope2(without, Kilograms(4)).rows[0][0] == "reported: hourly, lifecycle (the ledger)"
    assert "no direct figure" in str(document(without).sections[0].blocks[0])
    assert without.scope2.notes[0].startswith("The life-cycle figure is shown instead")


@pytest.mark.parametrize(("value", "reference"), [(1.0, 1e-9), (1e-9, 1e-12), (0.0, 0.0), (1.0, -1e-8)])
def test_percentages_of_next_to_nothing_are_not_printed(value: float, reference: float) -> None:
    assert percent_change(value, reference) == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.0, "0.0 %"), (1 - 1e-9, "0.0 %"), (1.0004, "0.0 %"), (0.5, "\u221250.0 %"), (1.1, "+10.0 %")],
)
def test_no_change_has_no_sign(value: float, shown: str) -> None:
    assert percent_change(value, 1.0) == shown


def test_a_run_of_next_to_nothing_prints_no_percentages(tmp_path: Path) -> None:
    base = plan()
    traces = replace(base.problem.traces, intensity=base.problem.traces.intensity * 1e-9)
    schedule = plan_from_matrix(replace(base.problem, traces=traces), base.matrix, end=2)
    folder = write(tmp_path / "run", schedule)
    with Run.open(folder) as run:
        line = next(run.ledger.charges())
        run.ledger.correct(line, 2.0)
    statement = make_statement(folder)
    assert 0 < statement.account.total_kg < 1e-6
    blocks = [block for section in document(statement).sections for block in section.blocks]
    cells = [cell for block in blocks if isinstance(block, Table) for row in block.rows for cell in row]
    assert [cell for cell in cells if "%" in cell] == ["80.0 %"]  # the accuracy
    assert not any("%" in text for text in statement.uncertainty.sentences)
