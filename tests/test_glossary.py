"""The glossary: every entry is short, found by all its names, and refers to entries that exist."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from scripts import script

from slackwater.errors import SlackwaterError
from slackwater.glossary import GLOSSARY, Entry, explain

tool = script("tools/write_glossary_docs.py")
WANTED = (
    "slack", "alpha", "s", "fine-tuning window", "recall", "pi", "rho_H", "echo", "reserve", "bound", "settlement",
    "budget", "slot", "round", "client", "zone", "carbon intensity", "utility", "objective", "certificate", "U-FedAvg",
    "aggregator", "ledger", "charge", "correction", "simulated", "rehearsed", "live", "forecast", "provider",
    "typical year", "baseline", "SCI", "PUE",
)  # fmt: skip
LONGEST = 24
WORD = re.compile(r"\w\w|^[aA]$")
"""Not the letters and signs of a formula."""


def test_all_terms_are_there_in_order() -> None:
    assert set(WANTED) <= set(GLOSSARY)
    assert list(GLOSSARY) == sorted(GLOSSARY, key=str.lower)
    assert all(term == entry.term for term, entry in GLOSSARY.items())


@pytest.mark.parametrize("entry", GLOSSARY.values(), ids=lambda entry: entry.term)
def test_an_entry_is_short_and_leads_on(entry: Entry) -> None:
    sentences = re.split(r"(?<=\.)\s", entry.text)
    assert 1 <= len(sentences) <= 4
    assert all(sentence.endswith(".") for sentence in sentences)
    assert all(sum(bool(WORD.search(word)) for word in sentence.split()) <= LONGEST for sentence in sentences)
    assert entry.summary == sentences[0]
    assert entry.see
    assert set(entry.see) <= set(GLOSSARY) - {entry.term}


def test_no_two_entries_share_a_name() -> None:
    names = [name.lower() for entry in GLOSSARY.values() for name in (entry.term, *entry.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("slack", "slack"),
        ("  SLACK ", "slack"),
        ("rho_h", "rho_H"),
        ("Fine tuning-window", "fine-tuning window"),
        ("fine_tune", "fine-tuning window"),
        ("ufedavg", "U-FedAvg"),
        ("gap", "certificate"),
        ("no slack", "baseline"),
        ("end time", "s"),
    ],
)
def test_a_term_is_found_however_it_is_spelt(asked: str, found: str) -> None:
    assert explain(asked).term == found


def test_an_unknown_term_names_the_nearest() -> None:
    with pytest.raises(SlackwaterError, match="Did you mean 'settlement'") as refused:
        explain("setlement")
    assert refused.value.exit_code == 1
    with pytest.raises(
        SlackwaterError, match=r"^'xyzzy' is not in the glossary\. To list all terms: slackwater explain$"
    ):
        explain("xyzzy")


def test_numbers_are_those_of_the_code() -> None:
    from slackwater import Client, Problem, load_traces
    from slackwater.planning.plan import DEFAULT_AGGREGATOR, ECHO_GAMMA, ECHO_MOST, OPTIMAL_GAP
    from slackwater.replanning.run_state import Settings

    traces = load_traces(zones=["FR"], hours=24)
    problem = Problem(clients=[Client(name="a", zone="FR", power_w=1)], traces=traces, rounds=2, budget_kg=1)
    assert (problem.alpha, problem.fine_tune, problem.recall) == (0.1, 1, 0)
    assert (DEFAULT_AGGREGATOR, ECHO_GAMMA, ECHO_MOST, OPTIMAL_GAP) == ("echo", 0.95, 3.0, 1e-9)
    assert (Settings().reserve, Settings().lookback_days) == (0.6, 28)
    assert "103 zones" in explain("typical year").text


def test_the_module_is_light() -> None:
    code = "import sys, slackwater.glossary; print([m for m in ('numpy', 'pydantic', 'click') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_page_is_up_to_date() -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run: python tools/write_glossary_docs.py"
