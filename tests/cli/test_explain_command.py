"""`slackwater explain`: one entry, the list, and a term that does not exist."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from slackwater.cli.main import cli
from slackwater.glossary import GLOSSARY


def explain(*words: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *words], prog_name="slackwater")


def test_an_entry_has_text_unit_and_related_terms() -> None:
    shown = explain("slack")
    assert shown.exit_code == 0
    assert shown.stderr == ""
    title, *text, unit, also, see = shown.stdout.splitlines()
    assert title == "slack"
    assert " ".join(text) == GLOSSARY["slack"].text
    assert (unit, also, see) == ("unit: slots", "also: slack time, deadline", "see:  s, horizon, baseline")


def test_what_an_entry_lacks_is_not_shown() -> None:
    lines = explain("echo").stdout.splitlines()
    assert not [line for line in lines if line.startswith(("unit:", "also:"))]


@pytest.mark.parametrize("words", [("fine-tuning", "window"), ("fine-tuning window",), ("FINE_TUNE",)])
def test_a_term_of_several_words_needs_no_quotes(words: tuple[str, ...]) -> None:
    assert explain(*words).stdout.startswith("fine-tuning window\n")


def test_the_list_has_every_term_with_its_first_sentence() -> None:
    shown = explain()
    assert shown.exit_code == 0
    flat = " ".join(shown.stdout.split())
    for entry in GLOSSARY.values():
        assert f"{entry.term} {entry.summary}" in flat
    assert max(map(len, shown.stdout.splitlines())) <= 100


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for words in ((), ("certificate",)):
        assert max(map(len, explain(*words).stdout.splitlines())) <= 60


def test_json_of_one_entry_and_of_all() -> None:
    one = json.loads(explain("PUE", "--json").stdout)
    assert set(one) == {"term", "text", "unit", "aliases", "see"}
    assert (one["term"], one["unit"]) == ("PUE", None)
    assert [entry["term"] for entry in json.loads(explain("--json").stdout)] == list(GLOSSARY)


def test_an_unknown_term_is_an_error_with_a_hint() -> None:
    shown = explain("alfa")
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr == (
        "error: 'alfa' is not in the glossary. Did you mean 'alpha'? To list all terms: slackwater explain\n"
    )
