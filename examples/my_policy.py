"""Your own policy: train with it, and compare it with others at equal emissions.

Run it: python examples/my_policy.py
"""

from __future__ import annotations

import slackwater as sw
from slackwater.lab import policies


class Rarest(policies.Online):
    """Choose the two clients with the fewest rounds, among those in a clean hour."""

    def choose(self, view: policies.View) -> policies.Choice:
        clean = [c for c in view.there if view.intensity[c] <= view.forecast[c].mean()]
        rarest = sorted(clean, key=lambda c: (view.participation[c], view.cost_kg[c]))
        return policies.Choice(clients=[int(c) for c in rarest[:2]])


def main() -> None:
    policies.register_policy("rarest", Rarest)
    traces = sw.load_traces("typical", zones=["SE-SE3", "FR", "DE", "IE"])
    clients = [sw.Client(name=zone, zone=zone, power_w=300) for zone in traces.zones]
    problem = sw.Problem(clients=clients, traces=traces, rounds=4, slack=44, budget_kg=0.6)
    task = sw.tasks.make("digits", clients=4)
    for name in ("rarest", "oort", "random"):
        result = policies.train(problem, task, policy=name, local_steps=10, eval_every=0)
        print(f"{name}: accuracy {result.accuracy:.3f} with {result.emissions_kg:.3f} of {problem.budget_kg} kg")


if __name__ == "__main__":
    main()
