"""Names, not node ids: who is asked, who is believed, and who is refused."""

from __future__ import annotations

import logging

import pytest
from flwr.clientapp import ClientApp
from small_apps import SITES, TroubledGrid, adding_app

from slackwater.engines.flower.grid import Identities


def looked(grid: TroubledGrid, **options: object) -> Identities:
    return Identities(grid, patience_s=0.05, poll_s=0.01, **options)  # type: ignore[arg-type]


def test_nodes_say_who_they_are() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    found = looked(grid).look()
    assert {name: node for name, (node, _) in found.items()} == grid.ids
    assert found["lyon"][1].zone == "FR"
    assert found["lyon"][1].power_w == 300
    assert found["helsinki"][1].power_w is None
    assert not found["lyon"][1].verified


def test_a_node_is_asked_once() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    identities = looked(grid)
    identities.look()
    identities.look()
    assert len(grid.pushed) == len(SITES)


def test_a_restarted_node_is_known_by_its_name() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    identities = looked(grid)
    old = identities.look()["lyon"][0]
    new = grid.restart("lyon")
    grid.gone.add(old)
    assert identities.look()["lyon"][0] == new


def test_two_nodes_of_one_name_are_both_refused_until_one_is_gone() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    identities = looked(grid)
    old = identities.look()["lyon"][0]
    new = grid.restart("lyon")
    assert "lyon" not in identities.look()
    assert "2 nodes have the name 'lyon'" in identities.refused["lyon"]
    grid.gone.add(old)
    assert identities.look()["lyon"][0] == new
    assert identities.refused == {}


def test_a_registered_name_counts_and_needs_no_waiting() -> None:
    grid = TroubledGrid(ClientApp(), SITES)  # without our helper
    grid.registered = {node: name for name, node in grid.ids.items()}
    grid.silent = set(grid.ids.values())
    found = looked(grid).look()
    assert set(found) == set(SITES)
    assert found["lyon"][1].verified
    assert found["lyon"][1].zone is None


def test_a_node_that_claims_another_than_its_registered_name_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    grid = TroubledGrid(adding_app(), SITES)
    grid.registered = {grid.ids["lyon"]: "paris", grid.ids["dublin"]: "dublin"}
    identities = looked(grid)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # verified nodes are not waited for, so the answer may be read at a later look
            found = identities.look()
    assert "paris" not in found
    assert "lyon" not in found
    assert found["dublin"][1].verified
    assert found["dublin"][1].zone == "IE"
    assert "registered as 'paris' but reports the name 'lyon'" in identities.refused["paris"]
    assert caplog.text.count("registered as 'paris'") == 1


def test_a_registered_name_wins_over_one_that_is_only_claimed() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    grid.registered = {grid.ids["lyon"]: "lyon"}
    grid.restart("lyon")  # without a key
    found = looked(grid).look()
    assert found["lyon"][1].verified


def test_a_node_without_a_name_is_refused_with_what_to_do() -> None:
    grid = TroubledGrid(ClientApp(), {"lyon": {}})
    identities = looked(grid)
    assert identities.look() == {}
    assert "--node-config" in next(iter(identities.refused.values()))
    identities.look()
    assert len(grid.pushed) == 1  # not asked again at once


def test_a_node_that_does_not_answer_is_not_waited_for_again_and_again() -> None:
    grid = TroubledGrid(adding_app(), SITES)
    grid.silent = {grid.ids["lyon"]}
    identities = looked(grid)
    assert set(identities.look()) == {"dublin", "helsinki"}
    grid.silent = set()
    assert set(identities.look()) == set(SITES)
    assert len(grid.pushed) == len(SITES)


def test_in_flowers_simulation_numbers_are_the_plans_clients() -> None:
    nodes = {str(i): {"partition-id": i, "num-partitions": 2, "name": ""} for i in range(2)}
    grid = TroubledGrid(adding_app(), nodes)
    for context in grid._contexts.values():
        context.node_config["name"] = ""
    assert set(looked(grid, names=["lyon", "dublin"]).look()) == {"lyon", "dublin"}
