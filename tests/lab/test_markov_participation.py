import hashlib
import re

import numpy as np
import pytest

from slackwater.errors import ScenarioError
from slackwater.lab.markov_participation import Process, cells, frequencies, generate, process

CELLS = cells()


def stationary(p: np.ndarray) -> np.ndarray:
    """[state], by solving mu P = mu, sum mu = 1: no use of the module's own formulas."""
    states = len(p)
    system = np.vstack([p.T - np.eye(states), np.ones(states)])
    return np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]


def test_the_eight_cells_keep_the_captions_numbers():
    assert [cell.name for cell in CELLS] == [
        f"{h}-{t}-{s}" for h in ("HO", "HE") for t in ("TU", "TC") for s in ("SU", "SC")
    ]
    for cell in CELLS:
        h, t, s = cell.name.split("-")
        assert cell.rho_h < 1 if h == "HO" else cell.rho_h > 1.5
        assert cell.rho_t < 0.1 if t == "TU" else cell.rho_t > 0.7
        assert cell.rho_s < 0.35 if s == "SU" else cell.rho_s > 0.45
        assert np.mean(cell.pi) == pytest.approx(0.52, abs=1e-12)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_figures_are_those_of_the_joint_chain(cell):
    transition = cell.joint_transition()
    assert np.all(transition >= 0)
    assert np.allclose(transition.sum(axis=1), 1)
    law = stationary(transition)
    bits = (np.arange(128)[:, np.newaxis] >> np.arange(7)) & 1
    assert np.allclose(law @ bits, cell.pi)
    centred = bits - np.array(cell.pi)
    covariance = (centred * law[:, np.newaxis]).T @ centred
    deviation = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviation, deviation)
    assert correlation[np.triu_indices(7, 1)].mean() == pytest.approx(cell.rho_s, abs=1e-9)
    # Client c's part of the next state depends on its own present one alone, so that it is a Markov chain by itself.
    follows = transition @ bits
    for client, p in enumerate(cell.pi):
        for now in (0, 1):
            assert np.allclose(follows[bits[:, client] == now, client], cell.rho_t * now + (1 - cell.rho_t) * p)
    assert cell.joint_rho_ts() == pytest.approx(cell.rho_ts, abs=1e-9)


@pytest.mark.parametrize("coupling", [0.0, 0.3, 1.0])
def test_rho_ts_equals_rho_t_for_any_coupling(coupling):
    chain = Process(name="x", pi=(0.2, 0.5, 0.9, 1.0), rho_t=0.6, coupling=coupling)
    assert chain.joint_rho_ts() == pytest.approx(0.6, abs=1e-9)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_what_is_generated_has_the_figures(cell):
    slots = 60_000
    drawn = generate(cell, slots, seed=5).astype(float)
    # Slots of a chain count for (1 - rho_T) / (1 + rho_T) independent ones. Five standard errors: for the 7 clients of
    # 8 cells one false alarm in 30,000 seeds, and this seed is fixed.
    independent = slots * (1 - cell.rho_t) / (1 + cell.rho_t)
    pi = np.array(cell.pi)
    assert np.all(np.abs(drawn.mean(axis=1) - pi) < 5 * np.sqrt(pi * (1 - pi) / independent))
    lag_one = np.mean([np.corrcoef(row[:-1], row[1:])[0, 1] for row in drawn])
    assert lag_one == pytest.approx(cell.rho_t, abs=0.02)
    assert np.corrcoef(drawn)[np.triu_indices(7, 1)].mean() == pytest.approx(cell.rho_s, abs=0.03)


def test_the_first_slot_is_stationary():
    # A start from independent draws would give a correlation of 0 here; 4000 draws, so five standard errors are 0.08.
    chain = process([0.5, 0.5], rho_t=0.9, rho_s=0.8)
    first = np.array([generate(chain, 1, seed=seed)[:, 0] for seed in range(4000)], dtype=float)
    assert np.corrcoef(first.T)[0, 1] == pytest.approx(0.8, abs=0.08)
    assert np.allclose(first.mean(axis=0), 0.5, atol=0.04)


def test_the_same_seed_gives_the_same_and_a_longer_run_continues_the_shorter():
    cell = CELLS[-1]
    drawn = generate(cell, 100, seed=7)
    assert drawn.shape == (7, 100)
    assert drawn.dtype == np.bool_
    assert np.array_equal(drawn, generate(cell, 100, seed=7))
    assert not np.array_equal(drawn, generate(cell, 100, seed=8))
    assert np.array_equal(drawn, generate(cell, 1000, seed=7)[:, :100])
    assert hashlib.sha256(np.packbits(drawn).tobytes()).hexdigest()[:16] == "e2697a46429b942a"


def test_chosen_figures_are_met():
    chain = process(frequencies(12, 2.0), rho_t=0.75, rho_s=0.2)
    assert chain.rho_h == pytest.approx(2.0, abs=1e-9)
    assert (chain.rho_t, chain.rho_ts) == (0.75, 0.75)
    assert chain.rho_s == pytest.approx(0.2, abs=1e-12)
    # Always present: without variance it has no correlation, and stays out of the mean.
    assert generate(process([1.0, 0.5, 0.5], rho_s=1.0), 50)[0].all()
    assert process([1.0, 0.5, 0.5], rho_s=1.0).rho_s == pytest.approx(1.0)
    assert process([0.3], rho_t=0.5).rho_s == 0.0


def test_many_clients():
    assert all(len(cell.pi) == 100 for cell in cells(100))
    assert generate(cells(100)[-1], 50).shape == (100, 50)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: process([]), "the list is empty"),
        (lambda: process([0.5, 0.0]), "client number 2 has 0.0"),
        (lambda: process([0.5, 1.5]), "client number 2 has 1.5"),
        (lambda: process([0.5], rho_t=1.0), "rho_t is 1.0"),
        (lambda: process([0.2, 0.8], rho_s=0.5), "0 to 0.25"),
        (lambda: process([0.5], rho_s=0.5), "0 to 0"),
        (lambda: frequencies(7, 0.5), "rho_h is 0.5; 7 clients with a mean frequency of 0.52 can have 0.9231 to"),
        (lambda: frequencies(0), "clients is 0"),
        (lambda: generate(CELLS[0], 0), "slots is 0"),
        (lambda: process([0.5] * 11).joint_transition(), "2^11 states"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(ScenarioError, match=re.escape(message)):
        call()
