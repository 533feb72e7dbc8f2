import hashlib
import re

import numpy as np
import pytest

from slackwater.charts.figures import counts_chart, partition_chart
from slackwater.charts.style import save
from slackwater.errors import ScenarioError
from slackwater.training import partition
from slackwater.training.partition import label_counts, split

LABELS = np.arange(3000) % 10
KINDS = ["dirichlet", "iid", "shards", "quantity"]


def fingerprint(parts: partition.Partition) -> str:
    return hashlib.sha256(b"|".join(part.astype("<i8").tobytes() for part in parts)).hexdigest()[:16]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", [1, 2, 7, 50])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_sample_is_held_once_and_nobody_is_empty(kind, clients, seed):
    parts = split(LABELS, clients, kind=kind, seed=seed)
    assert len(parts) == clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert min(len(part) for part in parts) >= 6
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dirichlet", "c5abf0b1174e48c0"),
        ("iid", "15ba249689b04bb7"),
        ("shards", "3ba8185a1d714377"),
        ("quantity", "7e6b6a4c60cb9d83"),
    ],
)
def test_a_seed_means_the_same_partition_everywhere(kind, expected):
    assert fingerprint(split(LABELS, 7, kind=kind, seed=0)) == expected
    assert fingerprint(split(LABELS, 7, kind=kind, seed=1)) != expected


def test_dirichlet_is_uneven_for_small_beta_and_even_for_large():
    def unevenness(beta: float) -> float:
        counts = label_counts(split(LABELS, 10, beta=beta, seed=3), LABELS)
        shares = counts / counts.sum(axis=1, keepdims=True)
        return float(np.abs(shares - 0.1).sum(axis=1).mean() / 2)

    assert unevenness(0.1) > 0.5 > unevenness(1.0) > unevenness(100.0)
    assert unevenness(1000.0) < 0.05


def test_iid_parts_are_equal_within_one():
    sizes = [len(part) for part in split(LABELS, 7, kind="iid")]
    assert max(sizes) - min(sizes) <= 1


def test_shards_hold_few_classes():
    counts = label_counts(split(LABELS, 10, kind="shards"), LABELS)
    assert (np.count_nonzero(counts, axis=1) <= 2).all()
    one = label_counts(partition.shards(LABELS, 10, shards_per_client=1), LABELS)
    assert (np.count_nonzero(one, axis=1) == 1).all()


def test_quantity_skews_sizes_and_not_labels():
    parts = split(LABELS, 5, kind="quantity", beta=0.5, seed=2)
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 3 * sizes.min()
    largest = label_counts(parts, LABELS)[sizes.argmax()]
    assert np.abs(largest / largest.sum() - 0.1).max() < 0.03


def test_the_least_number_of_samples_is_kept_by_drawing_again():
    usual = split(LABELS, 20, beta=0.2, seed=0)
    least = min(map(len, usual)) + 1
    more = split(LABELS, 20, beta=0.2, seed=0, min_samples=least)
    assert min(map(len, more)) >= least
    assert fingerprint(more) == fingerprint(split(LABELS, 20, beta=0.2, seed=0, min_samples=least))


def test_very_small_beta_gives_whole_classes_and_no_nan():
    counts = label_counts(split(LABELS, 2, beta=1e-4, seed=0), LABELS)
    assert counts.sum() == len(LABELS)
    assert set(np.unique(counts)) == {0, 300}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: split(LABELS, 50, beta=0.001, seed=0, min_samples=50), "in 1000 draws some client of 50 always had"),
        (lambda: split(LABELS, 0), "clients is 0"),
        (lambda: split(LABELS[:5], 6), "only 5 samples"),
        (lambda: split(LABELS, 5, beta=0), "beta is 0"),
        (lambda: split(LABELS, 5, beta=float("nan")), "beta is nan"),
        (lambda: split(LABELS, 5, kind="quantity", beta=-1), "beta is -1"),
        (lambda: split(LABELS, 5, seed=-1), "seed is -1"),
        (lambda: split(LABELS, 5, min_samples=601), "can be 1 to 600"),
        (lambda: split(LABELS, 5, kind="dirichelt"), "Did you mean 'dirichlet'?"),
        (lambda: partition.shards(LABELS, 5, shards_per_client=601), "need 3005 samples"),
        (lambda: partition.shards(LABELS, 5, shards_per_client=0), "give at least 1"),
        (lambda: counts_chart([1, 2, 3]), "[client, class]"),
        (lambda: counts_chart([[1, 2]], names=["a", "b"]), "2 names for 1 clients"),
    ],
)
def test_mistakes_are_explained(call, message):
    with pytest.raises(ScenarioError, match=re.escape(message)):
        call()


def test_label_counts():
    counts = label_counts((np.array([0, 1, 2]), np.array([3])), [0, 2, 2, 1])
    assert counts.tolist() == [[1, 0, 2], [0, 1, 0]]


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    parts = split(LABELS, 7, seed=0)
    figure = partition_chart(parts, LABELS, names=["BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR"])
    cells, totals = figure.axes
    assert [label.get_text() for label in cells.get_yticklabels()] == ["BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR"]
    counts = label_counts(parts, LABELS)
    assert sorted(text.get_text() for text in cells.texts) == sorted(f"{count:,}" for count in counts[counts > 0])
    assert [bar.get_width() for bar in totals.patches] == counts.sum(axis=1).tolist()
    assert save(figure, tmp_path / "partition.png").stat().st_size > 1000
    totals_of = counts.sum(axis=1)
    lacking, classes = (counts == 0).sum(axis=1).max(), counts.shape[1]
    assert figure.get_suptitle() == (
        f"A client has {totals_of.min():,} to {totals_of.max():,} samples, with up to {lacking} of {classes} classes missing\n"
        f"{len(LABELS):,} samples, 7 clients"
    )
    assert (
        counts_chart([[3, 4], [4, 3]], title="mine").get_suptitle()
        == "A client has 7 samples, with all 2 classes\nmine"
    )
    many = partition_chart(split(LABELS, 100, kind="iid"), LABELS)
    assert not many.axes[0].texts
    assert save(many, tmp_path / "many.svg").is_file()
