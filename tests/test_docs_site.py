"""The site works: every page is in its menu, needs no network, and what the tutorial and the guides show runs."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from slackwater.cli.main import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
IN_NO_MENU: set[str] = set()
"""Pages that are meant to be reached by links alone."""

HELP_ONLY = {
    "serve": "a server that does not end; tests/dashboard starts it",
    "run": "waits for its slots in real time; tests/live and tests/world run it",
    "status live": "of a run in real time",
    "status run": "of a run in real time",
    "resume live": "of a run in real time",
    "rehearse myjob/scenario.toml": "starts FLARE's simulator; tests/engines/test_nvflare_processes.py does",
    "resume run": "of a run in real time, which the guide on Flower shows; training runs are resumed here",
    "data show": "of an empty cache there is nothing to draw",
    "data fetch": "asks a provider; tests/providers does, on the loopback",
    "calibrate": "loads the machine for a minute",
    "confirm": "needs a false energy report; tests/live has one",
    "rehearse examples/sklearn_app/scenario.toml": "is in the repository's folder; tests/engines runs it",
}
"""Commands of which only the options are checked, and why."""
_TRAINED = [
    "init",
    "plan scenario.toml --out run",
    "train run/plan.json --no-baseline --eval-every 0 --out run/training",
]
DONE_BEFORE = {"report": _TRAINED, "officer": _TRAINED}
"""What a reader of a guide has done already."""
SAVED = {"cross-device": "regions.toml", "hospital": "scenario.toml"}
"""The file as which a guide says to save its first block of TOML."""
SAVED_PYTHON = {"hospital": "hosp.py"}
"""The file as which a guide says to save its first block of Python."""
EXACT = ("plan", "compare", "savings")
"""Commands whose output is shown to the digit; of others only the words are compared, since training may round otherwise."""
PYTHON_ELSEWHERE = {
    "live-on-flower": "needs a model and a grid: test_the_flower_snippets_run",
    "live-on-nvflare": "a site of a job: test_the_snippet_for_flares_sites_runs",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of the fenced blocks of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return the commands of ours in a block, without their name."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line.removeprefix("slackwater ") for line in joined.splitlines() if line.startswith("slackwater ")]


def invoke(command: str) -> str:
    """Run a command, or check its options where it cannot be run here."""
    if any(command == one or command.startswith(f"{one} ") for one in HELP_ONLY):
        words = command.partition(" -- ")[0]
        name = [*shlex.split(words)[: 2 if words.startswith("data ") else 1]]
        shown = CliRunner().invoke(cli, [*name, "--help"]).output
        missing = [option for option in re.findall(r"(?<!\S)--[a-z-]+", words) if option not in shown]
        assert not missing, f"slackwater {command}: there is no {missing[0]}"
        return shown
    result = CliRunner().invoke(cli, shlex.split(command))
    assert result.exit_code == 0, f"slackwater {command}\n{result.output}"
    return result.output


def plain(text: str, *, exact: bool) -> str:
    """Return a text with single blanks, and without its digits unless they count."""
    return " ".join((text if exact else re.sub(r"\d[\d.,]*", "0", text)).split())


def follow(page: Path) -> None:
    """Do what a page says, in its order, in the current folder."""
    for command in DONE_BEFORE.get(page.stem, []):
        invoke(command)
    output, exact, names = "", False, dict[str, Any]()
    to_save, python_to_save = SAVED.get(page.stem), SAVED_PYTHON.get(page.stem)
    for language, text in blocks(page):
        if language == "sh":
            asked = commands(text)
            output = "\n".join(invoke(command) for command in asked)
            exact = all(command.startswith(EXACT) for command in asked)
        elif language == "text":
            for line in text.splitlines():
                shown = plain(line, exact=exact)
                assert shown in plain(output, exact=exact), f"{page.name} shows {line!r}, but we see\n{output}"
        elif language == "python" and page.stem not in PYTHON_ELSEWHERE:
            exec(text, names)
            if python_to_save:
                Path(python_to_save).write_text(text, encoding="utf-8")
                python_to_save = None
        elif language == "toml":
            assert tomllib.loads(text)
            if to_save:
                Path(to_save).write_text(text, encoding="utf-8")
                to_save = None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's, of its own command line
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a snippet leaves its file open, as scripts of ten lines do
@pytest.mark.parametrize("page", [DOCS / "get-started.md", *GUIDES], ids=lambda page: page.stem)
def test_the_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACKWATER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SLACKWATER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "100")  # tables as wide as the pages show them
    follow(page)


def test_the_tutorial_shows_every_step() -> None:
    shown = [command for language, text in blocks(DOCS / "get-started.md") if language == "sh" for command in commands(text)]  # fmt: skip
    verbs = {command.split()[0] for command in shown}
    assert verbs >= {"init", "plan", "train", "resume", "rehearse", "status", "serve", "report"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_flower_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.app import ArrayRecord, Context, RecordDict
    from torch import nn

    import slackwater as sw
    from slackwater.flower import InProcessGrid
    from slackwater.live.folder import LiveSettings, prepare

    class Model(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)

    def fit(model: nn.Module, data: object, *, stop: object) -> float:
        model.get_parameter("bias").data += 1
        return 0.5

    monkeypatch.chdir(tmp_path)
    zones = {"lyon": "FR", "dublin": "IE"}
    traces = sw.load_traces(zones=[*zones.values()], start="2022-01-01T00:00Z", hours=6)
    sites = [sw.Client(name=name, zone=zone, power_w=300) for name, zone in zones.items()]
    plan = sw.plan(sw.Problem(clients=sites, traces=traces, rounds=3, slack=3, budget_kg=1.0))
    strategy, stateful, client, server, in_process = [
        text for language, text in blocks(DOCS / "guides" / "live-on-flower.md") if language == "python"
    ]
    names: dict[str, Any] = {"Model": Model, "fit": fit, "load_data": lambda context: [1, 2, 3]}
    exec(client, names)
    client_app = names["app"]
    grid = InProcessGrid(client_app, {name: {"zone": zone} for name, zone in zones.items()})

    prepare("one", plan, LiveSettings(slot_seconds=0.0))
    exec(server, names)
    names["app"](grid, Context(1, 1, {}, RecordDict(), {"slackwater-run": str(tmp_path / "one")}))
    assert (tmp_path / "one" / "model.pt").exists()

    prepare("run", plan, LiveSettings(slot_seconds=0.0))
    exec(strategy, names | {"grid": grid, "initial_arrays": ArrayRecord(Model().state_dict())})
    exec(f"from flwr.serverapp.strategy import FedAdam\n{stateful}\nassert Mine().state_dict()['best'] == 0.0", {})
    exec(in_process, {"client_app": client_app})


def test_the_snippet_for_flares_sites_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    nvflare = pytest.importorskip("nvflare", reason="needs NVIDIA FLARE (pip install 'slackwater[nvflare]')")
    import numpy as np
    import torch
    from nvflare.app_common.abstract.fl_model import FLModel
    from torch import nn

    class Model(nn.Linear):
        def __init__(self, params: dict[str, Any]) -> None:
            super().__init__(3, 2)
            self.load_state_dict({name: torch.from_numpy(value) for name, value in params.items()})

    def fit(model: nn.Module, data: object, *, stop: object) -> float:
        model.get_parameter("bias").data += 1
        return 0.5

    first = {"weight": np.zeros((2, 3), dtype=np.float32), "bias": np.zeros(2, dtype=np.float32)}
    to_come, sent = [FLModel(params=first), None], []
    client = SimpleNamespace(
        init=lambda: None, is_running=lambda: bool(to_come), receive=lambda: to_come.pop(0), send=sent.append,
        get_site_name=lambda: "lyon",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "nvflare.client", client)
    monkeypatch.setattr(nvflare, "client", client, raising=False)
    (snippet,) = [text for language, text in blocks(DOCS / "guides" / "live-on-nvflare.md") if language == "python"]
    exec(snippet, {"Model": Model, "fit": fit, "load_data": lambda site: [1, 2, 3]})
    (reply,) = sent
    assert reply.params["bias"].tolist() == [1, 1]
    assert reply.meta["slackwater"]["metrics"]["num-examples"] == 3


@pytest.mark.parametrize(
    "command", ["flower-superlink", "flower-superexec", "flower-supernode", "flwr supernode register"]
)
def test_options_of_flower_exist(command: str) -> None:
    text = re.sub(r"\\\n\s+", "", (DOCS / "guides" / "live-on-flower.md").read_text(encoding="utf-8"))
    lines = re.findall(rf"^{command} (.*)$", text, flags=re.MULTILINE)
    used = {option for line in lines for option in re.findall(r"(?<!\S)--[a-z-]+", line)}
    assert used
    program, *rest = command.split()
    done = subprocess.run([Path(sys.executable).parent / program, *rest, "--help"], capture_output=True, text=True, check=True)  # fmt: skip
    assert not {option for option in used if option not in done.stdout}


class Settings(yaml.SafeLoader):
    """Reads mkdocs.yml without importing what it names."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
