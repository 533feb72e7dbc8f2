"""Fit the table of the `typical` intensity to real data, and compare the synthetic year with it.

    python tools/calibrate_typical.py --data ../shared/data/ci

Zones are chosen by rule, not by result: every zone whose life-cycle intensity lacks at most 1 % of the hours of 2022,
never keeps one value for over 48 hours, and repeats the previous hour in at most 10 % of the hours (otherwise it is a
stalled feed or an estimate, not a grid). Direct intensity is used if it lacks at most 1 % of the hours. National
aggregates stay in the table with their parts, most of which lack direct intensity. Gaps are interpolated. The rule keeps
103 of the 111 zones of 2022, 27 of them with direct intensity.

Method: normal scores of the data give the shape by least squares, the noise by the autocorrelation of the residual, and
the shared noises by factor analysis of its correlations. The noise is one fixed realisation, so a few iterations then
correct shape and noise by the remaining difference from the real year. Only statistics enter the table.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slackwater.intensity import load as typical
from slackwater.intensity.traces import FACTORS, Factor

Array = NDArray[np.float64]

HOURS = typical.NOISE_HOURS
MOST_MISSING, LONGEST_RUN, MOST_REPEATS = 0.01, 48, 0.10
DATA_COLUMNS: dict[Factor, str] = {"lifecycle": "ci_lca_g_per_kwh", "direct": "ci_direct_g_per_kwh"}
LAGS = np.arange(337)
LAG_WEIGHTS = 1 / (1 + LAGS / 12)
LAG_WEIGHTS[[0, 1, 24]] = 4.0, 8.0, 8.0  # the variance, and the two lags that the test checks
ROUNDS, STEP = 20, 0.5
MOST_SHARED = 0.98  # of a zone's noise; the rest is its own


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the table of the `typical` intensity.")
    parser.add_argument("--data", type=Path, required=True, help="folder of <ZONE>_2022.csv")
    parser.add_argument("--table", type=Path, default=Path(typical.__file__).with_name(typical.TABLE))
    options = parser.parse_args()
    real = read_zones(options.data)
    synthetic = fit(real, options.table)
    for factor in FACTORS:
        compare(factor, real[factor], synthetic[factor])


def read_zones(folder: Path) -> dict[Factor, dict[str, Array]]:
    """Return the intensity [hour], g/kWh, of the zones that meet the rule."""
    real: dict[Factor, dict[str, Array]] = {"lifecycle": {}, "direct": {}}
    for zone in sorted(path.stem.removesuffix("_2022") for path in folder.glob("*_2022.csv")):
        with (folder / f"{zone}_2022.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        lifecycle = series(rows, "lifecycle")
        if lifecycle is None or stands_still(lifecycle):
            continue
        real["lifecycle"][zone] = lifecycle
        direct = series(rows, "direct")
        if direct is not None:
            real["direct"][zone] = direct
    return real


def series(rows: list[dict[str, str]], factor: Factor) -> Array | None:
    """Return the year [hour], g/kWh, with gaps interpolated; None if too much is missing."""
    known = [row for row in rows if row[DATA_COLUMNS[factor]]]
    if len(known) < (1 - MOST_MISSING) * HOURS:
        return None
    moments = np.array([row["datetime_utc"].removesuffix("Z") for row in known], dtype="datetime64[h]")
    hour = (moments - np.datetime64("2022-01-01T00", "h")).astype(float)
    return np.interp(np.arange(HOURS), hour, [float(row[DATA_COLUMNS[factor]]) for row in known])


def stands_still(values: Array) -> bool:
    changes = np.flatnonzero(np.diff(values))
    runs = np.diff(np.concatenate([[-1], changes, [len(values) - 1]]))
    return bool(runs.max() > LONGEST_RUN or 1 - len(changes) / len(values) > MOST_REPEATS)


def fit(real: dict[Factor, dict[str, Array]], table: Path) -> dict[Factor, dict[str, Array]]:
    """Write the table; return its synthetic year."""
    names = [(zone, factor) for factor in real for zone in real[factor]]  # life-cycle first
    zones = list(real["lifecycle"])
    parent = np.array([zones.index(zone) for zone, _ in names])
    years = np.array([real[factor][zone] for zone, factor in names])
    waves = typical.shape_waves(typical.NOISE_START, HOURS)
    project = np.linalg.pinv(np.vstack([np.ones(HOURS), waves]).T)[1:]
    own = np.array([column in typical.DIRECT_COLUMNS for column in typical.SHAPE_COLUMNS])
    free = own | (np.array([factor for _, factor in names]) == "lifecycle")[:, None]

    scores = np.array([normal_scores(year) for year in years])
    shapes = scores @ project.T
    shapes = np.where(free, shapes, shapes[parent])
    rests = scores - shapes @ waves
    target = np.array([autocovariance(rest) for rest in rests])
    latent = np.zeros((len(zones), typical.LATENT))
    for step in range(ROUNDS + 1):
        shapes = np.round(shapes, 3)
        parts = noise_parts(target)
        if step == 0:
            latent = shared_noises(rests[: len(zones)], parts[: len(zones)])
        scores = np.array(
            [
                typical.shape(shapes[i], waves) + typical.noise(zone, parts[i], latent[parent[i]])
                for i, (zone, _) in enumerate(names)
            ]
        )
        curves = np.array([curve(score, year) for score, year in zip(scores, years, strict=True)])
        made = np.array([np.interp(score, typical.KNOTS, knots) for score, knots in zip(scores, curves, strict=True)])
        if step == ROUNDS:
            break
        for i, (score, year, synthetic) in enumerate(zip(scores, years, made, strict=True)):
            slope = (
                np.cov(score, synthetic)[0, 1] / score.var()
            )  # g/kWh per unit of score, to convert one error into the other
            shapes[i] += STEP * project @ (year - synthetic) / slope
            target[i] += STEP * (correlogram(year) - correlogram(synthetic))
        shapes = np.where(free, shapes, shapes[parent])

    write_table(table, zones, names, shapes, parts, latent, curves)
    return {factor: {zone: made[i] for i, (zone, of) in enumerate(names) if of == factor} for factor in FACTORS}


def normal_scores(values: Array) -> Array:
    """Return the values' ranks as standard normal deviates."""
    normal = statistics.NormalDist()
    scores = np.empty(len(values))
    deviates = [normal.inv_cdf((rank + 0.5) / len(values)) for rank in range(len(values))]
    scores[np.argsort(values, kind="stable")] = deviates
    return scores


