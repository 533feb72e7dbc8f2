import json
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slackwater.errors import DataError, ScenarioError
from slackwater.intensity.load import load_traces
from slackwater.intensity.traces import Provenance, Traces
from slackwater.planning.savings import client_savings, group_savings, study

START = datetime(2022, 1, 1, tzinfo=UTC)


def traces(intensity, slot_minutes=60):
    intensity = np.asarray(intensity, dtype=float)
    zones = tuple(f"Z{i}" for i in range(len(intensity)))
    provenance = tuple(Provenance(zone=zone, source="drawn", synthetic=True) for zone in zones)
    return Traces(
        zones=zones,
        start=START,
        intensity=intensity,
        factor="direct",
        slot_minutes=slot_minutes,
        provenance=provenance,
    )


def test_client_by_hand():
    g = np.array([[4.0, 6.0, 1.0, 5.0, 2.0]])
    # First two: 10. Cheapest two of 2, 3, 4, 5 slots: 4+6, 4+1, 4+1, 1+2.
    assert client_savings(g, 2, [0, 1, 2, 3])[0] == pytest.approx([0, 0.5, 0.5, 0.7])
    # The slacks may come in any order and more than once.
    assert client_savings(g, 2, [3, 0, 3])[0] == pytest.approx([0.7, 0, 0.7])
    assert client_savings(g, 2, []).shape == (1, 0)


def test_group_by_hand():
    g = np.array([[4.0, 1.0], [3.0, 2.9], [9.0, 5.0]])
    # Without slack 4, 3, 9: N = 1 takes the second zone. With one slot of slack 1, 2.9, 5: N = 1 takes the first.
    expected = [1 - 1 / 3, 1 - 3.9 / 7, 1 - 8.9 / 16]
    assert group_savings(g, 1, 1) == pytest.approx(expected)
    assert group_savings(g, 1, 0).tolist() == [0, 0, 0]


