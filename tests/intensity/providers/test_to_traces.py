"""Several providers in a row, and what planning gets from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from cases import CASES, make_context
from fakes import HOUR, NOW, ElectricityMapsFake, EnergyChartsFake, floor
from loopback import Loopback, Reply, running

import slackwater as sw
import slackwater.intensity.providers
from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.forecast.base import STATED_COVERAGE
from slackwater.intensity.providers.base import Context, Provider
from slackwater.intensity.providers.cache import Cache
from slackwater.intensity.providers.chain import PROVIDERS, Chain, make_provider, usual_providers
from slackwater.intensity.providers.provider_errors import UnavailableError
from slackwater.intensity.providers.readings import Intake
from slackwater.intensity.providers.to_traces import forecast, traces
from slackwater.ledger.ledger import ModelledCharges
from slackwater.units import iso

DAY = NOW.replace(hour=0, minute=0) - timedelta(days=3)
Servers = dict[str, Loopback]


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield {case.name: stack.enter_context(running(case.fake(), NOW)) for case in CASES}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "intensity.sqlite")


def context(servers: Servers, factor: str = "lifecycle") -> Context:
    return make_context({name: server.address for name, server in servers.items()}, factor=factor)  # type: ignore[arg-type]


def test_the_first_that_has_it_gives_it(servers: Servers) -> None:
    chain = Chain(["energycharts", "electricitymaps"], context=context(servers))
    answer = chain.fetch(["DE", "SE-SE3"], DAY, DAY + 3 * HOUR, "actual").expect()
    assert {reading.source for reading in answer.of("DE")} == {"energycharts"}
    assert {reading.source for reading in answer.of("SE-SE3")} == {"electricitymaps"}
    assert not answer.notes, "a provider that never has a zone is no news"


def test_the_next_takes_over_when_one_is_down_and_that_is_said(servers: Servers) -> None:
    servers["energycharts"].always = Reply(status=500)
    answer = Chain(["energycharts", "electricitymaps"], context=context(servers)).fetch(
        ["DE"], DAY, DAY + 3 * HOUR, "actual"
    )
    assert {reading.source for reading in answer.expect().readings} == {"electricitymaps"}
    assert "energycharts is down (500)" in answer.notes[0]


def test_that_all_are_down_passes_and_that_nobody_has_it_does_not(servers: Servers) -> None:
    chain = Chain(["energycharts", "entsoe"], context=context(servers))
    (nobody,) = chain.fetch(
        ["SE-SE3"], DAY - timedelta(days=9999), DAY - timedelta(days=9998), "forecast"
    ).failures.values()
    assert not isinstance(nobody, UnavailableError)
    for name in ("energycharts", "entsoe"):
        servers[name].always = Reply(status=503)
    (down,) = chain.fetch(["DE"], DAY, DAY + 3 * HOUR, "actual").failures.values()
    assert isinstance(down, UnavailableError)
    assert "energycharts is down (503)" in str(down)


@pytest.mark.parametrize(("hours_ago", "told"), [(3, False), (30, True)])
def test_hours_that_nobody_has_published_yet_are_no_news(servers: Servers, hours_ago: int, told: bool) -> None:
    ends = floor(NOW) - hours_ago * HOUR
    servers["energycharts"].answers = EnergyChartsFake(lambda when: 100.0 if when < ends else None)
    servers["electricitymaps"].answers = ElectricityMapsFake(lambda when: None)
    chain = Chain(["energycharts", "electricitymaps"], context=context(servers))
    answer = chain.fetch(["DE"], DAY, NOW, "actual").expect()
    assert max(reading.end for reading in answer.readings) == ends
    assert any("electricitymaps has no usable actual values" in note for note in answer.notes) == told
    assert any("values are null" in note for note in answer.notes) == told


def test_priority_by_zone(servers: Servers) -> None:
    chain = Chain({"DE": ["entsoe"], "*": ["electricitymaps"]}, context=context(servers))
    answer = chain.fetch(["DE", "FR"], DAY, DAY + 3 * HOUR, "actual").expect()
    assert {(reading.zone, reading.source) for reading in answer.readings} == {
        ("DE", "entsoe"),
        ("FR", "electricitymaps"),
    }
    nobody = Chain({"DE": ["entsoe"]}, context=context(servers)).fetch(["FR"], DAY, DAY + 3 * HOUR, "actual")
    assert "No provider is named for zone FR" in str(nobody.failures["FR"])


def test_missing_hours_are_filled_by_the_next(servers: Servers) -> None:
    gap = DAY + 2 * HOUR
    servers["energycharts"].answers = CASES[3].fake(lambda when: None if gap <= when < gap + HOUR else 300)
    chain = Chain(["energycharts", "electricitymaps"], context=context(servers))
    answer = chain.fetch(["DE"], DAY, DAY + 5 * HOUR, "actual").expect()
    assert [reading.source for reading in answer.readings if reading.start == gap] == ["electricitymaps"]
    assert sum(reading.minutes for reading in answer.readings) == 300


def test_new_values_of_the_second_go_before_old_ones_of_the_first(servers: Servers, cache: Cache) -> None:
    yesterday = NOW.replace(hour=0, minute=0) - timedelta(days=1)  # not settled yet
    made = context(servers)
    chain = Chain(["energycharts", "electricitymaps"], context=made, cache=cache)
    chain.fetch(["DE"], yesterday, yesterday + 3 * HOUR, "actual").expect()
    made.client.now = lambda: NOW + 2 * HOUR
    servers["energycharts"].always = Reply(status=500)
    answer = chain.fetch(["DE"], yesterday, yesterday + 3 * HOUR, "actual").expect()
    assert {(reading.source, reading.stale) for reading in answer.readings} == {("electricitymaps", False)}
    servers["electricitymaps"].always = Reply(status=500)
    made.client.now = lambda: NOW + 6 * HOUR
    last = chain.fetch(["DE"], yesterday, yesterday + 3 * HOUR, "actual").expect()
    assert {(reading.source, reading.stale) for reading in last.readings} == {("energycharts", True)}
    assert any("old values from the cache" in note for note in last.notes)


def test_nobody_is_asked_for_actual_values_of_the_future(servers: Servers) -> None:
    chain = Chain(["energycharts", "electricitymaps"], context=context(servers))
    answer = chain.fetch(["DE"], NOW + HOUR, NOW + 5 * HOUR, "actual")
    assert "in the future. Ask for forecasts." in str(answer.failures["DE"])
    assert "in the past" in str(chain.fetch(["DE"], DAY, DAY + HOUR, "forecast").failures["DE"])
    assert not servers["energycharts"].asked
    assert not servers["electricitymaps"].asked


def test_other_factors_are_refused_unless_asked_for(servers: Servers, cache: Cache) -> None:
    with pytest.raises(DataError, match=r"neso has direct intensity, not lifecycle.*mix_factors"):
        traces(["GB"], DAY, DAY + 3 * HOUR, providers=["neso"], cache=cache, context=context(servers))
    names = {"GB": ["neso"], "DE": ["energycharts"], "WT:CAISO_NORTH": ["watttime"]}
    with pytest.raises(DataError):
        traces(list(names), DAY, DAY + 3 * HOUR, providers=names, cache=cache, context=context(servers))
    mixed = traces(
        list(names), DAY, DAY + 3 * HOUR, providers=names, cache=cache, mix_factors=True, context=context(servers)
    )
    assert mixed.factor == "mixed"
    assert ["direct" in mixed.provenance[0].source, "lifecycle" in mixed.provenance[1].source] == [True, True]
    assert "marginal" in mixed.provenance[2].source


def test_a_provider_that_gives_another_factor_than_it_says_is_caught(servers: Servers) -> None:
    answer = Chain({"GB": ["neso"], "*": ["energycharts"]}, context=context(servers), mix_factors=True).fetch(
        ["GB", "DE"], DAY, DAY + HOUR, "actual"
    )
    with pytest.raises(DataError, match=r"different emission factors \(direct: GB; lifecycle: DE\)"):
        slackwater.intensity.providers.to_traces(answer, ["GB", "DE"], DAY, DAY + HOUR)


def test_traces_average_to_slots_and_tell_their_origin(servers: Servers, cache: Cache) -> None:
    made = traces(
        ["GB"], DAY, DAY + 4 * HOUR, factor="direct", providers="neso", cache=cache, context=context(servers, "direct")
    )
    assert made.intensity[0] == pytest.approx([0.1, 0.101, 0.102, 0.103])
    assert (made.factor, made.slot_minutes, made.synthetic) == ("direct", 60, False)
    assert made.provenance[0].source == "neso: 4 h actual, direct, fetched 2026-11-10T12:20Z"
    two = traces(
        ["GB"], DAY, DAY + 4 * HOUR, providers="neso", cache=cache, slot_minutes=120, context=context(servers, "direct")
    )
    assert two.intensity[0] == pytest.approx([0.1005, 0.1025])
    half = traces(
        ["GB"], DAY, DAY + HOUR, providers="neso", cache=cache, slot_minutes=15, context=context(servers, "direct")
    )
    assert half.slots == 4


def test_a_factor_goes_before_the_contexts(servers: Servers, cache: Cache) -> None:
    made = traces(
        ["FR"], DAY, DAY + HOUR, factor="direct", providers="electricitymaps", cache=cache, context=context(servers)
    )
    assert made.factor == "direct"
    assert servers["electricitymaps"].asked[0].query["emissionFactorType"] == "direct"


def test_what_is_past_is_actual_and_the_rest_forecast(servers: Servers, cache: Cache) -> None:
    start = floor(NOW) - 3 * HOUR
    made = traces(["FR"], start, start + 10 * HOUR, providers="electricitymaps", cache=cache, context=context(servers))
    assert made.slots == 10
    assert "4 h actual, 6 h forecast" in made.provenance[0].source
    assert made.provenance[0].hours("forecast") == tuple(iso(start + hour * HOUR) for hour in range(4, 10))


def test_what_is_charged_by_a_forecast_says_so_in_the_ledger(servers: Servers, cache: Cache, tmp_path: Path) -> None:
    start = floor(NOW) - 3 * HOUR
    made = traces(["FR"], start, start + 10 * HOUR, providers="electricitymaps", cache=cache, context=context(servers))
    problem = sw.Problem(
        clients=[sw.Client(name="lyon", zone="FR", power_w=300)], traces=made, rounds=10, slack=0, budget_kg=9
    )
    path = tmp_path / "plan.json"
    sw.plan(problem).save(path)
    lines = ModelledCharges(sw.Plan.load(path)).of(0, 9)
    assert [line.intensity_kind for line in lines] == ["actual"] * 4 + ["forecast"] * 6


def test_gaps_are_errors_unless_filled(servers: Servers, cache: Cache) -> None:
    gap = DAY + 2 * HOUR
    servers["neso"].answers = CASES[2].fake(lambda when: None if gap <= when < gap + HOUR else 300)
    made = context(servers, "direct")
    with pytest.raises(DataError, match=r"Zone GB \(neso\) lacks 1 hour of direct intensity.*--fill 1"):
        traces(["GB"], DAY, DAY + 5 * HOUR, providers="neso", cache=cache, context=made)
    filled = traces(["GB"], DAY, DAY + 5 * HOUR, providers="neso", cache=cache, fill_hours=1, context=made)
    assert filled.provenance[0].filled_hours == (f"{gap:%Y-%m-%dT%H:%MZ}",)


def test_nothing_at_all_names_every_reason(servers: Servers, cache: Cache) -> None:
    with pytest.raises(DataError, match=r"No provider has actual values of XX.*neso.*energycharts"):
        traces(
            ["XX"], DAY, DAY + HOUR, providers=["neso", "energycharts"], cache=cache, context=context(servers, "direct")
        )


def test_settings_that_make_no_sense(servers: Servers, cache: Cache) -> None:
    for settings, words in (
        ({"slot_minutes": 7}, "slot_minutes is 7; a slot is a whole part of an hour"),
        ({"slot_minutes": 90}, "slot_minutes is 90; a slot is a whole part of an hour"),
        ({"slot_minutes": 300}, "slot_minutes is 300; a slot is a whole part of an hour"),
        ({"factor": "mixed"}, "mix_factors"),
        ({"fill_hours": -1}, "fill_hours"),
        ({"providers": []}, "at least one"),
        ({"slot_minutes": 1440}, "whole number of 1440-minute slots"),
    ):
        with pytest.raises(ScenarioError, match=words):
            traces(["GB"], DAY, DAY + 3 * HOUR, cache=cache, context=context(servers), **settings)  # type: ignore[arg-type]


def test_a_forecast_for_planning(servers: Servers, cache: Cache) -> None:
    start = floor(NOW) + HOUR
    made = forecast(
        ["FR"], start, start + 24 * HOUR, providers="electricitymaps", cache=cache, context=context(servers)
    )
    assert (made.slots, made.coverage, made.factor) == (24, STATED_COVERAGE, "lifecycle")
    assert np.all(made.low < made.mean)
    assert np.all(made.mean < made.high)
    assert made.source.startswith("electricitymaps: 24 h forecast")
    planned = made.traces()
    assert planned.forecast_zones() == ["FR"]
    assert len(planned.provenance[0].hours("forecast")) == 24
    assert {one.source for one in planned.provenance[0].origins} == {"electricitymaps"}


def test_who_is_asked_if_nobody_is_named(servers: Servers) -> None:
    made = context(servers)
    assert usual_providers(made.keys) == ("electricitymaps", "neso", "energycharts", "entsoe", "eia", "watttime")
    bare = slackwater.intensity.providers.Keys({}, Path("none"))
    assert usual_providers(bare) == ("neso", "energycharts")
    answer = Chain(context=dataclasses.replace(made, keys=bare)).fetch(["DE"], DAY, DAY + HOUR, "actual").expect()
    assert answer.readings[0].source == "energycharts"


def test_every_value_carries_where_it_is_from(servers: Servers) -> None:
    answer = (
        Chain(["electricitymaps"], context=context(servers)).fetch(["FR"], NOW, NOW + 5 * HOUR, "forecast").expect()
    )
    for reading in answer.readings:
        assert (reading.source, reading.kind, reading.factor) == ("electricitymaps", "forecast", "lifecycle")
        assert (reading.fetched_at, reading.issued_at) == (NOW, NOW - HOUR)


class Constant(Provider):
    """As third parties write one."""

    name = "constant"
    factors = ("direct",)

    def read(self, intake: Intake) -> None:
        start = intake.start
        while start < intake.end:
            intake.add(start, 60, float(self.context.option))
            start += HOUR


def test_a_provider_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from slackwater.intensity.providers import chain as registry

    point = EntryPoint("constant", "test_to_traces:Constant", registry.PROVIDERS.group)
    monkeypatch.setattr("slackwater.registry.entry_points", lambda group: [point])
    provider = make_provider("constant:42", make_context({}, factor="direct"))
    answer = provider.fetch(["anywhere"], DAY, DAY + 2 * HOUR, "actual").expect()
    assert [reading.kg_per_kwh for reading in answer.readings] == [0.042] * 2
    assert "constant" in registry.provider_names()


def test_something_that_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROVIDERS.own, "odd", lambda _: "text")  # type: ignore[arg-type, return-value]
    with pytest.raises(ScenarioError, match="is not a"):
        make_provider("odd", make_context({}))


def test_public_names() -> None:
    assert list(slackwater.intensity.providers.__all__) == sorted(slackwater.intensity.providers.__all__)
    assert all(hasattr(slackwater.intensity.providers, name) for name in slackwater.intensity.providers.__all__)