def autocovariance(values: Array) -> Array:
    """Return the circular autocovariance at `LAGS`."""
    power = np.abs(np.fft.rfft(values - values.mean())) ** 2 / len(values)
    return np.fft.irfft(power, len(values))[LAGS]


def correlogram(values: Array) -> Array:
    """Return the autocorrelation at `LAGS`, measured on a year with a start and an end."""
    padded = np.concatenate([values - values.mean(), np.zeros(len(LAGS))])
    covariance = autocovariance(padded) / (len(values) - LAGS)
    result: Array = covariance / covariance[0]
    return result


def noise_parts(target: Array) -> Array:
    """Return variances [series, part] whose autocovariance is nearest to `target` [series, lag], by coordinate descent."""
    basis = np.array([np.fft.irfft(power, HOURS)[LAGS] * HOURS for power in typical.noise_spectra()])
    gram, right = (basis * LAG_WEIGHTS) @ basis.T, target @ (basis * LAG_WEIGHTS).T
    parts = np.zeros_like(right)
    for _ in range(500):
        for j in range(parts.shape[1]):
            parts[:, j] = np.maximum(0.0, parts[:, j] + (right[:, j] - parts @ gram[j]) / gram[j, j])
    return np.round(parts, 3)


def shared_noises(rests: Array, parts: Array) -> Array:
    """Return weights [zone, latent] that reproduce the correlations of the residuals [zone, hour]: iterated principal factors."""
    strength = np.sqrt(parts @ typical.noise_spectra())
    strength /= np.sqrt(2 * np.sum(strength**2, axis=1, keepdims=True))
    # Zones with different memory correlate less than their weights, by the overlap of their spectra.
    reduced = np.corrcoef(rests) / np.maximum(0.3, 2 * strength @ strength.T)
    shared = np.full(len(parts), 0.9)
    for _ in range(30):
        np.fill_diagonal(reduced, shared)
        values, vectors = np.linalg.eigh(reduced)
        weights = vectors[:, -typical.LATENT :] * np.sqrt(np.maximum(0.0, values[-typical.LATENT :]))
        shared = np.minimum(MOST_SHARED, np.sum(weights**2, axis=1))
    weights *= np.sqrt(shared / np.sum(weights**2, axis=1))[:, None]
    weights *= np.where(weights.sum(axis=0) < 0, -1, 1)  # the sign of an eigenvector is arbitrary
    result: Array = np.round(weights, 3)
    return result


