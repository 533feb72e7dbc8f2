"""Tasks with sites of their own, on small made data; nothing here uses the network."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

import slackwater as sw
from slackwater.errors import DataError, MissingExtraError, ScenarioError
from slackwater.training import site_tasks, tasks
from slackwater.training.data import Source
from slackwater.training.local import evaluate
from slackwater.training.site_tasks import Columns
from slackwater.training.task import ModelMaker, Samples, Task

RNG = np.random.Generator(np.random.PCG64(5))


def score(task: Task) -> float:
    """Return the score of a new model; making it checks that model, loss and metric fit."""
    model = ModelMaker(task, seed=0, device=torch.device("cpu"))()
    return evaluate(model, task.test, task).value


def rows_of(parts: tuple[Samples, ...]) -> set[tuple[float, ...]]:
    return {tuple(row) for part in parts for row in part.x.tolist()}


# Pickled tables


class _Made:
    """A pandas object to be pickled: called with `args`, then given `state`."""

    def __init__(self, *args: object) -> None:
        self.args, self.state = args, None

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args) if self.state is None else (type(self), self.args, self.state)


@pytest.fixture
def pandas_names(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[_Made]]:
    """Let this process pickle objects under the names that pandas uses."""
    made = {}
    for place in (
        "pandas.core.frame.DataFrame",
        "pandas.core.internals.managers.BlockManager",
        "pandas._libs.internals._unpickle_block",
        "pandas.core.indexes.base._new_Index",
        "pandas.core.indexes.base.Index",
        "pandas.core.arrays.categorical.Categorical",
        "pandas.core.dtypes.dtypes.CategoricalDtype",
        "pandas.core.arrays.integer.IntegerArray",
    ):
        module, _, name = place.rpartition(".")
        parts = module.split(".")
        for parent in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):
            if parent not in sys.modules:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        made[name] = type(name, (_Made,), {"__module__": module})
        monkeypatch.setattr(sys.modules[module], name, made[name], raising=False)
    return made


def frame(named: dict[str, type[_Made]], columns: dict[str, np.ndarray]) -> bytes:
    """Return a pickled table, laid out as pandas does: a block of floats, and one of each column of categories."""

    def index(values: object) -> _Made:
        return named["_new_Index"](named["Index"], {"data": values, "name": None})

    names = np.array(list(columns), dtype=object)
    plain = [i for i, values in enumerate(columns.values()) if values.dtype.kind == "f"]
    blocks = [named["_unpickle_block"](np.array([columns[names[i]] for i in plain]), np.array(plain), 2)]
    for i, values in enumerate(columns.values()):
        if i in plain:
            continue
        kinds, codes = np.unique(values, return_inverse=True)
        held: object = kinds.astype(object)
        if kinds.dtype.kind == "i":
            held = named["IntegerArray"]()
            held.state = {"_data": kinds, "_mask": np.zeros(len(kinds), dtype=bool)}
        kind, category = named["CategoricalDtype"](), named["Categorical"]()
        kind.state = {"categories": index(held), "ordered": False}
        category.state = (kind, codes.astype(np.int8), {})
        blocks.append(named["_unpickle_block"](category, slice(i, i + 1, 1), 2))
    whole = named["DataFrame"]()
    whole.state = {"_mgr": named["BlockManager"](tuple(blocks), [index(names), index(None)]), "_typ": "dataframe"}
    return pickle.dumps(whole)


def test_a_pickled_table_is_read_without_pandas(pandas_names):
    columns = {
        "age": np.array([1.0, 2.0, 3.0]),
        "centre": np.array([7, 9, 7]),
        "time": np.array([4.0, 5.0, 6.0]),
        "kind": np.array(["b", "a", "b"]),
    }
    read = site_tasks.read_frame(frame(pandas_names, columns))
    assert list(read) == list(columns)
    for name, values in columns.items():
        assert read[name].tolist() == values.tolist()


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "made"),)

    with pytest.raises(DataError, match=r"asks for posix\.mkdir|asks for nt\.mkdir"):
        site_tasks.read_frame(pickle.dumps(Harmful()))
    assert not (tmp_path / "made").exists()
    with pytest.raises(DataError, match="not a table"):
        site_tasks.read_frame(pickle.dumps([1, 2]))


# RandHIE


def insured(persons: int = 60) -> Columns:
    """Return three years of each person; site and person are told by the number."""
    person = np.repeat(np.arange(persons), 3)
    columns = {name: RNG.normal(size=len(person)) for name in site_tasks._INSURED}
    columns |= {"zper": person + 1000.0, "site": person % 6 + 1.0, "binexp": (columns["xage"] > 0).astype(float)}
    columns["educdec"][4] = np.nan
    return columns


def test_randhie_parts_persons_not_years():
    table = insured()
    task = site_tasks.randhie_task(table, 6, 0, "mlp")
    assert [len(samples) for samples in task.clients] == [
        24,
        23,
        24,
        24,
        24,
        24,
    ]  # a year without education is left out
    assert len(task.test) == 36
    assert task.client_tests == ()  # six years of a site are too few for an AUROC
    assert task.label.name == "AUROC"
    trained = torch.cat([samples.x for samples in task.clients])
    assert trained.mean(0).abs().max() < 1e-5
    assert (trained.std(0, unbiased=False) - 1).abs().max() < 1e-5
    assert rows_of(task.clients).isdisjoint(rows_of((task.test,)))
    assert 0 <= score(task) <= 1
    few = site_tasks.randhie_task(table, 2, 0, "logistic")
    assert [len(samples) for samples in few.clients] == [24, 23]
    assert len(few.test) == 12


def test_randhie_from_a_checked_file(tmp_path, monkeypatch, pandas_names):
    packed = lzma.compress(frame(pandas_names, dict(insured())))
    (tmp_path / "RandHIE.pkl.compress").write_bytes(packed)
    made = Source(
        name="randhie",
        sha256={"RandHIE.pkl.compress": hashlib.sha256(packed).hexdigest()},
        read=site_tasks.RANDHIE.read,
    )
    monkeypatch.setattr(site_tasks, "RANDHIE", made)
    task = tasks.make_for("randhie", [f"site {i}" for i in range(6)], data=str(tmp_path), seed=3)
    assert sum(map(len, task.clients)) == 143
    assert json.loads(json.dumps(task.record))["data"] == str(tmp_path)
    # Of another content nothing is unpickled.
    monkeypatch.setattr(site_tasks, "read_frame", lambda _: pytest.fail("an unchecked pickle was read"))
    (tmp_path / "RandHIE.pkl.compress").write_bytes(packed[:-1] + b"\0")
    with pytest.raises(DataError, match="damaged or another file"):
        tasks.make("randhie", data=str(tmp_path))


# Dialysis


def test_dialysis_asks_for_death_within_a_year():
    table = {
        "time": np.array([3, 3, 12, 13, 40, 5, 6, 7, 30], dtype=float),
        "event": np.array([1, 0, 1, 1, 0, 1, 1, 1, 0], dtype=float),
        "num_age": np.arange(9.0),
        "num_begin": np.arange(9.0) * 2,
        "fac_disease": np.array(["renal", "other"] * 4 + ["renal"]),
        "fac_center": np.array([9, 9, 9, 9, 9, 9, 9, 4, 4]),
    }
    task = site_tasks.dialysis_task(table, 2, 0, "logistic")
    # The second patient left after three months, alive. The larger centre is first; its fifth patient is tested.
    assert [samples.y.tolist() for samples in task.clients] == [[1, 1, 0, 0, 1], [1, 0]]
    assert task.test.y.tolist() == [1]
    assert task.clients[0].x.shape == (5, 4)  # age, begin, two diseases
    assert task.client_tests == ()
    assert tasks.parameters(task.model()) == 10


# Flights


def schedule(rows: int = 3000) -> Columns:
    minutes = np.sort(RNG.integers(0, 60 * 24 * 60, rows))
    date = np.datetime64("2001-01-01T00:00") + minutes.astype("timedelta64[m]")
    return {
        "date": date,
        "delay": np.where(np.arange(rows) % 2, 15, 16),
        "distance": RNG.integers(100, 2000, rows),
        "origin": np.array(["ORD", "ATL", "DFW"])[np.arange(rows) % 3],
        "destination": RNG.choice(np.array(["LAX", "BOS", "ATL"]), rows),
    }


def test_flights_are_parted_by_airport_and_day(monkeypatch):
    monkeypatch.setattr(site_tasks, "_MOST_FLIGHTS", 600)
    task = site_tasks.flights_task(schedule(), 2, 0, "mlp")
    assert len(task.clients) == 2
    assert sum(map(len, task.clients)) + len(task.test) == 1200  # at most 600 of each; Atlanta is no site
    assert 200 < len(task.test) < 280  # every fifth of sixty days
    assert len(task.client_tests) == 2
    assert rows_of(task.clients).isdisjoint(rows_of((task.test,)))
    assert 0 <= score(task) <= 1
    late = site_tasks.flights_task(schedule() | {"delay": np.full(3000, 16)}, 1, 0, "mlp")
    assert set(late.clients[0].y.tolist()) == {1}  # 15 minutes are not late, 16 are


def test_a_table_in_parquet_is_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table, packed = schedule(), io.BytesIO()
    # Arrow has no minutes.
    seconds = {name: v.astype("datetime64[s]") if v.dtype.kind == "M" else v for name, v in table.items()}
    parquet.write_table(arrow.table(seconds), packed)
    read = site_tasks.FLIGHTS.read({"flights-3m.parquet": packed.getvalue()})
    for name, values in table.items():
        assert np.array_equal(read[name], values)


def test_without_pyarrow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"slackwater\[parquet\]"):
        site_tasks.FLIGHTS.read({"flights-3m.parquet": b""})


# Shakespeare

PLAY = """THE PLAY

