"""Pages that are written from the code are current, and pages on concepts and reference lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import script

import slackwater as sw

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted([*(DOCS / "concepts").glob("*.md"), *(DOCS / "reference").glob("*.md")])
tool = script("tools/write_scenario_docs.py")


def test_the_scenario_page_is_up_to_date() -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.filled(page), "run: python tools/write_scenario_docs.py"


def test_the_scenario_page_has_every_key_once_and_explains_it() -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    generated = page[page.index(tool.START) : page.index(tool.STOP)]
    for heading, _, model in tool.sections():
        section = generated.partition(f"## {heading}\n")[2].partition("\n## ")[0]
        for name, field in model.model_fields.items():
            assert field.description, f"{heading} {name} has no description"
            assert field.description[-1] == ".", f"{heading} {name}: the description is a sentence"
            is_section = f"## `[{name}]`" in generated or f"## `[[{name}]]`" in generated
            assert section.count(f"\n| `{name}` |") == (0 if heading == "Top of the file" and is_section else 1)


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(SystemExit, match="lacks the line"):
        tool.filled("# The scenario file\n")


def test_the_api_page_has_every_public_name_once() -> None:
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: slackwater\.(\S+)$", page, flags=re.MULTILINE)) == sorted(sw.__all__)


def test_the_controller_of_the_page_on_re_planning_runs() -> None:
    page = (DOCS / "concepts" / "replanning.md").read_text(encoding="utf-8")
    traces = sw.load_traces(zones=["FR", "DE"], start="2022-01-01T00:00Z", hours=24 * 15)
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in traces.zones]
    problem = sw.Problem(clients=clients, traces=traces, start="2022-01-15T00:00Z", rounds=4, slack=6, budget_kg=1.0)
    decided: list[object] = []
    names = {
        "problem": problem,
        "known": traces.window(traces.start, 24 * 14),
        "forecast": None,
        "train": decided.append,
    }
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    exec(snippet, names)
    assert 4 <= len(decided) <= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_to_pages_of_the_site(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            found = (page.parent / target).resolve()
            assert found.is_file(), f"{page.name} links to {target}"
            assert found.is_relative_to(DOCS.resolve()), f"{page.name} links outside docs: {target}"