def curve(score: Array, year: Array) -> Array:
    """Return the intensity at the knots, g/kWh, that gives the scores the real year's distribution and mean."""
    ordered = np.sort(year)
    hats = np.array([np.interp(np.sort(score), typical.KNOTS, hat) for hat in np.eye(len(typical.KNOTS))])
    knots = np.linalg.lstsq(hats.T, ordered, rcond=None)[0]
    knots = np.maximum.accumulate(np.clip(knots, ordered[0] / 2, ordered[-1] * 1.2))
    knots *= year.mean() / np.interp(score, typical.KNOTS, knots).mean()
    return np.array([float(f"{knot:.4g}") for knot in knots])


def write_table(
    table: Path,
    zones: list[str],
    names: list[tuple[str, Factor]],
    shapes: Array,
    parts: Array,
    latent: Array,
    curves: Array,
) -> None:
    columns = (*typical.SHAPE_COLUMNS, *typical.NOISE_COLUMNS, *typical.CURVE_COLUMNS)
    rows: dict[str, dict[str, str]] = {}
    for zone, weights in zip(zones, latent, strict=True):
        rows[zone] = {"zone": zone} | {c: f"{w + 0.0:g}" for c, w in zip(typical.LATENT_COLUMNS, weights, strict=True)}
    for i, (zone, factor) in enumerate(names):
        for column, number in zip(columns, (*shapes[i], *parts[i], *curves[i]), strict=True):
            if factor == "lifecycle":
                rows[zone][column] = f"{number + 0.0:g}"
            elif column in typical.DIRECT_COLUMNS:
                rows[zone][typical.DIRECT_COLUMNS[column]] = f"{number + 0.0:g}"
    with table.open("w", encoding="utf-8", newline="") as file:
        header = ("zone", *typical.LATENT_COLUMNS, *columns, *typical.DIRECT_COLUMNS.values())
        writer = csv.DictWriter(file, header, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def compare(factor: Factor, real: dict[str, Array], synthetic: dict[str, Array]) -> None:
    """Print real and synthetic values; `tests/carbon/test_typical.py` has the requirements."""
    print(f"\n{factor}, {len(real)} zones; the last three columns are real / synthetic")
    print(f"{'zone':14}{'g/kWh':>7}{'mean':>8}{'profile':>9}{'lag 1 h':>14}{'lag 24 h':>14}{'slack saves':>14}")
    differences = []
    for zone, year in real.items():
        made = synthetic[zone]
        profile = np.corrcoef(year.reshape(-1, 24).mean(axis=0), made.reshape(-1, 24).mean(axis=0))[0, 1]
        pairs = [(correlogram(year)[lag], correlogram(made)[lag]) for lag in (1, 24)] + [(saving(year), saving(made))]
        differences.append(abs(pairs[-1][0] - pairs[-1][1]))
        columns = "".join(f"{a:8.3f}/{b:5.3f}" for a, b in pairs)
        print(f"{zone:14}{year.mean():7.1f}{made.mean() / year.mean() - 1:+8.2%}{profile:9.3f}{columns}")
    upper = np.triu_indices(len(real), 1)
    error = np.abs(np.corrcoef(list(real.values())) - np.corrcoef(list(synthetic.values())))[upper].mean()
    print(f"pairwise correlations: mean absolute error {error:.3f}")
    print(f"slack savings: median absolute difference {np.median(differences):.3f}")


def saving(year: Array, work: int = 100, slack: int = 236) -> float:
    """Return the share saved by the cleanest hours of the window against starting at once, mean over 100 starts."""
    starts = np.random.Generator(np.random.PCG64(typical.SEED)).integers(0, HOURS - work - slack + 1, 100)
    windows = year[starts[:, None] + np.arange(work + slack)]
    at_once, cheapest = windows[:, :work].sum(axis=1), np.sort(windows, axis=1)[:, :work].sum(axis=1)
    return float(
        np.mean(1 - cheapest / np.where(at_once > 0, at_once, np.inf) - (at_once == 0))
    )  # no emissions, no savings


if __name__ == "__main__":
    main()