CONFIG = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Settings)


def menu(entry: object) -> Iterator[str]:
    """Return the pages of a part of the menu."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for part in entry.values():
            yield from menu(part)
    elif isinstance(entry, list):
        for part in entry:
            yield from menu(part)


def test_every_page_is_in_the_menu_once() -> None:
    listed = [*menu(CONFIG["nav"])]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert len(listed) == len({*listed})
    assert {*listed} | IN_NO_MENU == pages
    parts = [next(iter(part)) for part in CONFIG["nav"]]
    assert parts == ["Home", "Get started", "Guides", "Concepts", "Reference", "Research"]


def test_the_build_is_strict_and_offline() -> None:
    assert CONFIG["strict"] is True
    assert set(CONFIG["validation"]["links"].values()) == {"warn"}
    assert CONFIG["validation"]["nav"]["omitted_files"] == "warn"
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    assert "repo_url" not in CONFIG  # the theme would ask GitHub for the number of stars
    assert "analytics" not in CONFIG["extra"]
    assert not any(name.startswith("http") for name in CONFIG["extra"]["polyfills"])


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Return the lines of a page that are neither code nor of a table nor written by a tool, with their numbers."""
    text = page.read_text(encoding="utf-8")
    written = r"^<!--[^\n]*-->\n(?:(?!<!--).)*?^<!-- end[^\n]*-->$"
    text = re.sub(written, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "    ")):
            yield number, line


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_lines_are_short(page: Path) -> None:
    for number, line in prose(page):
        without_links = re.sub(r"\]\([^)]*\)|<[^>]*>|https?://\S+", "]", line)
        assert len(without_links) <= 100, f"{page.name}:{number} has {len(without_links)} characters"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("MkDocs is not installed: make docs installs it")
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.xdist_group("docs-site")
def test_built_pages_fetch_nothing(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for tag in re.findall(r"<(?:link|script|img|iframe|source|video|object|embed)\b[^>]*>", text):
            address = re.search(r'(?:src|href|data)="([^"]*)"', tag)
            assert address is None or not address[1].startswith(("http:", "https:", "//")), f"{page.name}: {tag}"
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style.name


@pytest.mark.xdist_group("docs-site")
def test_search_works_from_disk(site: Path, browser: Any) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "guides" / "plan.html").as_uri())
    page.get_by_placeholder("Search").first.click()
    page.keyboard.type("SuperNode", delay=20)
    page.wait_for_selector(".md-search-result__item a[href*='live-on-flower']", timeout=20_000)
    page.close()
    assert not [address for address in asked if not address.startswith(("file:", "data:", "blob:"))], json.dumps(asked)
