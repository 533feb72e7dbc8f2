"""Record what the commands put out, for comparison with the stored files beside this one.

Everything runs through the entry point of the `slackwater` command in a temporary folder, without network. Nothing else
of the package is imported, so that modules may move. Numbers and key names go into plans.json, outputs.json and
runs.json; everything that is prose goes into texts.json.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
CHANGING = frozenset(
    {"version", "slackwater", "seconds", "at", "created_at", "booked_at", "sent_at", "ended_at", "started_at"}
    | {"run_id", "id", "prepared_on"}
)
"""Keys and columns whose values depend on the clock, the machine or the release."""
EXACT = 17
DIGITS = EXACT if os.environ.get("SLACKWATER_GOLDENS") == "exact" else 8
"""Significant digits that are compared. Processors differ in the last bits of powers, sums and gradients; on one
processor `exact` compares every bit, which shows that a change of structure changed no result (see write.py)."""
SMALL = """start = 2022-01-01T00:00:00Z
rounds = 2
slack = 6
budget_kg = 0.9
planner = "paper"
{more}
[data]
source = "typical"
{sections}
[[client]]
name = "lyon"
zone = "FR"
power_w = 300
{client}
[[client]]
name = "berlin"
zone = "DE"
power_w = 300
{second}
[[client]]
name = "dublin"
zone = "IE"
power_w = 300
"""
WIDE = """start = 2022-03-26T22:00:00+01:00
rounds = 6
slack = 30
budget_kg = 4.0
fine_tune = 2
planner = "paper"
{more}
{sections}
""" + "".join(
    f'[[client]]\nname = "{zone.lower()}"\nzone = "{zone}"\npower_w = {power}\npue = {pue}\n'
    for zone, power, pue in (
        ("FR", 300, 1.1), ("DE", 250, 1.0), ("IE", 400, 1.3), ("SE-SE3", 300, 1.0), ("US-CAL-CISO", 350, 1.2), ("JP-KN", 300, 1.0),
    )
)  # fmt: skip
NETWORK = "model_mb = 1500\nnetwork_kwh_per_gb = 0.1\nevaluation_share = 0.25"
SERVER = '[server]\nzone = "IE"\npower_w = 150\npue = 1.2'
QUICK = ("--local-steps", "2", "--batch-size", "16", "--threads", "1")


def small(more: str = "", *, sections: str = "", client: str = "", second: str = "") -> str:
    """Return a scenario of three clients over eight hours."""
    return SMALL.format(more=more, sections=sections, client=client, second=second)


def wide(more: str = "", *, sections: str = "") -> str:
    """Return a scenario of six clients in several time zones over 36 hours, across the start of summer time."""
    return WIDE.format(more=more, sections=sections)


SCENARIOS: dict[str, tuple[str, tuple[str, ...]]] = {
    "default": (small(), ()),
    "alpha 1": (wide("alpha = 1"), ()),
    "alpha 0.5": (wide("alpha = 0.5"), ()),
    "log": (wide('alpha = "log"'), ()),
    "max-min": (wide('alpha = "max-min"'), ()),
    "max-min of few": (small('alpha = "max-min"'), ()),
    "greedy": (wide(), ("--solver", "greedy")),
    "fixed end": (wide(), ("--end", "20")),
    "server": (small(sections=SERVER), ()),
    "max_parallel and server": (small("max_parallel = 2", sections=SERVER), ()),
    "max_parallel of many": (wide("max_parallel = 3"), ()),
    "recall": (wide("recall = 12"), ()),
    "auto": (small(), ("--planner", "auto",)),
    "auto of many": (wide(), ("--planner", "auto",)),
    "idle power": (small(client="idle_w = 40", second="idle_w = 25\npue = 1.4"), ()),
    "availability": (
        small(client='unavailable = ["sat-sun 02:00-04:00"]', second='unavailable = ["2022-01-01T05:00Z/2022-01-01T07:00Z"]'),
        (),
    ),
    "window of the available": (small('window = "available"', second='unavailable = ["sat 06:00-08:00"]'), ()),
    "limits": (small(client="max_slots = 3", second="min_slots = 2\nrequired = true"), ()),
    "network and evaluation": (wide(NETWORK), ()),
    "short rounds and slots": (small("slot_minutes = 30\nround_minutes = 20"), ()),
    "deadline": (small().replace("slack = 6", "deadline = 2022-01-01T11:00:00+01:00"), ()),
    "energy of a round": (small().replace("power_w = 300", "energy_kwh = 0.25"), ()),
    "direct": (small().replace('"typical"', '"typical"\nfactor = "direct"'), ()),
    "many": (wide(NETWORK + "\nrecall = 9"), ("--solver", "greedy")),
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Return stdout as JSON."""
        assert self.code == 0, (self.code, self.out, self.err)
        return json.loads(self.out)


