"""The report as a page, a PDF and in a terminal: the same numbers, and every name shown as text."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pypdf import PdfReader
from report_runs import HOSTILE, eventful, plan, rich_plan, write
from rich.console import Console

from slackwater.planning.schedule import plan_from_matrix
from slackwater.report import tables
from slackwater.report.account import ReportSettings
from slackwater.report.blocks import Document, Kilograms, Table
from slackwater.report.content import document, summary
from slackwater.report.exports import emissions_csv, lines_csv, model_card, safe
from slackwater.report.html import page
from slackwater.report.pdf import write_pdf
from slackwater.report.statement import Statement, make_statement

ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p", "main", "section", "div",
    "figure", "figcaption", "svg", "rect", "polyline", "text", "table", "thead", "tbody", "tfoot", "tr", "th", "td",
    "ul", "li", "pre", "code", "footer",
}  # fmt: skip


class Reader(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "rect", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(statement: Statement) -> Reader:
    reader = Reader()
    reader.feed(page(document(statement)))
    reader.close()
    assert reader.open == []
    return reader


def cells(shown: Document) -> list[str]:
    found = [block for section in shown.sections for block in section.blocks if isinstance(block, Table)]
    return [cell for table in found for row in (*table.rows, table.total or ()) for cell in row]


@pytest.fixture(params=["rich", "eventful"])
def statement(request: pytest.FixtureRequest, tmp_path: Path) -> Statement:
    folder = write(tmp_path / "run", rich_plan()) if request.param == "rich" else eventful(tmp_path / "run")
    settings = ReportSettings(embodied_kg=1000.0, functional_unit="round", intensity_uncertainty=0.1)
    return make_statement(folder, settings)


def test_the_page_is_whole_and_needs_nothing_else(statement: Statement) -> None:
    reader = read(statement)
    assert reader.tags <= ALLOWED
    text = page(document(statement))
    assert not re.search(r"(src|href)=|url\(|@import|<script|<link|https?://", text)
    assert "Content-Security-Policy" in text
    for section in document(statement).sections:
        assert section.title in reader.text


def test_the_page_shows_the_ledger_to_the_gram(statement: Statement) -> None:
    shown = cells(document(statement))
    for breakdown in (statement.account.by_zone, statement.account.by_source, statement.account.by_cause):
        for group in breakdown.groups:
            assert any(
                re.fullmatch(r"[+-]?[\d,]+\.\d+", cell) and abs(float(cell.replace(",", "")) - group.kg) < 5e-4
                for cell in shown
            )
    words = read(statement).text
    assert all(cell in words for cell in shown if cell == cell.strip() and cell and "'" not in cell)


def test_the_pdf_holds_the_same_numbers(statement: Statement, tmp_path: Path) -> None:
    write_pdf(document(statement), tmp_path / "report.pdf")
    words = "".join(page.extract_text() for page in PdfReader(tmp_path / "report.pdf").pages)
    for cell in cells(document(statement)):
        if re.fullmatch(r"[+\-]?[\d,]+\.\d+", cell):
            assert cell in words


def test_the_pdf_is_the_same_each_time(statement: Statement, tmp_path: Path) -> None:
    for name in ("a.pdf", "b.pdf"):
        write_pdf(document(statement), tmp_path / name)
    a, b = ((tmp_path / name).read_bytes() for name in ("a.pdf", "b.pdf"))
    assert a.startswith(b"%PDF-")
    assert a == b


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text_everywhere(tmp_path: Path, name: str) -> None:
    schedule = plan(names=(name, "bob"), zones=(f"{name} zone", "B"))
    statement = make_statement(write(tmp_path / "run", schedule))
    statement = replace(statement, run=replace(statement.run, folder=f"runs/{name}", task=name))
    reader = read(statement)
    assert reader.tags <= ALLOWED
    assert not any(attribute.startswith("on") for attribute in reader.attributes)
    printable = "".join(c if c.isprintable() else "\ufffd" for c in name)
    assert printable in reader.text
    assert "\u202e" not in "".join(reader.text)
    write_pdf(document(statement), tmp_path / "report.pdf")
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    console.print(summary(statement))
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]
    for text in (emissions_csv(statement), *([lines_csv(make_statement(tmp_path / "run"))])):
        for row in csv.reader(io.StringIO(text)):
            assert not any(re.match(r"[=+@\t\r]|-\D", cell) for cell in row)
    card = model_card(statement)
    assert len(card.splitlines()) == 10
    location = next(line for line in card.splitlines() if "geographical" in line)
    assert re.fullmatch(r'  geographical_location: "(?:[^"\\]|\\.)*"', location)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@x", "'@x"), ("\tx", "'\tx"), ("\rx", "'\rx"),
        (-1.5, -1.5), (3, 3), (None, ""), ("plain", "plain"), ("a=b", "a=b"), ("＝1", "'＝1"),
        ("a\x1b[1m\u202eb\0", "a\ufffd[1m\ufffdb\ufffd"),
    ],
)  # fmt: skip
def test_csv_cells_are_no_formulas(value: object, shown: object) -> None:
    assert safe(value) == shown


def test_many_clients_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_ROWS", 1)
    statement = make_statement(write(tmp_path / "run", rich_plan()))
    kg = Kilograms.for_total(statement.account.total_kg)
    table = tables.clients(statement, kg)
    assert [row[0] for row in table.rows] == ["bob", "2 more"]
    assert sum(float(row[2]) for row in table.rows) == pytest.approx(statement.account.total_kg, abs=1e-3)
    zones = tables.sources(statement, kg)[0]
    assert isinstance(zones, Table)
    assert [row[0] for row in zones.rows] == ["B", "1 more"]
    assert len({len(row) for row in zones.rows}) == 1


def test_synthetic_and_unfinished_are_said_first(tmp_path: Path) -> None:
    base = plan()
    traces = base.problem.traces
    made_up = replace(traces, provenance=tuple(replace(one, synthetic=True) for one in traces.provenance))
    schedule = plan_from_matrix(replace(base.problem, traces=made_up), base.matrix, end=2)
    shown = document(make_statement(write(tmp_path / "run", schedule, until=1, status="stopped")))
    assert "Synthetic" in shown.warning
    assert "not finished (stopped)" in shown.warning
    assert "synthetic" in model_card(make_statement(tmp_path / "run"))


def test_a_run_without_a_charge_has_a_page(tmp_path: Path) -> None:
    statement = make_statement(write(tmp_path / "run", plan(), until=-1, status="running"))
    read(statement)
    write_pdf(document(statement), tmp_path / "report.pdf")


@pytest.mark.parametrize(
    ("kg", "total", "text"), [(-1e-12, 1.0, "0.0000"), (1234.5678, 2000.0, "1,234.568"), (0.25, 0.5, "0.250000")]
)
def test_kilograms(kg: float, total: float, text: str) -> None:
    assert Kilograms.for_total(total)(kg) == text
