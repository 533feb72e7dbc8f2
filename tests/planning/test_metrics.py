import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slackwater.errors import ScenarioError
from slackwater.planning import metrics
from slackwater.planning.metrics import Metrics, joint_chain_rho_ts


def measure(matrix, before=None):
    matrix = np.asarray(matrix, dtype=bool)
    before = matrix.shape[1] if before is None else before
    return Metrics.of(np.packbits(matrix, axis=1), before, np.zeros(len(matrix)))


def rows(*texts):
    return np.array([[letter == "1" for letter in text] for text in texts])


def chain(rng, p01, p11, slots):
    """One client's two-state chain from its stationary state on."""
    draws = rng.random(slots)
    state = [draws[0] < p01 / (1 - p11 + p01)]
    for draw in draws[1:]:
        state.append(draw < (p11 if state[-1] else p01))
    return np.array(state)


matrices = hnp.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 40)), elements=st.booleans(), fill=st.nothing())


def test_by_hand():
    found = measure(rows("1100", "1000", "1111"))
    assert found.pi.tolist() == [2 / 4, 1 / 4, 4 / 4]
    assert found.rho_h == pytest.approx((1 + 3 + 0) / 3)
    assert found.never == ()
    # |pi| = 7/4: shares 2/7, 1/7, 4/7 against 1/3 each: (1/21 + 4/21 + 5/21) / 2
    assert found.tv_distance == pytest.approx(5 / 21)
    # First client: P11 = 1/2, P01 = 0/1. Second: P11 = 0/1, P01 = 0/2. The third is constant.
    assert found.rho_t == pytest.approx((0.5 + 0.0) / 2)
    # Covariance 1/4 - 1/8, standard deviations 1/2 and sqrt(3)/4.
    assert found.rho_s == pytest.approx((1 / 8) / (1 / 2 * math.sqrt(3) / 4))
    assert found.rho_ts is None  # 4 slots are fewer than twice the clients
    # Weights: twice 1/(3/2), once 1/(3/4), four times 1/3.
    weights = [2 / 3, 2 / 3, 4 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3]
    assert found.effective_updates == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
    assert found.longest_absence.tolist() == [2, 3, 0]


def test_window_is_left_out():
    """Only the slots before the window count, also where that number is no multiple of 8, and bits after it do not."""
    matrix = rows("110000000111", "100000000111", "111111111111")
    for before in (3, 4, 8, 9, 12):
        part, whole = measure(matrix[:, :before]), measure(matrix, before)
        assert part.to_dict() == whole.to_dict()


def test_client_that_is_never_selected():
    found = measure(rows("0000", "0110", "0011"))
    assert found.never == (0,)
    assert found.rho_h == math.inf
    # |pi| = 1: shares 0, 1/2, 1/2.
    assert found.tv_distance == pytest.approx((1 / 3 + 1 / 6 + 1 / 6) / 2)
    # Only the four updates that there are, all of the same weight 1/(3/2).
    assert found.effective_updates == pytest.approx(4)
    assert found.longest_absence.tolist() == [4, 1, 2]


def test_nobody_is_selected():
    found = measure(np.zeros((3, 10)))
    assert found.never == (0, 1, 2)
    assert found.rho_h == math.inf
    assert (found.tv_distance, found.rho_t, found.rho_s, found.rho_ts) == (None,) * 4
    assert found.effective_updates == 0
    assert found.longest_absence.tolist() == [10, 10, 10]


def test_everybody_always():
    found = measure(np.ones((3, 10)))
    assert (found.rho_h, found.tv_distance, found.effective_updates) == (0, 0, 30)
    assert (found.rho_t, found.rho_s, found.rho_ts) == (None,) * 3


def test_no_slot_before_the_window():
    found = measure(np.ones((2, 3)), before=0)
    assert found.pi.tolist() == [0, 0]
    assert found.never == (0, 1)
    assert found.rho_h == math.inf
    assert (found.tv_distance, found.rho_t, found.rho_s, found.rho_ts) == (None,) * 4
    assert found.effective_updates == 0
    assert found.longest_absence.tolist() == [0, 0]


def test_one_slot_before_the_window():
    found = measure(rows("10", "00"), before=1)
    assert found.pi.tolist() == [1, 0]
    assert (found.rho_t, found.rho_s, found.rho_ts) == (None,) * 3
    assert found.longest_absence.tolist() == [0, 1]


def test_state_without_successor_shows_no_chain():
    assert measure(rows("0001")).rho_t is None  # nothing was seen to follow a slot with the client
    assert measure(rows("1110")).rho_t is None
    assert measure(rows("0001", "0101")).rho_t == 1  # the second alternates, the first is left out