def test_savings_relative_to_zero_are_undefined():
    g = np.array([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    savings = client_savings(g, 2, [0, 1])
    assert np.isnan(savings[0]).all()
    assert savings[1].tolist() == [0, 1]  # 2 without slack, 0 with: that is 100 %
    # N = 1: the first zone emits 0 either way, undefined. N = 2: 0 + 0 against 0 + 2.
    group = group_savings(g, 2, 1)
    assert np.isnan(group[0])
    assert group[1] == 1


amounts = hnp.arrays(
    float,
    st.tuples(st.integers(1, 6), st.integers(1, 24)),
    elements=st.one_of(st.just(0.0), st.floats(1e-3, 10)),
    fill=st.nothing(),
)


@settings(deadline=None, derandomize=True)
@given(amounts, st.data())
def test_against_plain_loops(g, data):
    hours = data.draw(st.integers(1, g.shape[1]))
    slacks = data.draw(st.lists(st.integers(0, g.shape[1] - hours), min_size=1, max_size=8))
    found = client_savings(g, hours, slacks)
    for z, row in enumerate(g):
        for i, slack in enumerate(slacks):
            fixed, waiting = sum(row[:hours]), sum(sorted(row[: hours + slack])[:hours])
            expected = 1 - waiting / fixed if fixed else np.nan
            assert found[z, i] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    slack = slacks[0]
    fixed = sorted(sum(row[:hours]) for row in g)
    waiting = sorted(sum(sorted(row[: hours + slack])[:hours]) for row in g)
    expected = [1 - sum(waiting[:n]) / sum(fixed[:n]) if sum(fixed[:n]) else np.nan for n in range(1, len(g) + 1)]
    assert group_savings(g, hours, slack) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_savings_never_fall_with_slack_not_even_by_rounding():
    g = np.random.default_rng(0).random((54, 336))
    savings = client_savings(g, 100, range(237))
    assert (np.diff(savings, axis=1) >= 0).all()
    assert (savings[:, 0] == 0).all()


def test_power_cancels():
    g = np.random.default_rng(1).random((5, 50))
    assert client_savings(0.3 * g, 10, [5, 40]) == pytest.approx(client_savings(g, 10, [5, 40]))
    assert group_savings(0.3 * g, 10, 40) == pytest.approx(group_savings(g, 10, 40))


def test_study_of_one_start_is_the_first_slot():
    intensity = np.random.default_rng(2).random((3, 40))
    found = study(traces(intensity), hours=10, slack=20, starts=1, power_w=200)
    assert found.starts == (START,)
    savings = client_savings(intensity, 10, range(1, 21))
    assert found.heat_map == pytest.approx(savings)
    assert found.client.mean == pytest.approx(savings[:, -1])
    assert found.client.std.tolist() == [0, 0, 0]
    assert found.group.mean == pytest.approx(group_savings(intensity, 10, 20))
    # 200 W over one hour are 0.2 kWh.
    assert found.saved_kg.mean == pytest.approx(0.2 * intensity[:, :10].sum(axis=1) * savings[:, -1])
    assert found.slack_hours.tolist() == list(range(1, 21))


def test_study_over_all_starts():
    """Asked for more starts than fit, the study takes each once: here its figures are those of the three."""
    intensity = np.random.default_rng(3).random((2, 32))
    found = study(traces(intensity), hours=10, slack=20, starts=50)
    assert [start.hour for start in found.starts] == [0, 1, 2]
    each = np.array([client_savings(intensity[:, first:], 10, [20])[:, 0] for first in range(3)])
    assert found.client.mean == pytest.approx(each.mean(axis=0))
    assert found.client.std == pytest.approx(each.std(axis=0))
    assert found.client.q10 == pytest.approx(np.quantile(each, 0.1, axis=0))
    assert found.client.q90 == pytest.approx(np.quantile(each, 0.9, axis=0))
    groups = np.array([group_savings(intensity[:, first:], 10, 20) for first in range(3)])
    assert found.group.mean == pytest.approx(groups.mean(axis=0))
    assert found.client.defined.tolist() == [3, 3]


def test_starts_are_seeded_and_reach_both_ends():
    year = traces(np.random.default_rng(4).random((1, 60)))
    drawn = [study(year, hours=10, slack=40, starts=5, seed=seed).starts for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    offsets = {
        (start - START).total_seconds() / 3600
        for seed in range(30)
        for start in study(year, hours=10, slack=40, starts=5, seed=seed).starts
    }
    assert offsets == set(range(11))  # 50 of 60 hours are needed: 0 to 10


def test_length_of_slots():
    """Hourly values cut into quarters save the same, and as much in kg."""
    hourly = np.random.default_rng(5).random((3, 30))
    whole = study(traces(hourly), hours=10, slack=20, starts=1)
    quarters = study(traces(np.repeat(hourly, 4, axis=1), slot_minutes=15), hours=10, slack=20, starts=1)
    assert quarters.client.mean == pytest.approx(whole.client.mean)
    assert quarters.saved_kg.mean == pytest.approx(whole.saved_kg.mean)
    assert quarters.heat_map[:, 3::4] == pytest.approx(whole.heat_map)
    assert quarters.slack_hours[:4].tolist() == [0.25, 0.5, 0.75, 1]


def test_study_without_slack():
    found = study(traces(np.ones((2, 20))), hours=10, slack=0, starts=3)
    assert found.heat_map.shape == (2, 0)
    assert found.client.mean.tolist() == [0, 0]
    assert found.to_dict()["heat_map"] == [[], []]


def test_zone_without_emissions():
    """Undefined at some starts it is left out of the mean there; undefined at all, the mean is NaN and null in JSON."""
    intensity = np.array([[0, 0, 0, 0, 0, 0.0], [0, 0, 1, 1, 1, 0]])
    found = study(traces(intensity), hours=2, slack=2, starts=9)
    # Second zone, starts 0, 1, 2: undefined; 1 against 0+1; 2 against 1+0.
    assert found.client.defined.tolist() == [0, 2]
    assert np.isnan(found.client.mean[0])
    assert found.client.mean[1] == pytest.approx((0 + 0.5) / 2)
    assert found.saved_kg.defined.tolist() == [3, 3]
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["client"]["mean"] == [None, pytest.approx(0.25)]
    assert plain["client"]["defined"] == [0, 2]
    assert plain["heat_map"] == [[None, None], [None, None]]


def test_to_dict_says_where_it_comes_from():
    plain = json.loads(json.dumps(study(traces(np.ones((1, 9))), hours=4, slack=4, starts=1).to_dict()))
    assert plain["synthetic"] is True
    assert plain["factor"] == "direct"
    assert plain["provenance"] == [{"zone": "Z0", "source": "drawn", "synthetic": True, "filled_hours": []}]
    assert plain["starts"] == ["2022-01-01T00:00Z"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hours": 0}, "hours is 0; it must be at least 1"),
        ({"slack": -1}, "slack is -1; it must be at least 0"),
        ({"starts": 0}, "starts is 0; draw at least one"),
        ({"power_w": 0}, "power_w is 0"),
        ({"power_w": float("nan")}, "power_w is nan"),
        ({"hours": 3}, "hours is 3; give a whole number of the traces' 120-minute slots"),
        ({"slack": 5}, "slack is 5; give a whole number"),
    ],
)
def test_settings_out_of_range(wrong, message):
    with pytest.raises(ScenarioError, match=message):
        study(traces(np.ones((1, 20)), slot_minutes=120), **{"hours": 4, "slack": 4, **wrong})


def test_traces_that_are_too_short():
    short = traces(np.ones((1, 600)), slot_minutes=30)
    with pytest.raises(DataError, match="needs 336 hours, the traces have 300"):
        study(short)
    with pytest.raises(DataError, match="needs 11 slots, there are 10"):
        client_savings(np.ones((1, 10)), 5, [2, 6])
    with pytest.raises(DataError, match="needs 11 slots, there are 10"):
        group_savings(np.ones((1, 10)), 5, 6)
    with pytest.raises(ScenarioError, match="hours is 0"):
        client_savings(np.ones((1, 10)), 0, [1])
    with pytest.raises(ScenarioError, match="slack is -2"):
        group_savings(np.ones((1, 10)), 1, -2)


def test_real_year(shared_data):
    """The shape of the paper's figures of slack, on zones that have direct intensity for all of 2022."""
    zones = ["AU-NSW", "BE", "CA-QC", "DE", "ES", "FI", "FR", "GB", "IE", "NL", "PL", "SE-SE3", "SG", "US-CAL-CISO"]
    found = study(load_traces(shared_data / "ci", zones=zones, factor="direct"))
    assert len(found.starts) == 100
    assert not found.synthetic
    heat = found.heat_map
    assert (np.diff(heat, axis=1) >= 0).all()
    assert ((heat >= 0) & (heat <= 1)).all()
    # "up to 60 % reductions with 236 hours", at least 20 % for half the clients, at least 10 % for most.
    rows = [i for i, zone in enumerate(zones) if zone != "CA-QC"]
    savings = found.client.mean[rows]
    assert 0.45 < savings.max() < 0.7
    assert np.median(savings) > 0.2
    assert np.mean(savings > 0.1) > 0.8
    assert savings[zones.index("SG") - 1] < 0.05  # gas at all hours: nothing to wait for
    # Quebec emits nothing in two of three hours, for some starts in all hours: undefined there, not 100 %.
    assert 0 < found.client.defined[zones.index("CA-QC")] < 100
    # "exceed 60 % with fewer than 5 clients ... and stabilize around 20 %": few clients save more than all do.
    group = found.group
    assert (group.q10 <= group.q90).all()
    assert group.mean[:2].min() > 0.4
    assert 0.15 < group.mean[-1] < 0.3
    assert group.mean[:4].mean() > 1.5 * group.mean[-1]
