"""The training benchmark's rounds as rates and ratios, and as tables: Markdown that reads as text in the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tables import figure, spread, table
from training_way import BARE

OURS, BF16, EVALUATED, FLOWER = "ours", "ours, bf16", "ours, evaluated every round", "Flower, Ray simulation"
EVERYONE, SPARSE = "everyone trains", "one or two train"
KINDS = (EVERYONE, SPARSE)
Record = dict[str, Any]


def rates(
    repeats: Sequence[dict[str, Record]], name: str, kind: str, per: str = "seconds"
) -> dict[tuple[int, int], float]:
    """Client-rounds a second, or a processor's second, by repeat and round; each first round warms up and is left out.

    A round of one and the next, of two, are one: they take turns in being slower than the other.
    """
    found = {}
    for repeat, ways in enumerate(repeats):
        rounds = ways[name]["rounds"][1:] if name in ways else []
        most = max((one["clients"] for one in rounds), default=0)
        full, few = ([one for one in rounds if (one["clients"] == most) == dense] for dense in (True, False))
        units = [[one] for one in full] if kind == EVERYONE else [few[i : i + 2] for i in range(0, len(few), 2)]
        for number, unit in enumerate(units):
            found[repeat, number] = sum(one["clients"] for one in unit) / sum(one[per] for one in unit)
    return found


def best_bares(repeats: Sequence[dict[str, Record]], kind: str) -> list[str]:
    """Bare loops that ran in all repeats, the fastest first."""
    names = [name for name in repeats[-1] if name in BARE]
    return sorted(names, key=lambda name: -statistics.median(rates(repeats, name, kind).values()))


def summary(result: Record) -> Record:
    """Rates, and ratios between rounds that ran one after the other."""
    interleaved: Record = {}
    for kind in KINDS:
        repeats = result["interleaved"]
        best = best_bares(repeats, kind)[0]
        limit, thrift = rates(repeats, best, kind), rates(repeats, best, kind, "cpu_s")
        interleaved[kind] = {
            name: {
                "rates": list(rate.values()),
                "of_bare": [value / limit[at] for at, value in rate.items()],
                "cpu_of_bare": [thrift[at] / value for at, value in rates(repeats, name, kind, "cpu_s").items()],
            }
            for name in repeats[0]
            if (rate := rates(repeats, name, kind))
        }
    alone: Record = {}
    for name in result["alone"][0]:
        mine, ours = (rates(result["alone"], which, EVERYONE) for which in (name, OURS))
        runs = [repeat[name] for repeat in result["alone"]]
        alone[name] = {
            "first_round_s": [run["rounds"][0]["since_start"] for run in runs],
            "rates": list(mine.values()),
            "of_ours": [value / ours[at] for at, value in mine.items()],
            "peak_mib": [run["peak_mib"] for run in runs],
            "processes": max(run["processes"] for run in runs),
        }
    return {"interleaved": interleaved, "alone": alone}


def report(result: Record) -> str:
    """Everything that was measured, with what it was measured on."""
    found = result["summary"]
    parts = [_about(result), _interleaved_text(result)]
    parts += [_interleaved_table(kind, ways) for kind, ways in found["interleaved"].items()]
    parts += [_alone_text(result), _alone_table(found["alone"])]
    parts.append(
        table(
            ["aim", "limit", "found", "so"],
            [[a["aim"], a["limit"], figure(a["found"]), "met" if a["met"] else "MISSED"] for a in result["aims"]],
        )
    )
    if result["violations"]:
        parts.append("**WRONG.** " + "; ".join(result["violations"]) + ".")
    return "\n\n".join(parts)


def _about(result: Record) -> str:
    about, settings = result["environment"], result["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    flower = result["flower"]["versions"] or {}
    beside = "; in Flower's environment " + ", ".join(f"{k} {v}" for k, v in flower.items()) if flower else ""
    return (
        f"Made by `{about['command']}` on {about['date'][:10]}: {about['machine']}, {about['cores']} shared cores, load "
        f"average {about['load_average'][0]} at the start and {about['load_average_end'][0]} at the end; {versions}{beside}. "
        f"Model {settings['model']!r}, data {settings['data']} ({sum(settings['samples']):,} samples), "
        f"{settings['clients']} clients, {settings['steps']} local steps, batch {settings['batch_size']}, "
        f"lr {settings['lr']:g}, seed {settings['seed']}, {settings['threads']} threads."
    )


def _interleaved_text(result: Record) -> str:
    settings = result["settings"]
    without = "" if result["bf16"] else " bf16 was left out: this processor has no instructions for bfloat16."
    return (
        "**Ours beside the limit.** A bare loop does only the local steps: no aggregation, no evaluation, no ledger. Ours is "
        f"`sw.train` with a run folder: each slot charged, aggregated ({settings['aggregator']!r}), and kept so that it can "
        f"be resumed. Repeats: {settings['repeats']}, in each {settings['rounds']} round(s) of everyone and "
        f"{2 * settings['rounds']} of one or two clients, interleaved; the slower bare loops only in the first repeat. "
        'Median (least to largest); the ratio is that of rounds run one after the other. "threads" and "processes": '
        f"clients side by side on one thread each, one left over on all threads.{without}"
    )


def _interleaved_table(kind: str, ways: Record) -> str:
    rows = [
        [
            f"bare, {name}" if name in BARE else name,
            str(len(one["rates"])),
            spread(one["rates"]),
            spread(one["of_bare"]),
            spread(one["cpu_of_bare"]),
        ]
        for name, one in ways.items()
    ]
    return table([kind, "measured", "client-rounds/s", "of the best bare loop", "processor time, of the same"], rows)


def _alone_text(result: Record) -> str:
    settings = result["settings"]
    note = "" if result["flower"]["versions"] else f" Flower was {result['flower']['note']}."
    return (
        "**From the start of the process.** Everyone in every round, FedAvg, no evaluation; the first round with imports and "
        f"data read from disk. Memory is the largest sum of PSS over all processes of a way, seen every quarter of a second. "
        f"Repeats: {settings['flower_repeats']}, later rounds in each: {settings['flower_rounds']}, interleaved. Flower has one core "
        f"and one thread for each client, {settings['threads']} at a time, and the bare loop's local steps.{note}"
    )


def _alone_table(ways: Record) -> str:
    rows = [
        [
            f"bare, {name}" if name in BARE else name,
            spread(one["first_round_s"]),
            spread(one["rates"]),
            spread(one["of_ours"]),
            spread(one["peak_mib"]),
            str(one["processes"]),
        ]
        for name, one in ways.items()
    ]
    head = ["way", "s to the end of round 1", "client-rounds/s later", "of ours", "peak MiB", "processes"]
    return table(head, rows)