def test_alternating_clients():
    turns = np.tile([True, False], 20)
    found = measure([turns, ~turns])
    assert found.rho_t == 1
    assert found.rho_s == pytest.approx(-1)
    assert found.rho_ts == pytest.approx(1)
    assert found.longest_absence.tolist() == [1, 1]


def test_identical_clients():
    row = np.random.default_rng(1).random(50) < 0.4
    one, four = measure([row]), measure([row] * 4)
    assert four.rho_s == pytest.approx(1)
    assert four.rho_t == pytest.approx(one.rho_t)
    assert four.rho_ts == pytest.approx(one.rho_ts)  # the pseudo-inverse sees one client


def test_independent_draws():
    """Truth 0 everywhere; 40,000 slots: a correlation has a standard deviation of 1/200, and rho_ts ~ sqrt(5/40000)."""
    found = measure(np.random.default_rng(2).random((5, 40_000)) < 0.3)
    assert found.rho_t < 0.015
    assert abs(found.rho_s) < 0.01
    assert found.rho_ts < 0.03


def test_independent_draws_in_a_short_schedule():
    """What the docstring promises: near sqrt(7/50) = 0.37 where the joint chain on 2^7 states would say 0.9."""
    rng = np.random.default_rng(3)
    estimates = [measure(rng.random((7, 50)) < 0.5).rho_ts for _ in range(100)]
    assert np.mean(estimates) == pytest.approx(math.sqrt(7 / 50), abs=0.06)


@pytest.mark.parametrize(("p01", "p11"), [(0.1, 0.8), (0.7, 0.2), (0.3, 0.3), (0.05, 0.95)])
def test_markov_chains(p01, p11):
    """Three independent chains of 20,000 slots: each has rho = |p11 - p01|, and so has the joint chain."""
    rng = np.random.default_rng(4)
    found = measure([chain(rng, p01, p11, 20_000) for _ in range(3)])
    assert found.rho_t == pytest.approx(abs(p11 - p01), abs=0.02)
    assert found.rho_ts == pytest.approx(abs(p11 - p01), abs=0.03)
    assert abs(found.rho_s) < 0.06
    assert found.pi == pytest.approx([p01 / (1 - p11 + p01)] * 3, abs=0.04)


def test_rho_ts_sees_a_follower():
    """A client that does what its neighbour did has no memory of its own, but the pair has the neighbour's."""
    lead = chain(np.random.default_rng(5), 0.1, 0.8, 20_001)
    found = measure([lead[1:], lead[:-1]])
    assert found.rho_ts == pytest.approx(0.7, abs=0.02)


@settings(deadline=None, derandomize=True)
@given(hnp.arrays(bool, st.integers(2, 60)))
def test_rho_ts_of_one_client_is_its_rho_t(row):
    found = measure([row])
    if found.rho_t is not None:
        assert found.rho_ts == pytest.approx(found.rho_t, abs=1e-9)
    else:
        assert found.rho_ts is None


def test_rho_ts_only_where_it_means_something():
    rng = np.random.default_rng(6)
    assert measure(rng.random((5, 9)) < 0.5).rho_ts is None
    assert measure(rng.random((5, 10)) < 0.5).rho_ts is not None
    assert measure(rng.random((513, 1100)) < 0.5).rho_ts is None


@settings(deadline=None, derandomize=True)
@given(matrices)
def test_against_plain_loops(matrix):
    found = measure(matrix)
    clients, slots = matrix.shape
    pi = matrix.mean(axis=1)
    assert found.pi == pytest.approx(pi)
    assert found.rho_h == pytest.approx(np.mean([(1 - p) / p for p in pi]) if all(pi) else math.inf)
    assert found.never == tuple(c for c in range(clients) if pi[c] == 0)
    runs = [[len(list(run)) for there, run in itertools.groupby(row) if not there] for row in matrix]
    assert found.longest_absence.tolist() == [max(run, default=0) for run in runs]
    weights = np.array([1 / (clients * pi[c]) for c in range(clients) for t in range(slots) if matrix[c, t]])
    assert found.effective_updates == pytest.approx(weights.sum() ** 2 / (weights**2).sum() if weights.size else 0)
    rho = []
    for row in matrix:
        after = {state: [b for a, b in itertools.pairwise(row) if a == state] for state in (False, True)}
        if after[False] and after[True]:
            rho.append(abs(np.mean(after[True]) - np.mean(after[False])))
    assert found.rho_t == (pytest.approx(np.mean(rho)) if rho else None)
    assert found.rho_ts is None or 0 <= found.rho_ts <= 1


@settings(deadline=None, derandomize=True)
@given(matrices)
def test_rho_s_is_the_mean_of_all_pairs(matrix):
    varying = matrix[matrix.any(axis=1) & ~matrix.all(axis=1)]
    found = measure(matrix).rho_s
    if len(varying) < 2:
        assert found is None
    else:
        pairs = np.corrcoef(varying.astype(float))[np.triu_indices(len(varying), k=1)]
        assert found == pytest.approx(pairs.mean(), abs=1e-9)


