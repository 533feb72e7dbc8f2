from __future__ import annotations

import pytest

from slackwater.errors import ScenarioError
from slackwater.registry import Registry, did_you_mean, nearest, unknown_key


def test_near_names_whatever_their_case() -> None:
    assert nearest("de-Lu", ["DE-LU", "FR"]) == ["DE-LU"]
    assert did_you_mean("rigde", ["ridge", "blend"]) == " Did you mean 'ridge'?"
    assert did_you_mean("xyz", ["ridge"]) == ""
    assert unknown_key("slak", ["slack", "rounds"]) == "did you mean 'slack'?"
    assert unknown_key("xyz", ["slack", "rounds"]) == "known: slack, rounds."


def test_a_registry_knows_its_own_and_rejects_a_taken_name() -> None:
    own: dict[str, object] = {"sum": sum}
    made = Registry("aggregator", "slackwater.none", own, reserved=["all"])
    made.register("max", max)
    assert made.names() == ["max", "sum"]
    assert made.get("max") is max
    for taken in ("sum", "all"):
        with pytest.raises(ScenarioError, match=f"There is already an aggregator '{taken}'"):
            made.register(taken, min)
    with pytest.raises(ScenarioError, match=r"no aggregator 'Summ'\. Did you mean 'sum'\? Known: all, max, sum\."):
        made.get("summ", shown="Summ")
