"""Partitions: a labelled data set split over clients.

Every random choice comes from NumPy's PCG64 under the seed, so a seed gives the same partition on every machine; a
test pins one hash. A partition has one ascending array of sample indices per client. Together they hold every sample once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackwater.errors import ScenarioError
from slackwater.registry import did_you_mean

Kind = Literal["dirichlet", "iid", "shards", "quantity"]
Partition = tuple[NDArray[np.int64], ...]

_ATTEMPTS = 1000
_FEWEST = 10  # default for the fewest samples of a client; less if that exceeds a tenth of an equal share
_PARTITION_STREAM = 0


def split(
    labels: ArrayLike, clients: int, *, kind: Kind = "dirichlet", beta: float = 0.5, shards_per_client: int = 2,
    min_samples: int | None = None, seed: int = 0,
) -> Partition:  # fmt: skip
    """Split by name: `dirichlet` and `quantity` use `beta` and `min_samples`, `shards` uses `shards_per_client`."""
    if kind == "iid":
        return iid(labels, clients, seed=seed)
    if kind == "shards":
        return shards(labels, clients, shards_per_client=shards_per_client, seed=seed)
    if kind in ("dirichlet", "quantity"):
        draw = dirichlet if kind == "dirichlet" else quantity
        return draw(labels, clients, beta=beta, min_samples=min_samples, seed=seed)
    hint = did_you_mean(str(kind), get_args(Kind), cutoff=0.4)
    raise ScenarioError(f"partition {kind!r} is unknown.{hint} Known: {', '.join(get_args(Kind))}.")


def dirichlet(
    labels: ArrayLike, clients: int, *, beta: float = 0.5, min_samples: int | None = None, seed: int = 0
) -> Partition:
    """Split each class by its own draw from Dirichlet(beta, ..., beta): with a small beta, to few clients.

    The shares are drawn again, from the same stream, until every client has `min_samples` (default 10, or a tenth of an
    equal share if that is less); after 1000 draws it is an error.
    """
    held, rng = _start(labels, clients, seed, beta)
    order = rng.permutation(len(held))
    by_class = [order[held[order] == label] for label in np.unique(held)]
    sizes = np.array([len(members) for members in by_class])
    least = _least(min_samples, len(held), clients)
    most_of_least = 0
    for _ in range(_ATTEMPTS):
        cuts = _cuts(rng.dirichlet(np.full(clients, beta), size=len(sizes)), sizes)
        fewest = int(np.diff(cuts, axis=1).sum(axis=0).min())
        if fewest >= least:
            parts = [np.split(members, cut[1:-1]) for members, cut in zip(by_class, cuts, strict=True)]
            return _sorted([np.concatenate([part[client] for part in parts]) for client in range(clients)])
        most_of_least = max(most_of_least, fewest)
    raise ScenarioError(
        f"partition 'dirichlet' with beta={beta}: in {_ATTEMPTS} draws some client of {clients} always had fewer than "
        f"{least} samples (at best {most_of_least}). Use a larger beta, fewer clients or a smaller min_samples."
    )


def iid(labels: ArrayLike, clients: int, *, seed: int = 0) -> Partition:
    """Split the shuffled set into equal parts (within one sample)."""
    held, rng = _start(labels, clients, seed)
    return _sorted(np.array_split(rng.permutation(len(held)), clients))


def shards(labels: ArrayLike, clients: int, *, shards_per_client: int = 2, seed: int = 0) -> Partition:
    """Sort by label, cut into equal shards and deal each client some of them at random: McMahan et al. (2017)."""
    held, rng = _start(labels, clients, seed)
    if shards_per_client < 1:
        raise ScenarioError(f"shards_per_client is {shards_per_client}; give at least 1.")
    count = clients * shards_per_client
    if count > len(held):
        raise ScenarioError(
            f"{clients} clients with shards_per_client={shards_per_client} need {count} samples; there are "
            f"{len(held)}. Use fewer clients or shards."
        )
    shuffled = rng.permutation(len(held))
    pieces = np.array_split(shuffled[np.argsort(held[shuffled], kind="stable")], count)
    dealt = rng.permutation(count).reshape(clients, shards_per_client)
    return _sorted([np.concatenate([pieces[piece] for piece in hand]) for hand in dealt])


def quantity(
    labels: ArrayLike, clients: int, *, beta: float = 0.5, min_samples: int | None = None, seed: int = 0
) -> Partition:
    """Draw the sizes from Dirichlet(beta, ..., beta), with the same mix of labels everywhere.

    Each client gets `min_samples` first and the draw splits the rest: with many clients, few draws give each enough.
    """
    held, rng = _start(labels, clients, seed, beta)
    order = rng.permutation(len(held))
    least = _least(min_samples, len(held), clients)
    rest = len(held) - clients * least
    ends = _cuts(rng.dirichlet(np.full(clients, beta), size=1), np.array([rest]))[0] + least * np.arange(clients + 1)
    return _sorted(np.split(order, ends[1:-1]))


def label_counts(partition: Sequence[NDArray[np.int64]], labels: ArrayLike) -> NDArray[np.int64]:
    """Return how many samples of each class a client has, [client, class]; classes are 0 to the largest label."""
    held = np.asarray(labels)
    classes = int(held.max()) + 1 if held.size else 0
    return np.array([np.bincount(held[part], minlength=classes) for part in partition], dtype=np.int64)


def stream(seed: int, purpose: int) -> np.random.Generator:
    """Return a random stream for one purpose, so that different purposes do not affect each other."""
    if seed < 0:
        raise ScenarioError(f"seed is {seed}; give 0 or a positive whole number.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(purpose,))))


def _start(
    labels: ArrayLike, clients: int, seed: int, beta: float = 1.0
) -> tuple[NDArray[np.int64], np.random.Generator]:
    held = np.asarray(labels, dtype=np.int64)
    if clients < 1:
        raise ScenarioError(f"clients is {clients}; give at least 1.")
    if clients > len(held):
        raise ScenarioError(f"clients is {clients}, but there are only {len(held)} samples. Use fewer clients.")
    if not 0 < beta < np.inf:
        raise ScenarioError(
            f"beta is {beta}; give a positive number: 0.1 is very uneven, 0.5 is the paper's, 100 is nearly even."
        )
    return held, stream(seed, _PARTITION_STREAM)


def _cuts(shares: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the cuts of each class, [class, client + 1]: rounded running sums, so that the parts add up to the whole."""
    ends = np.rint(np.cumsum(shares, axis=1) * sizes[:, np.newaxis]).astype(np.int64)
    ends[:, -1] = sizes
    return np.concatenate([np.zeros((len(sizes), 1), dtype=np.int64), np.minimum(ends, sizes[:, np.newaxis])], axis=1)


def usual_least(samples: int, clients: int) -> int:
    """Return the default for the fewest samples of a client."""
    return max(1, min(_FEWEST, samples // max(clients, 1) // 10))


def _least(min_samples: int | None, samples: int, clients: int) -> int:
    share = samples // clients
    if min_samples is None:
        return usual_least(samples, clients)
    if not 1 <= min_samples <= share:
        raise ScenarioError(
            f"min_samples is {min_samples}; with {samples} samples for {clients} clients it can be 1 to {share}."
        )
    return min_samples


def _sorted(parts: Sequence[NDArray[np.int64]]) -> Partition:
    return tuple(np.sort(part) for part in parts)