def command(*args: object) -> Done:
    """Run the `slackwater` command in this process."""
    from slackwater.cli import main

    out, err, given = io.StringIO(), io.StringIO(), (sys.argv, sys.stdin)
    sys.argv, sys.stdin = ["slackwater", *map(str, args)], io.StringIO()
    code: Any = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv, sys.stdin = given
        logger = logging.getLogger("slackwater")
        logger.setLevel(logging.NOTSET)
        logger.handlers.clear()
    return Done(int(code or 0), out.getvalue(), err.getvalue())


@contextmanager
def workspace() -> Iterator[Path]:
    """Work in an empty folder, with one thread and without the user's settings."""
    import torch

    before, here, threads = dict(os.environ), Path.cwd(), torch.get_num_threads()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for variable in [key for key in os.environ if key.startswith("SLACKWATER_")]:
            del os.environ[variable]
        for variable in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM"):
            os.environ.pop(variable, None)
        for variable in ("CACHE", "STATE"):
            os.environ[f"SLACKWATER_{variable}"] = str(folder / ".own" / variable.lower())
        os.environ |= {"HOME": str(folder / ".own"), "XDG_CONFIG_HOME": str(folder / ".own"), "TZ": "UTC"}
        os.environ["COLUMNS"] = "100"
        os.chdir(folder)
        torch.set_num_threads(1)
        try:
            yield folder
        finally:
            torch.set_num_threads(threads)
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)


Visit = Callable[[Any], Any]


def walked(data: Any, leaf: Visit) -> Any:
    """Return JSON data with every value replaced, and values that change left out."""
    if isinstance(data, dict):
        return {key: "changes" if key in CHANGING else walked(value, leaf) for key, value in data.items()}
    if isinstance(data, list):
        return [walked(value, leaf) for value in data]
    return leaf(data)


def is_prose(value: Any) -> bool:
    """Tell a sentence from a name or a time."""
    return isinstance(value, str) and " " in value.strip()


def rounded(value: Any) -> Any:
    """Return a number, or a text that is one, with the digits that are compared, and "text" for prose."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"-?\d*\.\d+(e-?\d+)?", value):
        return rounded(float(value))
    return "text" if is_prose(value) else settled(value)


def prose(data: Any, texts: dict[str, None] | None = None) -> list[str]:
    """Return the sentences in JSON data, each once."""
    texts = {} if texts is None else texts
    walked(data, lambda value: texts.setdefault(settled(value)) if is_prose(value) else None)
    return list(texts)


_SETTLED = (
    (re.compile(r"\b20(2[5-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)?(e-\d+)? ?(s|ms|seconds)\b"), "SECONDS"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\b20(2[5-9]|[3-9]\d)-\d\d-\d\d\b"), "DATE"),
)


def settled(text: str) -> str:
    """Return a text without what depends on the clock, the folder or the release."""
    from slackwater import __version__

    text = text.replace(str(Path.cwd()), "FOLDER").replace(__version__, "VERSION")
    for pattern, name in _SETTLED:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def digest(data: Any) -> str:
    """Return the SHA-256 of JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


PROOF = () if DIGITS == EXACT else ("upper_bound", "gap")
"""Left out of the hash of a plan: a search that stops within a gap sums its bound in an order that processors differ in."""


