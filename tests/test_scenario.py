"""The scenario file: what is read from it, and a sentence for everything that can be wrong with it."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

import slackwater as sw
from slackwater.scenario import (
    SCENARIO,
    ClientSection,
    DataSection,
    PriceSection,
    ReportSection,
    Scenario,
    ServerSection,
    load_scenario,
)

BASE = """\
start = 2022-01-01T00:00:00Z
rounds = 3
slack = 20
budget_kg = 2.0

[data]
source = "typical"

[server]
zone = "IE"
power_w = 10

[[client]]
name = "lyon"
zone = "FR"
power_w = 300

[[client]]
name = "berlin"
zone = "DE"
power_w = 300
"""
COMMENTED_KEY = re.compile(r"^# (?=\[?\w+\]?\s*(=|\[|#|$))", re.MULTILINE)
"""A comment in the template that becomes a key or a section when its mark is taken away."""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "scenario.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(folder: Path, text: str | bytes) -> str:
    path = written(folder, text)
    with pytest.raises(sw.ScenarioError) as refused:
        load_scenario(path).problem()
    message = str(refused.value)
    for jargon in ("pydantic", "input should", "Input should", "validation error", "datetime.", "errors.pydantic"):
        assert jargon not in message
    return message.replace(str(path), "FILE")


def changed(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new, 1)


def test_every_key_of_the_template_is_real_and_every_real_key_is_in_it(tmp_path: Path) -> None:
    everything = tomllib.loads(COMMENTED_KEY.sub("", SCENARIO))
    in_clients = set().union(*everything["client"])
    for model, keys in (
        (Scenario, set(everything)),
        (DataSection, set(everything["data"])),
        (ServerSection, set(everything["server"])),
        (ReportSection, set(everything["report"])),
        (PriceSection, set(everything["price"])),
        (ClientSection, in_clients),
    ):
        assert set(_fields(model)) == keys, model.__name__


def _fields(model: type[BaseModel]) -> list[str]:
    return list(model.model_fields)


def test_the_template_loads_with_slack_and_with_the_deadline(tmp_path: Path) -> None:
    by_slack = load_scenario(written(tmp_path, SCENARIO)).problem()
    everything = COMMENTED_KEY.sub("", SCENARIO)
    without_slack = re.sub(
        r"^(slack|rounds_total) .*\n", "", everything, flags=re.MULTILINE
    )  # each replaces another key
    assert "There is no price file" in _data_refusal(tmp_path, without_slack)
    zones = ["BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR"]
    write_prices(tmp_path / "prices.csv", {zone: [40.0] * 110 for zone in zones})
    by_deadline = load_scenario(written(tmp_path, without_slack)).problem()
    assert by_slack.horizon == by_deadline.horizon == 100
    assert by_deadline.deadline == datetime(2022, 1, 5, 4, tzinfo=UTC)
    assert by_deadline.server is not None
    assert (by_deadline.round_minutes, by_deadline.window, by_deadline.max_parallel) == (45.0, "available", 4)
    for made, overheads in ((by_deadline, (12.5, 0.01, 0.05)), (by_slack, (None, 0.01, 0.0))):
        assert (made.model_mb, made.network_kwh_per_gb, made.evaluation_share) == overheads
    assert "not both" in refusal(tmp_path, everything)
    assert (by_deadline.min_parallel, by_deadline.price_weight, by_deadline.budget_money) == (2, 0.5, 5.0)
    assert by_deadline.price is not None
    assert by_deadline.costs.price is not None
    assert by_deadline.costs.price == pytest.approx(0.04)
    stockholm, frankfurt = by_deadline.fleet[4], by_deadline.fleet[5]
    assert (stockholm.startup_kwh, stockholm.startup_minutes, stockholm.min_block_slots) == (0.05, 10.0, 3)
    assert frankfurt.levels == (sw.Level(300, 1.0), sw.Level(180, 0.85))


def write_prices(path: Path, by_zone: dict[str, list[float]]) -> None:
    rows = zip(*by_zone.values(), strict=True)
    begin = datetime(2022, 1, 1, tzinfo=UTC)
    lines = [f"{(begin + timedelta(hours=i)).isoformat()},{','.join(map(str, row))}" for i, row in enumerate(rows)]
    path.write_text("\n".join([f"datetime_utc,{','.join(by_zone)}", *lines]) + "\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("levels = [{power_w = 300, work = 1.0}, {power_w = 180, work = 0.85}]", ""),
        ("levels = 3", "levels must be a list of tables, like [{power_w = 300, work = 1.0}], not 3."),
        ("levels = [{power_w = 300, wrok = 1.0}]", "'lyon', levels: unknown key 'wrok'; did you mean 'work'?"),
        (
            'levels = [{power_w = "300", work = 1.0}]',
            "'lyon', levels: power_w must be a number, without quotes or unit",
        ),
        ("levels = [{power_w = 300, work = 0.5}]", "0 levels have work = 1; exactly one is full power."),
        ("levels = [{power_w = 200, work = 1.0}]", "power_w = 300, but its level of work 1 has 200 W"),
        ("startup_kwh = -1", "Client 'lyon' has startup_kwh = -1; it must be from 0 to 1e+09."),
        ("startup_minutes = 99999", "Client 'lyon' has startup_minutes = 99999; it must be from 0 to 10080."),
        ("min_block_slots = 0", "Client 'lyon' has min_block_slots = 0; it must be at least 1."),
        ("min_block_slots = 1.5", "min_block_slots must be a whole number, like 10, not 1.5."),
    ],
)
def test_keys_of_starts_and_levels(tmp_path: Path, line: str, message: str) -> None:
    text = changed('name = "lyon"', f'name = "lyon"\n{line}')
    if message:
        assert message in refusal(tmp_path, text)
    else:
        assert load_scenario(written(tmp_path, text)).problem().fleet.levels == {
            0: (sw.Level(300.0, 1.0), sw.Level(180.0, 0.85))
        }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("min_parallel = 3", "min_parallel asks for 3 clients in a slot, but there are 2."),
        ("min_parallel = 0", "min_parallel must be a whole number of at least 1, not 0."),
        ("max_parallel = 1\nmin_parallel = 2", "min_parallel is 2, more than max_parallel (1)."),
        ("price_weight = 0.1", "price_weight needs prices. Name a file in [price], or leave price_weight out."),
        ("budget_money = 3", "budget_money needs prices."),
        ("price_weight = -1", "price_weight must be a number of at least 0"),
    ],
)
def test_quorum_and_price_keys(tmp_path: Path, line: str, message: str) -> None:
    assert message in refusal(tmp_path, changed("rounds = 3", f"rounds = 3\n{line}"))


def test_prices_come_from_the_scenarios_folder_for_the_servers_zone_too(tmp_path: Path) -> None:
    text = BASE + '\n[price]\nfile = "prices.csv"\n'
    write_prices(tmp_path / "prices.csv", {"FR": [0.1] * 23, "DE": [0.2] * 23})
    assert "has no prices for IE; it has DE, FR." in str(_data_refusal(tmp_path, text))
    write_prices(tmp_path / "prices.csv", {"FR": [0.1] * 22, "DE": [0.2] * 22, "IE": [-0.3] * 22})
    assert "The prices" in _data_refusal(tmp_path, text)
    assert "2022-01-01T22:00Z; 2022-01-01T00:00Z to 2022-01-01T23:00Z is outside" in _data_refusal(tmp_path, text)
    write_prices(tmp_path / "prices.csv", {"FR": [0.1] * 23, "DE": [0.2] * 23, "IE": [-0.3] * 23})
    costs = load_scenario(written(tmp_path, text)).problem().costs
    assert costs.price is not None
    assert costs.server_price is not None
    assert costs.price[costs.row].tolist() == [[0.1] * 23, [0.2] * 23]
    assert costs.server_price.tolist() == [-0.3] * 23


def _data_refusal(folder: Path, text: str) -> str:
    with pytest.raises(sw.DataError) as refused:
        load_scenario(written(folder, text)).problem()
    return str(refused.value)


def test_what_is_read(tmp_path: Path) -> None:
    text = changed("slack = 20", 'deadline = "2022-01-02T00:10+01:00"\nfine_tune = 0\nalpha = "log"')
    problem = load_scenario(written(tmp_path, text)).problem()
    assert problem.first_slot == datetime(2022, 1, 1, tzinfo=UTC)
    assert (problem.rounds, problem.slack, problem.fine_tune) == (3, 20, 0)
    assert (problem.alpha, problem.budget_kg) == ("log", 2.0)
    assert problem.server == sw.Server(zone="IE", power_w=10)
    assert [client.name for client in problem.fleet] == ["lyon", "berlin"]
    assert problem.traces.synthetic
    assert problem.traces.factor == "lifecycle"


def test_whole_numbers_will_do_for_numbers(tmp_path: Path) -> None:
    scenario = load_scenario(
        written(tmp_path, changed("budget_kg = 2.0", "budget_kg = 2\nround_minutes = 30\nalpha = 1"))
    )
    assert (scenario.budget_kg, scenario.round_minutes, scenario.alpha) == (2.0, 30.0, 1.0)


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, b"\xef\xbb\xbf" + BASE.encode())).rounds == 3


def test_a_source_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    rows = "".join(f"2022-01-01T{hour:02}:00Z,{100 + hour},{200 + hour}\n" for hour in range(6))
    for zone in ("FR", "DE", "IE"):
        (tmp_path / f"{zone}_2022.csv").write_text("datetime_utc,ci_direct_g_per_kwh,ci_lca_g_per_kwh\n" + rows)
    text = changed("slack = 20", "slack = 2").replace('"typical"', '"."')
    problem = load_scenario(written(tmp_path, text)).problem()
    assert problem.costs.intensity[0, 4] == pytest.approx(0.204)
    direct = text.replace("[data]", '[data]\nfactor = "direct"')
    assert load_scenario(written(tmp_path, direct)).problem().costs.intensity[0, 4] == pytest.approx(0.104)
    hours = text.replace("rounds = 3\nslack = 2", "rounds = 1\nslack = 1\nslot_minutes = 180")
    assert load_scenario(written(tmp_path, hours)).problem().costs.intensity[0] == pytest.approx([0.201, 0.204])
    quarters = text.replace("T00:00:00Z", "T04:45:00Z").replace("rounds = 3", "rounds = 3\nslot_minutes = 15")
    last = load_scenario(written(tmp_path, quarters)).problem()
    assert last.costs.intensity[0] == pytest.approx([0.204] + [0.205] * 4), "no hour beyond the last slot is asked for"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("budget_kg =", "budget =", "FILE: unknown key 'budget'; did you mean 'budget_kg'?"),
        ("slack =", "slak =", "FILE: unknown key 'slak'; did you mean 'slack'?"),
        ("rounds =", "Rounds =", "FILE: unknown key 'Rounds'; did you mean 'rounds'?"),
        ("source =", "sauce =", "FILE, [data]: unknown key 'sauce'; did you mean 'source'?"),
        ('zone = "IE"', 'zones = "IE"', "FILE, [server]: unknown key 'zones'; did you mean 'zone'?"),
        ("power_w = 300", "power_kw = 3", "FILE, [[client]] 'lyon': unknown key 'power_kw'; did you mean 'power_w'?"),
        ('name = "berlin"', 'nme = "b"', "FILE, [[client]] number 2: unknown key 'nme'; did you mean 'name'?"),
        ("[server]", "[sever]", "FILE: unknown key 'sever'; did you mean 'server'?"),
        ("[data]", "[data]\nbudget_kg = 3", "unknown key 'budget_kg'; it belongs at the top, before the first section"),
        ("slack = 20", "slack = 20\nfactor = 'direct'", "unknown key 'factor'; it belongs in [data]"),
        ("slack = 20", "slack = 20\nxyzzy = 1", "unknown key 'xyzzy'; known: time_zone, start, rounds, goal, budget_kg"),
        ("rounds = 3\n", "", "FILE: 'rounds' is missing. `slackwater init` writes an example"),
        ('name = "berlin"\n', "", "FILE, [[client]] number 2: 'name' is missing."),
        ('zone = "FR"\n', "", "FILE, [[client]] 'lyon': 'zone' is missing."),
        ('zone = "IE"\n', "", "FILE, [server]: 'zone' is missing."),
        ("power_w = 300\n", "", "Client 'lyon' needs power_w (or energy_kwh"),
        ("rounds = 3", 'rounds = "ten"', "FILE: rounds must be a whole number, like 10, not 'ten'."),
        ("rounds = 3", "rounds = true", "FILE: rounds must be a whole number, like 10, not true."),
        ("rounds = 3", "rounds = nan", "FILE: rounds must be a whole number, like 10, not nan."),
        ("rounds = 3", "rounds = 0", "rounds must be a whole number of at least 1, not 0."),
        ("rounds = 3", "rounds = -40", "rounds must be a whole number of at least 1, not -40."),
        ("rounds = 3", "rounds = 1_000_000_000", "The horizon is 1,000,000,020 slots of 60 minutes, more than the 100,000"),
        ("slack = 20", "slack = 3.5", "FILE: slack must be a whole number, like 10, not 3.5."),
        ("slack = 20", "slack = -1", "slack must be a whole number of at least 0, not -1."),
        ("slack = 20", "deadline = 2150-01-01T00:00:00Z", "Check deadline and slot_minutes."),
        ("budget_kg = 2.0", "budget_kg = 0", "budget_kg must be a number above 0, in kg, not 0.0."),
        ("budget_kg = 2.0", "budget_kg = -2", "budget_kg must be a number above 0, in kg, not -2.0."),
        ("budget_kg = 2.0", "budget_kg = nan", "FILE: budget_kg must be a finite number, not nan."),
        ("budget_kg = 2.0", "budget_kg = inf", "FILE: budget_kg must be a finite number, not inf."),
        ("budget_kg = 2.0", "budget_kg = true", "FILE: budget_kg must be a number, without quotes or unit, not true."),
        ("budget_kg = 2.0", 'budget_kg = "2 kg"', "budget_kg must be a number, without quotes or unit, not '2 kg'."),
        ("slack = 20", "alpha = 2", "alpha must be above 0 and at most 1, or 'log', 'max-min' or 'max-min:0.5'; it is 2.0"),
        ("slack = 20", "alpha = 0", "alpha must be above 0"),
        ("slack = 20", "alpha = nan", "FILE: alpha must be a number above 0 and at most 1, or 'log' or 'max-min', not nan."),
        ("slack = 20", "alpha = true", "FILE: alpha must be a number above 0 and at most 1, or 'log'"),
        ("slack = 20", "alpha = [1]", "FILE: alpha must be a number above 0"),
        ("slack = 20", 'alpha = "fair"', "it is 'fair'"),
        ("00:00:00Z", "00:00:00", "FILE: start '2022-01-01T00:00:00' has no time zone. Add one: 2022-01-01T00:00Z for UTC."),
        ("2022-01-01T00:00:00Z", "2022-01-01", "FILE: start 2022-01-01 has no time of day. Write date, time and zone, like 2022-01-01T00"),
        ("2022-01-01T00:00:00Z", "08:00:00", "FILE: start 08:00:00 has no date."),
        ("2022-01-01T00:00:00Z", '"2022-01-01T00:00"', "FILE: start '2022-01-01T00:00:00' has no time zone."),
        ("2022-01-01T00:00:00Z", '"new year"', "FILE: start 'new year' is not a time. Write it as ISO 8601"),
        ("2022-01-01T00:00:00Z", "1640995200", "FILE: start 1640995200 is not a time. Write date, time and zone"),
        ("2022-01-01T00:00:00Z", "true", "FILE: start true is not a time."),
        ("2022-01-01T00:00:00Z", "9999-12-31T23:00:00Z", "FILE: start 9999-12-31T23:00:00+00:00 is not in the years 1900"),
        ("2022-01-01T00:00:00Z", "0001-01-01T00:00:00+05:00", "is not in the years 1900 to 2199. Is the year mistyped?"),
        ("2022-01-01T00:00:00Z", "2022-01-01T00:30:00Z", "is not the start of a 60-minute slot"),
        ("slack = 20", "deadline = 2022-01-02", "FILE: deadline 2022-01-02 has no time of day."),
        ("slack = 20", "deadline = 2022-01-02T00:00:00", "FILE: deadline '2022-01-02T00:00:00' has no time zone."),
        ("slack = 20", "slack = 20\ndeadline = 2022-01-02T00:00:00Z", "a slack of 20 and a deadline of 2022-01-02T00:00Z. Give one"),
        ("slack = 20", "deadline = 2022-01-01T02:59:00Z", "leaves 2 slots after the start 2022-01-01T00:00Z, fewer than the 3 rounds"),
        ("slack = 20", "deadline = 2021-01-01T00:00:00Z", "leaves 0 slots after the start"),
        ("slack = 20", "slot_minutes = 7", "slot_minutes is 7; a slot is a whole part of an hour"),
        ("slack = 20", "slot_minutes = 99999999999999999999", "slot_minutes is 99999999999999999999"),
        ('"typical"', '"~nobody-of-that-name/data"', "there is no such home folder. Write the path out."),
        ("slack = 20", "slot_minutes = 0", "slot_minutes is 0"),
        ("slack = 20", "slot_minutes = -60", "slot_minutes is -60"),
        ("slack = 20", "round_minutes = 61", "at most the slot's 60 minutes, not 61.0. Raise slot_minutes"),
        ("slack = 20", "fine_tune = 4", "The fine-tuning window of 4 slots is longer than the horizon of 3"),
        ("slack = 20", 'window = "some"', "FILE: window must be 'all' or 'available', not 'some'."),
        ("slack = 20", "max_parallel = 0", "max_parallel must be a whole number of at least 1, not 0."),
        ("power_w = 300", "power_w = -5", "Client 'lyon' has power_w = -5; it must be above 0 W."),
        ("power_w = 300", "power_w = nan", "FILE, [[client]] 'lyon': power_w must be a finite number, not nan."),
        ("power_w = 300", "power_w = inf", "power_w must be a finite number, not inf."),
        ("power_w = 300", "power_w = true", "power_w must be a number, without quotes or unit, not true."),
        ("power_w = 300", 'power_w = "300 W"', "power_w must be a number, without quotes or unit, not '300 W'."),
        ("power_w = 300", "power_w = 300\nrequired = 1", "required must be true or false, not 1."),
        ("power_w = 300", "power_w = 300\nmin_slots = -1", "Client 'lyon': min_slots must be a whole number from 0"),
        ("power_w = 300", "power_w = 300\nmin_slots = 99999999999", "not 99999999999."),
        ("power_w = 300", 'power_w = 300\nunavailable = "daily"', "unavailable must be a list, like [\"sat,sun\"], not 'daily'."),
        ("power_w = 300", "power_w = 300\nunavailable = [2022-01-01]", "unavailable must be text in quotes, not 2022-01-01."),
        ("power_w = 300", 'power_w = 300\nunavailable = ["noon"]', "Client 'lyon': unavailable period 'noon'"),
        ("power_w = 10", "power_w = -1", "The server's power_w must be a number of at least 0, not -1.0."),
        ("power_w = 10", "power_w = inf", "FILE, [server]: power_w must be a finite number, not inf."),
        ('zone = "FR"', 'zone = ""', "FILE, [[client]] 'lyon': zone must be filled in, not ''."),
        ('zone = "FR"', 'zone = "fr"', "There is no zone 'fr' in the typical profiles. Did you mean FR?"),
        ('zone = "IE"', 'zone = "SE-S3"', "There is no zone 'SE-S3' in the typical profiles. Did you mean"),
        ('name = "berlin"', 'name = "lyon"', "Two clients are called 'lyon'"),
        ('name = "berlin"', 'name = ""', "A client has an empty name"),
        ('name = "berlin"', "name = 7", "FILE, [[client]] number 2: name must be text in quotes, not 7."),
        ('"typical"', '""', "FILE, [data]: source is empty. Name a CSV file or a folder"),
        ('"typical"', "3", "FILE, [data]: source must be text in quotes, not 3."),
        ("[data]", '[data]\nfactor = "lca"', "FILE, [data]: factor must be 'direct' or 'lifecycle', not 'lca'."),
        ("[data]", "[data]\nfill_hours = -1", "fill_hours is -1; give 0"),
        ("[data]", "[[data]]", "FILE: 'data' must be a section, written [data], not [{'source': 'typical'}]."),
        ("rounds = 3", "rounds =", "FILE is not valid TOML: Invalid value (at line 2"),
        ("rounds = 3", "rounds = 3\nrounds = 4", "FILE is not valid TOML: Cannot overwrite a value (at line 3"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert message in refusal(tmp_path, changed(old, new))


def test_a_misspelt_key_is_not_called_missing_as_well(tmp_path: Path) -> None:
    assert "missing" not in refusal(tmp_path, changed("budget_kg", "budget_gk"))


def test_a_misspelt_time_zone_does_not_make_local_times_wrong(tmp_path: Path) -> None:
    text = changed("rounds = 3", 'rounds = 3\ntime_zone = "Europe/Pari"')
    text = re.sub(r"(?m)^start = .*", "start = 2022-03-01T00:00:00", text)
    assert refusal(tmp_path, text).count("\n") == 0
    assert "no time zone 'Europe/Pari'" in refusal(tmp_path, text)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = changed("rounds = 3", 'rounds = "ten"').replace("power_w = 300", "power = 300")
    lines = refusal(tmp_path, text).splitlines()
    assert len(lines) == 3
    assert [line.partition(": ")[0] for line in lines] == [
        "FILE",
        "FILE, [[client]] 'lyon'",
        "FILE, [[client]] 'berlin'",
    ]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ("", "There are no clients. Add at least one [[client]] with a name, a zone and power_w."),
        ('[client]\nname = "a"\n', "'client' must be a section, written [[client]], not {'name': 'a'}."),
        ('[[clients]]\nname = "a"\n', "unknown key 'clients'; did you mean 'client'?"),
    ],
)
def test_clients_that_are_none(tmp_path: Path, sections: str, message: str) -> None:
    assert message in refusal(tmp_path, BASE.split("[data]")[0] + sections)


@pytest.mark.parametrize("value", ["5", '["FR"]', '"FR"'])
def test_clients_that_are_no_sections(tmp_path: Path, value: str) -> None:
    text = BASE.split("[data]")[0] + f"client = {value}\n"
    assert "FILE: 'client' must be a section, written [[client]], not" in refusal(tmp_path, text)


@pytest.mark.parametrize("content", [b"\x00\xff\xfe\x89PNG", BASE.encode("utf-16")])
def test_what_is_no_text(tmp_path: Path, content: bytes) -> None:
    assert refusal(tmp_path, content) == "FILE is not a text file in UTF-8. A scenario is TOML; save it as UTF-8."


def test_an_empty_file(tmp_path: Path) -> None:
    assert refusal(tmp_path, "").count("is missing") == 3


def test_a_folder_and_nothing(tmp_path: Path) -> None:
    with pytest.raises(sw.ScenarioError, match=r"is a folder\. Name the scenario in it, like .*scenario\.toml"):
        load_scenario(tmp_path)
    with pytest.raises(
        sw.ScenarioError, match=r"no scenario at .*x\.toml\. Create one with: slackwater init .*x\.toml"
    ):
        load_scenario(tmp_path / "x.toml")
    (tmp_path / "file").write_text("")
    with pytest.raises(sw.ScenarioError, match="cannot be read: Not a directory"):
        load_scenario(tmp_path / "file" / "x.toml")
