"""Cross-device training: a client of the plan is a region with many devices, and each scheduled slot draws a few of them.

Default: the digits, in seconds. Use `--mnist FOLDER` for MNIST.
"""

import argparse
import json
from pathlib import Path

import slackwater as sw

ZONES = ("BE", "GB", "IE", "FI", "SE-SE3", "DE", "FR")
DEVICE_KWH = 0.006
"""Energy of one device in one slot: six watts for an hour."""

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--mnist", metavar="FOLDER", help="train on MNIST from this folder")
parser.add_argument("--devices", type=int, default=100, help="devices in a region")
parser.add_argument("--devices-per-slot", type=int, default=10, help="devices that a scheduled slot draws")
parser.add_argument("--rounds", type=int, default=6, help="budget, as rounds of all clients without slack")
parser.add_argument("--slack", type=int, default=48, help="slack, hours")
parser.add_argument("--local-steps", type=int, default=5)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
args = parser.parse_args()

# A region's slot costs the energy of all devices that train in it; the plan charges this.
energy_kwh = args.devices_per_slot * DEVICE_KWH
regions = [sw.Client(name=zone, zone=zone, energy_kwh=energy_kwh) for zone in ZONES]
traces = sw.load_traces("typical", zones=list(ZONES))
problem = sw.Problem(clients=regions, traces=traces, rounds=args.rounds, slack=args.slack, budget_kg=1.0)
everybody_kg = float(problem.costs.dense()[:, : args.rounds].sum())
plan = sw.plan(problem.with_settings(budget_kg=everybody_kg))

options = {"clients": len(ZONES), "devices_per_client": args.devices, "beta": 0.5, "seed": args.seed}
task = sw.tasks.make("mnist", data=args.mnist, **options) if args.mnist else sw.tasks.make("digits", **options)
result = sw.train(
    plan,
    task,
    aggregator="ufedavg",
    devices_per_slot=args.devices_per_slot,
    device_kwh=DEVICE_KWH,
    local_steps=args.local_steps,
    seed=args.seed,
)

trained = args.devices_per_slot * int(plan.matrix.sum())
print(f"{len(ZONES)} regions of {args.devices} devices each, {task.name}: accuracy {result.accuracy:.3f}")
print(f"{result.emissions_kg:.4f} of {result.budget_kg:.4f} kg CO2e (synthetic intensity), {trained} device updates")
print(
    f"A scheduled slot draws {args.devices_per_slot} of a region's {args.devices} devices with equal probability, so their mean update "
    "is\nthe region's update in expectation. The weight 1/(K pi_c) corrects for how often region c is scheduled."
)
if result.never:
    print(f"But {', '.join(result.never)} never trains before the window, so the estimate is biased.")
else:
    print("Every region is scheduled before the window, so the estimate of the global update stays unbiased.")
if args.out:
    figures = {
        "task": task.name, "regions": len(ZONES), "devices": args.devices, "devices_per_slot": args.devices_per_slot,
        "rounds": args.rounds, "slack": args.slack, "local_steps": args.local_steps, "seed": args.seed,
        "accuracy": result.accuracy, "worst_region": result.worst_client_accuracy, "kg": result.emissions_kg,
        "budget_kg": result.budget_kg, "trainings": trained, "seconds": round(result.seconds, 1), "version": sw.__version__,
    }  # fmt: skip
    args.out.write_text(json.dumps(figures) + "\n")
