"""Files for contributors: they parse, agree with the package, and name only what exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_layout import ORDER

import slackwater

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/slackwater-fl/slackwater"
GITHUB = ROOT / ".github"
PAGES = ("CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md")
ENDINGS = (".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".cff", ".csv", ".jsonl")
LONGEST_LINE = 100


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def paths_in(text: str) -> list[str]:
    """Return the paths that a page names in backticks: words with a slash, or with the ending of a file."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    words = [word for span in spans for word in span.split()]
    plain = [
        word for word in words if re.fullmatch(r"[\w./*-]+", word) and not re.search(r"[A-Z]{2,}(?![\w.]*\.)", word)
    ]
    return [word for word in plain if "/" in word.strip("/") or word.endswith(ENDINGS)]


def test_the_paths_of_a_page_are_found() -> None:
    text = (
        "Run `python tools/a.py --out DIR` on `slackwater/b.py`, `CHANGELOG.md` or `c/*.py`; `x` and `NAME/y` are not."
    )
    assert paths_in(text) == ["tools/a.py", "slackwater/b.py", "CHANGELOG.md", "c/*.py"]


@pytest.mark.parametrize("name", PAGES)
def test_every_path_that_a_page_names_exists(name: str) -> None:
    for path in paths_in(page(name)):
        moved = [
            str(one.relative_to(ROOT))
            for top in ("slackwater", "tests", "docs")
            for one in (ROOT / top).rglob(Path(path).name)
        ]
        assert list(ROOT.glob(path.rstrip("/"))), (
            f"{name} names {path}, which does not exist. Of that name are: {moved}"
        )


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    folder = (ROOT / name).parent
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page(name)):
        assert link.startswith("https://") or (folder / link).exists(), f"{name} links to {link}"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", ".github/pull_request_template.md"])
def test_lines_are_short(name: str) -> None:
    assert [line for line in page(name).splitlines() if len(line) > LONGEST_LINE] == []


def test_contributing_lists_the_parts_in_the_order_of_imports() -> None:
    section = page("CONTRIBUTING.md").partition("## The tree")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)) == ORDER


@pytest.mark.parametrize("what", ["provider", "forecaster", "aggregator", "policy", "scenario key", "chart", "command"])
def test_contributing_says_how_to_add_and_names_the_test(what: str) -> None:
    section = re.search(rf"^### An? {what}\n(.*?)(?=^#|\Z)", page("CONTRIBUTING.md"), flags=re.DOTALL | re.MULTILINE)
    assert section, f"CONTRIBUTING.md does not say how to add a {what}"
    paths = paths_in(section[1])
    assert any(path.startswith("slackwater/") for path in paths)
    assert any(path.startswith("tests/") for path in paths)


def test_the_citation_is_that_of_this_version() -> None:
    citation = loaded(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == slackwater.__version__
    assert citation["license"] == project()["project"]["license"]
    assert citation["repository-code"] == REPOSITORY
    assert {"title", "message", "authors", "abstract", "type"} <= set(citation)
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["Arputharaj", "Rodriguez", "Rodio", "Neglia"]
    assert paper["title"].startswith("Green Federated Learning")
    assert paper["doi"].endswith(paper["url"].rsplit("/", 1)[1])


def test_the_urls_of_the_project() -> None:
    urls = project()["project"]["urls"]
    assert set(urls) == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    for name in ("Documentation", "Changelog"):
        assert (ROOT / urls[name].partition("/main/")[2]).exists(), urls[name]


def test_the_workflow_runs_what_contributors_run() -> None:
    workflow = loaded(GITHUB / "workflows" / "ci.yml")
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    versions = job["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.13"]
    assert project()["project"]["requires-python"] == f">={versions[0]}"
    assert workflow["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("name", ["bug_report", "feature_request"])
def test_issue_templates(name: str) -> None:
    form = loaded(GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids) > 0
    assert all("label" in part["attributes"] for part in form["body"] if part["type"] != "markdown")


def test_security_problems_are_sent_to_the_private_form() -> None:
    links = [link["url"] for link in loaded(GITHUB / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]]
    assert all(url.startswith(REPOSITORY) for url in links)
    (private,) = (url for url in links if "/security/" in url)
    assert private in page("SECURITY.md")


def test_the_hooks_are_the_linters_of_the_makefile() -> None:
    (local,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    lint = page("Makefile").partition("\nlint:")[2].partition("\n\n")[0]
    for hook in local["hooks"]:
        tool = " ".join(hook["entry"].removeprefix(".venv/bin/").split()[: 2 if "ruff" in hook["entry"] else 1])
        assert f"$(BIN)/{tool}" in lint, hook["id"]


def test_coverage_is_measured_in_ci_and_only_there() -> None:
    settings = project()["tool"]["coverage"]["run"]
    assert settings["source"] == ["slackwater"]
    assert settings["branch"]
    assert "subprocess" in settings["patch"]
    makefile = page("Makefile")
    assert "MEASURE  ?= $(filter 1 true,$(CI))" in makefile
    assert "export CI=1" in page(".ci/run")
