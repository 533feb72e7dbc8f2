"""A local step of the paper's CNN on one thread: with freed memory kept by the process, without, and in bfloat16.

python benchmarks/steps.py [--repeats N] [--steps N] [--model NAME] [--out FILE.json]

Each repeat is a process of its own: first steps as PyTorch does them, then the same with `memory_kept`, as `sw.train` does
them, then with bfloat16. Figures are processor time and page faults, which suffer less from other work on the machine.
Exits with 1 if keeping the memory changed a gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tables import environment, publish, spread, table

RESULTS = Path(__file__).parent / "results" / "steps.json"
PLAIN, KEPT, BF16 = "PyTorch alone", "memory kept", "memory kept, bf16"
BATCH = 128


def measure(model: str, steps: int) -> dict[str, Any]:
    """Return the median milliseconds of processor time and the page faults of a step, by way."""
    import torch

    from slackwater.training.process import memory_kept
    from slackwater.training.tasks import maker

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = maker(model, channels=1, size=28)()
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(BATCH, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (BATCH,))
    found: dict[str, Any] = {}
    for way in (PLAIN, KEPT, BF16):
        seconds: list[float] = []
        faults = 0
        with nullcontext() if way == PLAIN else memory_kept():
            for number in range(steps + 1):
                if number == 1:  # the first one warms up
                    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                began = time.process_time()
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == BF16):
                    loss = torch.nn.functional.cross_entropy(module(x), y)
                gradients = torch.autograd.grad(loss, list(module.parameters()))
                seconds.append(time.process_time() - began)
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            total = float(sum(part.double().square().sum() for part in gradients))
        found[way] = {"ms": 1000 * statistics.median(seconds[1:]), "faults": faults / steps, "gradient": total}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", default="paper")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.model, options.steps)))
        return 0
    from slackwater.training.local import resolved_precision

    result: dict[str, Any] = {"environment": environment(), "bf16": resolved_precision("auto", "cpu") == "bf16"}
    one = [sys.executable, __file__, "--one", "--model", options.model, "--steps", str(options.steps)]
    result["repeats"] = [
        json.loads(subprocess.run(one, capture_output=True, text=True, check=True).stdout)
        for _ in range(options.repeats)
    ]
    result["load_average_end"] = [round(load, 2) for load in os.getloadavg()]
    result["violations"] = [
        f"{KEPT}: another gradient than {PLAIN}"
        for repeat in result["repeats"]
        if repeat[KEPT]["gradient"] != repeat[PLAIN]["gradient"]
    ]
    return publish(result, report(result, options), options.out)


def report(result: dict[str, Any], options: argparse.Namespace) -> str:
    """Return the table, with what it was measured on."""
    about, repeats = result["environment"], result["repeats"]
    rows = [
        [
            way,
            spread([repeat[way]["ms"] for repeat in repeats]),
            spread([repeat[PLAIN]["ms"] / repeat[way]["ms"] for repeat in repeats]),
            f"{statistics.median(repeat[way]['faults'] for repeat in repeats):,.0f}",
        ]
        for way in (PLAIN, KEPT, BF16)
    ]
    emulated = "" if result["bf16"] else " This processor has no instructions for bfloat16, so that bf16 is emulated."
    return "\n\n".join([
        f"Made by `{about['command']}` on {about['date'][:10]}: {about['machine']}, {about['cores']} shared cores, load "
        f"average {about['load_average'][0]} at the start and {result['load_average_end'][0]} at the end. Model "
        f"{options.model!r}, batch {BATCH}, one thread, {options.steps} steps in each of {options.repeats} processes. Median "
        f"(least to largest).{emulated}",
        table(["a step", "ms of processor time", "times as fast", "page faults"], rows),
        *(f"**WRONG.** {wrong}." for wrong in result["violations"]),
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
