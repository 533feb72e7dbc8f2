"""Methods that know their schedule in advance: ours, and the paper's two extremes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slackwater.planning.baseline import no_slack_plan
from slackwater.planning.plan import Plan
from slackwater.planning.planner import plan
from slackwater.planning.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A schedule and the aggregator it is trained with."""

    schedule: Callable[[Problem], Plan]
    aggregator: str | None
    """None takes the plan's own recommendation."""
    about: str

    def make(self, problem: Problem) -> tuple[Plan, str]:
        """The plan, and its aggregator."""
        made = self.schedule(problem)
        return made, self.aggregator or made.aggregator


def _auto(problem: Problem) -> Plan:
    return plan(problem, auto=True)


def _carbon_greedy(problem: Problem) -> Plan:
    return plan(problem.with_settings(alpha=1.0))


PLANNED = {
    "ours": Planned(
        schedule=plan,
        aggregator="ufedavg",
        about="the paper: alpha-fair schedule with a fine-tuning window, U-FedAvg",
    ),
    "ours-memory": Planned(
        schedule=plan, aggregator="memory", about="the same schedule, latest updates discounted by age"
    ),
    "ours-auto": Planned(
        schedule=_auto, aggregator=None, about="end, window, alpha and aggregator chosen by plan --auto"
    ),
    "carbon-greedy": Planned(
        schedule=_carbon_greedy, aggregator="fedavg", about="alpha = 1: the cheapest client-slots, and the window"
    ),
    "no-slack": Planned(
        schedule=no_slack_plan, aggregator="fedavg", about="everybody in every slot until the budget is spent"
    ),
}