def plans() -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan every scenario; return hashes with a few numbers, and the prose."""
    found: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for name, (scenario, options) in SCENARIOS.items():
        Path("s.toml").write_text(scenario)
        done = command("plan", "s.toml", "--out", "out", *options)
        assert done.code == 0, (name, done.err)
        plan = json.loads(Path("out/plan.json").read_text())
        found[name] = {
            "sha256": digest(walked({key: value for key, value in plan.items() if key not in PROOF}, rounded)),
            "matrix": ["".join(map(str, row)) for row in plan["matrix"]],
            **{
                key: rounded(plan[key])
                for key in ("status", "solver", "objective", "upper_bound", "emissions_kg", "end", "window")
            },
        }
        texts[name] = {"shown": settled(done.out).splitlines(), "plan.json": prose(plan)}
    return found, texts


def outputs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the JSON of the commands that need no run: numbers and keys, and the prose."""
    Path("s.toml").write_text(small())
    Path("w.toml").write_text(wide(NETWORK))
    calls: dict[str, tuple[object, ...]] = {
        "plan": ("plan", "s.toml"),
        "plan --planner auto": ("plan", "s.toml", "--planner", "auto"),
        "plan of many": ("plan", "w.toml", "--solver", "greedy"),
        "compare": ("compare", "s.toml", "--alpha", "0.1,1,log", "--slack", "2,6", "--budget", "0.7,0.9,0.01"),
        "savings": ("savings", "--zones", "FR,DE,IE", "--hours", 10, "--slack", 20, "--starts", 5),
        "zones": ("zones",),
        "forecast": ("forecast", "DE,FR", "--at", "2022-03-01T00:00Z", "--hours", 24),
        "forecast persistence": ("forecast", "DE", "--method", "persistence", "--hours", 12),
        "forecast --backtest": (
            "forecast", "DE", "--method", "same-hour-mean", "--backtest", "--repeat", 3, "--hours", 12,
        ),
        "backtest": (
            "backtest", "s.toml", "--repeat", 2, "--forecast", "persistence,ridge", "--replan", "1h,never", "--budget-rounds", 2,
        ),
        "backtest of many": (
            "backtest", "w.toml", "--start", "2022-06-01T00:00Z", "--repeat", 1, "--forecast", "blend", "--replan", "6h",
        ),
        "partition": ("partition", "digits", "--clients", 3),
        "data show": ("data", "show"),
        "rivals": (
            "rivals", "s.toml", "--policies", "ours,carbon-greedy,no-slack,fedzero,oort,ca-fed", "--seeds", 1, *QUICK[:4],
        ),
    }  # fmt: skip
    found: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for name, args in calls.items():
        data = command(*args, "--json").data
        found[name], texts[name] = compact(walked(data, rounded)), prose(data)
    return found, texts


def compact(data: Any) -> Any:
    """Return the data, or keys and a hash of each entry where it is long."""
    if len(json.dumps(data)) < 20_000:
        return data
    if isinstance(data, dict):
        return {key: compact(value) for key, value in data.items()}
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return {"keys": sorted({key for row in data for key in row}), "sha256": [digest(row)[:16] for row in data]}
    return digest(data)


def tensors(file: Path) -> Any:
    """Return the SHA-256 of a model's tensors; where not every bit is compared, shape and length of each."""
    import torch

    found = {name: value for name, value in torch.load(file, weights_only=True).items() if value.numel()}
    if DIGITS < EXACT:
        return {
            name: [list(value.shape), f"{value.double().norm().item():.3g}"] for name, value in sorted(found.items())
        }
    hashed = hashlib.sha256()
    for name, value in sorted(found.items()):
        hashed.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        hashed.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def ledger(folder: Path) -> dict[str, Any]:
    """Return the rows of a run's charges and of what was planned, and the hash of its model."""
    db = sqlite3.connect(folder / "run.db")
    db.row_factory = sqlite3.Row
    try:
        tables = {
            table: [
                {key: value for key, value in dict(row).items() if key not in CHANGING or key == "id"}
                for row in db.execute(f"SELECT * FROM {table} ORDER BY {order}")
            ]
            for table, order in (
                ("charges", "id"), ("planned", "slot, client, cause"), ("attempts", "slot, client, attempt"), ("replans", "id"),
            )
        }  # fmt: skip
    finally:
        db.close()
    for row in tables["attempts"]:
        row["seconds"] = "changes"
    found: dict[str, Any] = {"rows": {table: [_short(row) for row in rows] for table, rows in tables.items()}}
    found["columns"] = {table: list(rows[0]) for table, rows in tables.items() if rows}
    return found | {"model": tensors(folder / "model.pt")}