PERSONS

Ann.
{ann}

[Enter BOB.]

ACT I.

BOB.
[Aside.] {bob}

Cat.
Too little.

ann.
This line is not a speech.
"""


def play(letter: str) -> str:
    return PLAY.format(ann=f"{letter}a" * 700, bob=f"{letter}b" * 600)


def test_speeches_are_told_from_the_rest():
    said = site_tasks.speeches(play("x").replace("\n", "\r\n"))
    assert said == {"ANN": "xa" * 700, "BOB": "xb" * 600}  # who says little is left out


def test_windows_cover_a_text_once():
    text = "".join(site_tasks.CHARACTERS[i % 26 + 52] for i in range(100)) + "é"
    cut = site_tasks.windows(text)
    assert cut.shape == (2, 41)
    assert "".join(site_tasks.CHARACTERS[code - 1] for code in [*cut[0], *cut[1][1:]]) == text[:81]
    assert site_tasks.windows("é" * 41)[0].tolist() == [0] * 41  # a character that is not known
    assert site_tasks.windows("short").shape == (0, 41)


def test_whole_plays_go_to_clients():
    plays = {letter: play(letter) for letter in "pqrstu"}
    task = site_tasks.plays_task(plays, 3, 1)
    again = site_tasks.plays_task(plays, 3, 1)
    assert task.record["plays"] == again.record["plays"] != site_tasks.plays_task(plays, 3, 2).record["plays"]
    assert sorted(name for dealt in task.record["plays"] for name in dealt) == list("pqrstu")
    for samples, dealt in zip(task.clients, task.record["plays"], strict=True):
        codes = {site_tasks.CHARACTERS.find(letter) + 1 for letter in [*dealt, "a", "b"]}
        assert set(samples.x.unique().tolist()) == codes
    # 1400 and 1200 characters are 34 and 29 windows, of which the last fifth is tested.
    assert [len(samples) for samples in task.clients] == [2 * (27 + 23)] * 3
    assert len(task.test) == 6 * (7 + 6)
    assert torch.equal(task.clients[0].x[:, 1:], task.clients[0].y[:, :-1])
    assert task.model()(task.test.x[:2]).shape == (2, len(site_tasks.CHARACTERS) + 1, site_tasks.WINDOW)


def test_the_next_character_is_learnt():
    task = site_tasks.plays_task({letter: play("x") for letter in "pq"}, 2, 0)
    assert score(task) < 0.5
    problem = sw.Problem(
        clients=[sw.Client(name=name, zone="FR", power_w=300) for name in ("a", "b")],
        traces=sw.load_traces(zones=["FR"], start="2022-01-01T00:00Z", hours=6),
        rounds=6, slack=0, fine_tune=0, budget_kg=10.0,
    )  # fmt: skip
    plan = sw.plan(problem)
    assert sw.train(plan, task, local_steps=10, batch_size=16, lr=1.0, seed=0, threads=1).score > 0.8


# All


def test_every_site_has_a_zone_with_intensity():
    assert [len(site_tasks.RANDHIE_SITES), len(site_tasks.FLIGHT_ORIGINS)] == [6, 54]
    zones = {*site_tasks.RANDHIE_SITES.values(), *site_tasks.FLIGHT_ORIGINS.values(), site_tasks.DIALYSIS_ZONE}
    traces = sw.load_traces(zones=sorted(zones), start="2022-01-01T00:00Z", hours=24, factor="lifecycle")
    assert traces.intensity.min() > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("randhie", {"clients": 7}, "has 6 sites, so give 1 to 6"),
        ("dialysis", {"clients": 0}, "has 67 clinics"),
        ("flights", {"clients": 55}, "has 54 airports"),
        ("shakespeare", {"clients": 38}, "the 37 plays serve 1 to 37"),
    ],
)
def test_too_many_clients_are_explained_before_anything_is_fetched(name, options, message):
    with pytest.raises(ScenarioError, match=message):
        tasks.make(name, **options)


def test_an_unknown_model_is_explained():
    with pytest.raises(ScenarioError, match="Did you mean 'logistic'"):
        site_tasks.randhie_task(insured(), 6, 0, "logistics")


def test_every_source_names_its_package():
    for source in (site_tasks.SHAKESPEARE, site_tasks.RANDHIE, site_tasks.DIALYSIS, site_tasks.FLIGHTS):
        package = source.pypi or source.npm
        assert package is not None
        assert package.name in (site_tasks.__doc__ or "")
        assert package.version in (site_tasks.__doc__ or "")
        assert package.archive in source.wanted
    assert "29 more" in site_tasks.SHAKESPEARE.wanted


def test_a_folder_without_the_files_names_them(tmp_path):
    with pytest.raises(
        ScenarioError, match=r"Name a folder with the files Dialysis\.pickle \(plain or \.gz\) or survset"
    ):
        tasks.dialysis(data=Path(tmp_path) / "absent")