@settings(deadline=None, derandomize=True)
@given(matrices, st.randoms(use_true_random=False))
def test_order_of_clients_does_not_matter(matrix, random):
    order = random.sample(range(len(matrix)), len(matrix))
    here, there = measure(matrix), measure(matrix[order])
    assert there.pi.tolist() == here.pi[order].tolist()
    assert there.longest_absence.tolist() == here.longest_absence[order].tolist()
    for name in ("rho_h", "tv_distance", "rho_t", "rho_s", "effective_updates"):
        assert getattr(there, name) == getattr(here, name)  # to the last bit: distinct rows are sorted


def test_order_of_clients_does_not_matter_for_rho_ts():
    """On drawn rows: eigenvalues of contrived ones can be so ill-conditioned that rounding shows."""
    matrix = np.random.default_rng(9).random((8, 60)) < 0.4
    assert measure(matrix[::-1]).rho_ts == pytest.approx(measure(matrix).rho_ts, abs=1e-9)


def test_shared_rows_and_small_chunks_measure_the_same(monkeypatch):
    """A few patterns on many clients, through the distinct rows and in chunks, equal every client measured alone."""
    rng = np.random.default_rng(7)
    patterns = rng.random((300, 61)) < rng.random((300, 1))
    matrix = patterns[rng.integers(0, 300, 20_000)]
    at_once = measure(matrix)
    monkeypatch.setattr(metrics, "_CHUNK_CELLS", 61 * 37)
    in_chunks = measure(matrix)
    monkeypatch.setattr(
        metrics, "_distinct_rows", lambda packed, before: (packed, np.arange(len(packed)), np.ones(len(packed), int))
    )
    direct = measure(matrix)
    for other in (in_chunks, direct):
        assert other.pi.tolist() == at_once.pi.tolist()
        assert other.longest_absence.tolist() == at_once.longest_absence.tolist()
        assert other.never == at_once.never
        for name in ("rho_h", "tv_distance", "rho_t", "rho_s", "effective_updates"):
            assert getattr(other, name) == pytest.approx(getattr(at_once, name), rel=1e-9)


def test_effective_updates_and_heterogeneity_say_the_same():
    """If everyone is selected: slots x K / (1 + rho_h)."""
    matrix = np.random.default_rng(8).random((20, 100)) < 0.4
    found = measure(matrix)
    assert found.effective_updates == pytest.approx(100 * 20 / (1 + found.rho_h))


def test_to_dict_is_plain_json():
    found = Metrics.of(np.packbits(rows("0000", "0110"), axis=1), 4, np.array([0.25, 0.5]))
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain == {
        "pi": [0.0, 0.5],
        "rho_h": "inf",
        "never": [0],
        "tv_distance": 0.5,
        "rho_t": 0.5,  # P11 = 1/2, P01 = 1/1
        "rho_s": None,
        "rho_ts": pytest.approx(0.5),
        "effective_updates": 2.0,
        "longest_absence": [4, 1],
        "training_kg": [0.25, 0.5],
    }


def test_arguments_that_do_not_fit():
    packed = np.zeros((2, 1), dtype=np.uint8)
    with pytest.raises(ScenarioError, match="before is 9; the schedule has room for 0 to 8"):
        Metrics.of(packed, 9, np.zeros(2))
    with pytest.raises(ScenarioError, match="2 rows and 3 training_kg"):
        Metrics.of(packed, 8, np.zeros(3))


def test_joint_chain_by_hand():
    two = np.array([[0.9, 0.1], [0.2, 0.8]])  # eigenvalues 1 and 0.9 - 0.2
    assert joint_chain_rho_ts(two) == pytest.approx(0.7)
    assert joint_chain_rho_ts(np.kron(two, two)) == pytest.approx(0.7)  # products of 1 and 0.7
    assert joint_chain_rho_ts(np.full((8, 8), 1 / 8)) == pytest.approx(0, abs=1e-12)
    assert joint_chain_rho_ts(np.eye(3)[[1, 2, 0]]) == pytest.approx(1)  # a cycle forgets nothing
    assert joint_chain_rho_ts(np.ones((1, 1))) == 0


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)) / 3, "square"),
        (np.ones((2, 2)), "sum to 1"),
        (np.array([[1.5, -0.5], [0, 1]]), "probabilities"),
        (np.full((2, 2), np.nan), "probabilities"),
    ],
)
def test_no_transition_matrix(matrix, message):
    with pytest.raises(ScenarioError, match=message):
        joint_chain_rho_ts(matrix)