def _short(row: dict[str, Any]) -> str:
    return " | ".join("text" if is_prose(value) else repr(rounded(value)) for value in row.values())


def runs() -> tuple[dict[str, Any], dict[str, Any]]:
    """Train and rehearse; return charges, hashes of models and JSON, and the prose."""
    Path("s.toml").write_text(small())
    Path("rich.toml").write_text(
        small("fine_tune = 2\n" + NETWORK, sections=SERVER, client="idle_w = 40").replace(
            "budget_kg = 0.9", "budget_kg = 4"
        )
    )
    Path("many.toml").write_text(
        small("fine_tune = 2\n" + NETWORK, client="idle_w = 40").replace("budget_kg = 0.9", "budget_kg = 3")
    )
    for name in ("s", "rich"):
        assert command("plan", f"{name}.toml", "--out", f"{name}_plan").code == 0
    calls: dict[str, tuple[object, ...]] = {
        "train": ("train", "s_plan/plan.json", *QUICK),
        "train rich": ("train", "rich_plan/plan.json", "--no-baseline", *QUICK),
        "baseline": ("baseline", "rich.toml", *QUICK),
        "policy": ("train", "s_plan/plan.json", "--policy", "fedzero", "--no-baseline", *QUICK),
        "policy with probes": ("train", "s_plan/plan.json", "--policy", "oort", "--no-baseline", *QUICK),
        "options": (
            "train", "s_plan/plan.json", "--no-baseline", "--server", "adam", "--averaging", 2, "--memory-dtype", "float16",
            "--partition", "shards", "--seed", 3, *QUICK,
        ),
        "rehearse": ("rehearse", "s.toml"),
        "rehearse many": ("rehearse", "many.toml", "--forecast", "persistence", "--replan", "2h", "--planner", "auto"),
        "rehearse without re-planning": ("rehearse", "many.toml", "--replan", "never"),
        **{
            f"aggregator {name}": ("train", "s_plan/plan.json", "--aggregator", name, "--no-baseline", *QUICK)
            for name in AGGREGATORS
        },
    }  # fmt: skip
    found: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for name, args in calls.items():
        folder = Path("runs") / name.replace(" ", "_")
        done = command(*args, "--out", folder, "--json")
        data = done.data
        found[name] = {"json": compact(walked(data, rounded))}
        texts[name] = {"json": prose(data), "stderr": settled(done.err).splitlines()}
        if name.startswith("aggregator"):
            found[name] |= {"model": tensors(folder / "model.pt")}
            continue
        found[name] |= ledger(folder)
        options = ("--date", "2024-01-31", "--embodied-total-kg", 100, "--intensity-uncertainty", 5)
        for label, more in {
            "status": ("status", folder),
            "report": ("report", folder, *options),
            "resume": ("resume", folder),
        }.items():
            if label == "status" and not name.startswith("rehearse"):
                continue
            data = command(*more, "--json").data
            for source in data.get("sources", ()) if DIGITS < EXACT else ():
                if source["kind"] != "synthetic":
                    del source["sha256"]  # of forecasts and bounds, which are computed
            found[name][label], texts[name][label] = compact(walked(data, rounded)), prose(data)
            if label != "resume":
                texts[name][f"{label} shown"] = settled(command(*more).out).splitlines()
        files = (
            "--csv",
            "lines.csv",
            "--codecarbon",
            "emissions.csv",
            "--model-card",
            "card.md",
            "--html",
            "page.html",
        )
        assert command("report", folder, *options, *files).code == 0
        for file in ("lines.csv", "emissions.csv"):
            with Path(file).open(newline="") as lines:
                rows = list(csv.DictReader(lines))
            found[name][file] = {"columns": list(rows[0]), "sha256": digest([walked(row, rounded) for row in rows])}
        texts[name]["card"] = settled(Path("card.md").read_text()).splitlines()
        Path("emissions.csv").unlink()
    return found, texts


