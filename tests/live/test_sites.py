"""Codec, screening, metering, roster: each on its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import live_world as world
import numpy as np
import pytest

from slackwater.errors import ScenarioError
from slackwater.live.charging import Meter
from slackwater.live.folder import LiveSettings
from slackwater.live.sites import Attendance, Reply, Site
from slackwater.live.updates import Codec, UnusableUpdateError
from slackwater.planning.fleet import Client
from slackwater.planning.problem import Problem
from slackwater.training.global_model import Screening


def test_models_come_back_as_they_were() -> None:
    rng = np.random.default_rng(0)
    model = {
        name: (rng.standard_normal(array.shape) * 10).astype(array.dtype) for name, array in world.initial().items()
    }
    codec = Codec(world.initial())
    vector, buffers = codec.split(model)
    assert vector.size == 8
    assert set(buffers) == {"norm.running_mean", "norm.num_batches_tracked"}
    again = codec.join(vector, buffers)
    assert list(again) == list(model)
    assert world.same(again, model)
    assert [again[name].dtype for name in again] == [model[name].dtype for name in model]
    again["layer.bias"][:] = 7  # a copy: nobody can change the global model by its arrays
    assert world.same(codec.join(vector, buffers), model)


def test_double_precision_and_other_buffers_are_kept() -> None:
    model = {"w": np.array([1.0, 1e-12]), "ema.decay": np.array([0.5], dtype=np.float32)}
    codec = Codec(model, buffers=(".decay",))
    vector, buffers = codec.split(model)
    assert vector.tolist() == [1.0, 1e-12]
    assert set(buffers) == {"ema.decay"}
    with pytest.raises(ScenarioError, match="no trainable parameters"):
        Codec({"steps": np.array([1])})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layer.bias": np.array([np.nan, 1], dtype=np.float32)}, "NaN or infinite values"),
        ({"norm.running_mean": np.array([np.inf, 1], dtype=np.float32)}, "values in norm.running_mean"),
        ({"layer.bias": np.zeros(3, dtype=np.float32)}, r"shape \(3,\), but the model has \(2,\)"),
        ({"layer.bias": np.zeros(2, dtype=np.int64)}, "has type int64"),
        ({"more": np.zeros(2)}, r"arrays differ from the model's \(more\)"),
    ],
)
def test_what_is_no_model_of_ours_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UnusableUpdateError, match=why):
        Codec(world.initial()).split(world.initial() | change)


def test_long_updates_are_rejected_whoever_comes_first() -> None:
    one, other = Screening(10.0), Screening(10.0)
    assert one.too_long({0: 1.0, 1: 1.2, 2: 50.0}).keys() == {2}
    assert other.too_long({2: 50.0, 1: 1.2, 0: 1.0}).keys() == {2}
    assert one.to_dict() == other.to_dict() == {"0": [1.0], "1": [1.2]}
    assert Screening(10.0).too_long({0: 1.0, 1: 500.0}) == {}  # too few to tell which is odd
    one.restore({"0": [1.0], "1": [1.0]})
    assert one.too_long({0: 11.0})[0] == pytest.approx(11.0)
    assert one.too_long({0: 9.9}) == {}
    assert Screening(None).too_long({0: 1.0, 1: 1.0, 2: 1e9}) == {}


def test_a_huge_first_update_is_rejected_with_one_other_update() -> None:
    screening = Screening(10.0)
    for _ in range(3):  # in every round: it never enters the history
        assert screening.too_long({0: 1.0, 1: 1e6}, model_norm=5.0).keys() == {1}
    assert screening.to_dict() == {"0": [1.0, 1.0, 1.0]}
    assert screening.too_long({1: 4.0}, model_norm=5.0) == {}  # an honest one is used
    assert screening.too_long({1: 1e6}, model_norm=1e9).keys() == {1}  # two histories: the model no longer counts


@pytest.mark.parametrize("model_norm", [0.0, 5.0])
def test_a_first_update_alone_is_compared_with_the_model_only(model_norm: float) -> None:
    long = Screening(10.0).too_long({0: 501.0}, model_norm=model_norm)
    assert long == ({0: pytest.approx(100.2)} if model_norm else {})  # nothing to compare with a model of zeros
    assert Screening(10.0).too_long({0: 499.0}, model_norm=model_norm) == {}


def test_a_client_alone_is_compared_with_its_own_history() -> None:
    screening = Screening(10.0)
    assert screening.too_long({0: 2.0}, model_norm=1e3) == {}
    assert screening.too_long({0: 19.0}, model_norm=1e3) == {}
    assert screening.too_long({0: 191.0}, model_norm=1e3).keys() == {0}  # 190 is ten times its longest


def test_honest_clients_of_very_different_data_are_used_from_their_first_update() -> None:
    screening = Screening(10.0)
    assert screening.too_long({0: 0.02, 1: 1.9}, model_norm=0.0) == {}
    assert screening.too_long({0: 0.02, 1: 1.9}, model_norm=0.0) == {}


def test_updates_of_length_zero_do_not_switch_the_check_off() -> None:
    screening = Screening(10.0)
    screening.too_long({0: 0.0, 1: 0.0}, model_norm=3.0)
    assert screening.too_long({0: 1e6, 1: 0.0}, model_norm=3.0).keys() == {0}


def test_an_honest_update_after_another_client_was_long_alone_is_not_rejected() -> None:
    screening = Screening(10.0)
    screening.too_long({0: 4.0})
    for halvings in range(12):
        screening.too_long({1: 4.0 * 0.5**halvings})
    assert screening.too_long({2: 5.0}) == {}
    assert screening.too_long({3: 500.0}).keys() == {3}


def reply(seconds: float | None = None, **more: Any) -> Reply:
    times = {} if seconds is None else {"started_at": world.START, "ended_at": world.START + timedelta(seconds=seconds)}
    return Reply(**{"client": "lyon", "outcome": "done"} | times | more)


def metered(meter: Meter, answer: Reply, seen_s: float = 3600.0, client: int = 0) -> tuple[float, str, bool]:
    read = meter.read(client, answer, world.START, world.START + timedelta(seconds=seen_s))
    return pytest.approx(read.energy_kwh), read.method, read.corrects


def test_energy_is_measured_else_modelled_else_all_that_was_booked() -> None:
    meter = Meter(world.problem(), 3600.0)
    assert metered(meter, reply(900)) == (0.25, "modelled", True)
    assert metered(meter, reply(), seen_s=1800) == (0.5, "modelled", True)
    assert metered(meter, reply(9000)) == (1.0, "modelled", True)  # never longer than we saw
    assert metered(meter, reply(900, energy_kwh=0.4)) == (0.4, "measured", True)
    assert metered(meter, reply(900, energy_kwh=float("nan"))) == (0.25, "modelled", True)
    assert metered(meter, reply(900, energy_kwh=-1.0)) == (0.25, "modelled", True)
    assert metered(meter, reply(900, outcome="failed")) == (0.25, "modelled", True)
    assert metered(meter, reply(900, outcome="late")) == (1.0, "modelled", False)
    assert metered(meter, reply(outcome="lost")) == (1.0, "modelled", False)
    assert metered(Meter(world.problem(), 0.0), reply(5)) == (1.0, "modelled", False)  # no time to compare with
    assert metered(Meter(world.problem(), 10.0), reply(5), seen_s=6) == (0.5, "modelled", True)  # compressed


def test_energy_knows_pue_idle_draw_and_shorter_rounds() -> None:
    fleet = [
        Client(name="lyon", zone="FR", power_w=1000, idle_w=200, pue=1.5),
        Client(name="oslo", zone="NO", energy_kwh=0.7),
    ]
    asked = Problem(
        clients=fleet, traces=world.actuals(4), start=world.START, rounds=4, budget_kg=9.0, round_minutes=30
    )
    meter = Meter(asked, 3600.0)
    assert meter.allowed_seconds == 1800.0
    assert metered(meter, reply(900)) == (0.5 * 0.8 * 0.5 * 1.5, "modelled", True)
    assert metered(meter, reply(900, energy_kwh=0.25)) == (0.25 * 1.5 - 0.2 * 1.5 * 0.25, "measured", True)
    assert metered(meter, reply(900), client=1) == (0.7, "modelled", False)  # what a round takes, however long it takes


def test_who_is_there_and_who_is_away() -> None:
    roster = Attendance(world.problem().fleet, gone_after=2, max_rejections=2)
    sites = {name: Site(name=name) for name in world.NAMES}
    there, said = roster.look(sites, 0)
    assert there.all()
    assert said == []
    without = {name: site for name, site in sites.items() if name != "oslo"}
    assert roster.look(without, 1)[1] == []
    there, said = roster.look(without, 2)
    assert not there[1]
    assert roster.away.tolist() == [False, True, False]
    assert "oslo was offline for 2 slots in a row" in said[0]
    assert roster.look(without, 3)[1] == []
    again = Attendance(world.problem().fleet, gone_after=2, max_rejections=2)
    again.restore(roster.to_dict())
    there, said = again.look(sites, 4)
    assert there.all()
    assert said == ["oslo is back; it keeps its history."]


def test_before_anybody_was_looked_for_nobody_is_away() -> None:
    fleet = Problem.from_costs(np.ones((3, 4)), rounds=2, slack=2, budget_kg=9.0).fleet
    assert not Attendance(fleet, gone_after=3, max_rejections=2).away.any()


@pytest.mark.parametrize(("name", "least"), [("makeup", 1.0), ("max_norm_ratio", 1.0), ("margin_seconds", 0.0)])
def test_settings_at_their_least_are_taken_and_less_is_refused(name: str, least: float) -> None:
    assert getattr(LiveSettings(**{name: least}), name) == least
    with pytest.raises(ScenarioError, match=name):
        LiveSettings(**{name: least - 0.01})


def test_sites_that_contradict_the_plan_do_not_train() -> None:
    roster = Attendance(world.problem().fleet, gone_after=9, max_rejections=2)
    sites = {
        "lyon": Site(name="lyon", zone="DE"),
        "oslo": Site(name="oslo", power_w=1200.0),
        "rome": Site(name="rome", zone="IT", power_w=900.0),
        "stranger": Site(name="stranger"),
    }
    there, said = roster.look(sites, 0)
    assert there.tolist() == [False, False, True]
    assert any("lyon reports zone DE, but the plan has FR" in one for one in said)
    assert any("oslo reports 1200 W, but the plan has 1000 W" in one for one in said)
    assert any("stranger is online but not in the plan" in one for one in said)
    assert roster.look(sites, 1)[1] == []  # said once
    assert "1200 W" in roster.why_absent(1)


def test_who_works_in_vain_rests_longer_and_longer() -> None:
    roster = Attendance(world.problem().fleet, gone_after=2, max_rejections=9)
    sites = {name: Site(name=name) for name in world.NAMES}
    lyon, nobody = np.array([True, False, False]), np.zeros(3, dtype=bool)
    assert roster.note(0, lyon, nobody) == []
    assert "lyon did not reply 2 times in a row. It is paused until slot 4" in roster.note(1, lyon, nobody)[0]
    assert [bool(roster.look(sites, slot)[0][0]) for slot in (2, 3, 4)] == [False, False, True]
    roster.look(sites, 3)
    assert roster.away[0]
    assert roster.why_absent(0) == "paused"
    assert "until slot 8" in roster.note(4, lyon, nobody)[0]
    roster.note(8, lyon, lyon)
    assert roster.in_vain[0] == 0


def test_who_is_rejected_too_often_is_set_aside() -> None:
    roster = Attendance(world.problem().fleet, gone_after=9, max_rejections=2)
    assert roster.reject(2) is None
    message = roster.reject(2)
    assert message is not None
    assert "rome is excluded: 2 of its updates" in message
    assert roster.look({"rome": Site(name="rome")}, 0)[0].tolist() == [False, False, False]
    assert roster.why_absent(2) == "excluded"