AGGREGATORS = (
    "fedavg",
    "ufedavg",
    "normalised",
    "clipped:2",
    "mifa",
    "fedvarp",
    "fedstale:0.5",
    "memory:0.8",
    "stride",
    "echo",
)


def helps() -> dict[str, list[str]]:
    """Return the help of every command, walked by what the help itself lists."""
    found: dict[str, list[str]] = {}
    todo: list[tuple[str, ...]] = [()]
    while todo:
        path = todo.pop(0)
        shown = command(*path, "--help")
        assert shown.code == 0, shown
        lines = settled(shown.out).splitlines()
        found[" ".join(("slackwater", *path))] = lines
        if "Commands:" in lines:
            listed = lines[lines.index("Commands:") + 1 :]
            todo += [(*path, match[1]) for line in listed if (match := re.match(r"  (\S+)", line))]
    return found


def messages() -> dict[str, dict[str, Any]]:
    """Return the exit code and the text of mistakes that users make."""
    Path("s.toml").write_text(small())
    files = {
        "unknown_key": small("fine_tuen = 2"),
        "unknown_client_key": small(client="powr = 3"),
        "misplaced_key": small(client="slack = 3"),
        "missing_key": small().replace("rounds = 2\n", ""),
        "wrong_type": small().replace("budget_kg = 0.9", 'budget_kg = "0.9"'),
        "no_zone": small().replace("start = 2022-01-01T00:00:00Z", "start = 2022-01-01T00:00:00"),
        "bad_alpha": small("alpha = 3"),
        "bad_word": small('alpha = "logg"'),
        "unknown_zone": small().replace('"IE"', '"IX"'),
        "not_toml": "a = = 3",
        "no_clients": "\n".join(small().split("[[client]]")[0].splitlines()),
        "too_little": small().replace("budget_kg = 0.9", "budget_kg = 0.01"),
        "long": small().replace("slack = 6", "slack = 600000"),
        "late": small().replace("2022-01-01", "2190-01-01"),
        "bad_hours": small(client='unavailable = ["sometimes"]'),
        "too_many": small(client="min_slots = 30"),
        "bad_source": small().replace('"typical"', '"nowhere.csv"'),
        "bad_provider": small().replace('"typical"', '["nope"]'),
        "bad_factor": small().replace('"typical"', '"typical"\nfactor = "green"'),
        "negative": small().replace("budget_kg = 0.9", "budget_kg = -1"),
        "same_name": small().replace('"berlin"', '"lyon"'),
        "both": small("deadline = 2022-01-02T00:00:00Z"),
        "parallel": small("max_parallel = 0"),
        "bad_server": small(sections='[server]\nzone = "IE"\npower_w = -5'),
    }
    for name, text in files.items():
        Path(f"{name}.toml").write_text(text)
    assert command("plan", "s.toml", "--out", "good").code == 0
    good = Path("good/plan.json").read_text()
    Path("cut.json").write_text(good[:100])
    Path("changed.json").write_text(good.replace('"end": 6', '"end": "six"'))
    Path("future.json").write_text(good.replace('"format": 1', '"format": 99'))
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    Path("damaged").mkdir()
    Path("damaged/run.db").write_bytes(b"SQLite format 3\0" + bytes(200))
    calls: dict[str, tuple[object, ...]] = {
        **{name: ("plan", f"{name}.toml") for name in files},
        "no scenario": ("plan", "none.toml"),
        "a folder": ("plan", "."),
        "binary": ("plan", "binary.toml"),
        "a plan as scenario": ("plan", "good/plan.json"),
        "end out of range": ("plan", "s.toml", "--end", 99),
        "unknown solver": ("plan", "s.toml", "--solver", "best"),
        "time limit": ("plan", "s.toml", "--time-limit", "-1"),
        "chart": ("plan", "s.toml", "--chart", "a.doc"),
        "empty": ("plan", "s.toml", "--out", ""),
        "no folder of data": ("plan", "s.toml", "--data", "nowhere"),
        "no plan": ("train", "none.json"),
        "a scenario as plan": ("train", "s.toml"),
        "a cut plan": ("train", "cut.json"),
        "a changed plan": ("train", "changed.json"),
        "a later plan": ("train", "future.json"),
        "unknown aggregator": ("train", "good/plan.json", "--aggregator", "eco"),
        "unknown policy": ("train", "good/plan.json", "--policy", "fedzer"),
        "no-slack as policy": ("train", "good/plan.json", "--policy", "no-slack"),
        "unknown task": ("train", "good/plan.json", "--task", "digit"),
        "unknown model": ("train", "good/plan.json", "--model", "huge"),
        "unknown partition": ("train", "good/plan.json", "--partition", "even"),
        "bad rate": ("train", "good/plan.json", "--lr", "-1"),
        "unknown server": ("train", "good/plan.json", "--server", "sgd"),
        "no run": ("status", "nowhere"),
        "no run to report": ("report", "nowhere"),
        "no run to resume": ("resume", "nowhere"),
        "damaged run": ("report", "damaged"),
        "damaged live run": ("status", "damaged"),
        "unknown command": ("plann", "s.toml"),
        "unknown option": ("plan", "s.toml", "--ends", "3"),
        "no argument": ("plan",),
        "bad list": ("compare", "s.toml", "--slack", "a,b"),
        "unknown zone": ("savings", "--zones", "XX"),
        "bad time": ("savings", "--start", "yesterday"),
        "too few hours": ("savings", "--hours", "0"),
        "unknown forecaster": ("forecast", "DE", "--method", "magic"),
        "bad hours": ("forecast", "DE", "--hours", "0"),
        "unknown replan": ("backtest", "s.toml", "--replan", "often"),
        "unknown rival": ("rivals", "s.toml", "--policies", "our"),
        "no app": ("run", "s.toml", "--app", "nowhere"),
        "a scenario that is over": ("run", "s.toml", "--app", "."),
        "app and task": ("rehearse", "s.toml", "--app", ".", "--task", "digits"),
        "superlink without app": ("rehearse", "s.toml", "--superlink", "here"),
        "unknown item": ("paper", "fig99"),
        "init twice": ("init", "s.toml"),
        "init": ("init", "new.toml"),
        "unknown provider": ("data", "fetch", "FR", "--provider", "nope", "--start", "2024-01-01T00:00Z", "--end", "2024-01-02T00:00Z"),
        "key missing": (
            "data", "fetch", "FR", "--provider", "electricitymaps", "--start", "2024-01-01T00:00Z", "--end", "2024-01-02T00:00Z",
        ),
        "version": ("--version",),
    }  # fmt: skip
    found = {}
    for name, args in calls.items():
        done = command(*args)
        found[name] = {"code": done.code, "out": settled(done.out).splitlines(), "err": settled(done.err).splitlines()}
    shown: dict[str, tuple[object, ...]] = {
        "compare": ("compare", "s.toml", "--alpha", "0.1,1", "--budget", "0.7,0.9,0.01"),
        "savings": ("savings", "--zones", "FR,DE,IE", "--hours", 10, "--slack", 20, "--starts", 5),
        "forecast": ("forecast", "DE,FR", "--at", "2022-03-01T00:00Z"),
        "backtest": ("backtest", "s.toml", "--repeat", 1, "--forecast", "persistence", "--replan", "never", "--budget-rounds", 2),
        "partition": ("partition", "digits", "--clients", 3),
        "data show": ("data", "show"),
    }  # fmt: skip
    for name, args in shown.items():
        done = command(*args)
        assert done.code == 0, (name, done.err)
        found[f"{name} shown"] = {"out": settled(done.out).splitlines(), "err": settled(done.err).splitlines()}
    found["init"]["file"] = Path("new.toml").read_text().splitlines()
    return found


def record(group: str) -> dict[str, Any]:
    """Return what one group of commands puts out now: {file name: its content}."""
    with workspace():
        if group == "commands":
            return {"texts.json": {"help": helps(), "messages": messages()}}
        numbers, texts = {"plans": plans, "outputs": outputs, "runs": runs}[group]()
        # JSON knows fewer types than Python: what is compared has been through it.
        found = {f"{group}.json": numbers, "texts.json": {group: texts}}
        return json.loads(json.dumps(found))


GROUPS = ("plans", "outputs", "runs", "commands")
