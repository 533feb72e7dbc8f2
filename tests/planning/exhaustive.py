"""The search over end times as it was before shared multipliers: it bounds every end time. A reference for tests and benchmarks only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slackwater.planning import exact
from slackwater.planning.exact import Found, Stage
from slackwater.planning.problem import Problem


def exhaustive_search(problem: Problem, ends: Sequence[int], *, greedy: bool = False) -> Found:
    """Return the best schedule over the end times: bound all of them, then solve from the largest bound down."""
    stages, level = exact.feasible_stages(problem, ends), None
    if problem.utility.kind == "max-min":
        stages, level = exact._at_best_level(stages)
    stages = [stage.with_everyone() for stage in stages]
    bounds = [_bound(stage) for stage in stages] if len(stages) > 1 else [math.inf]
    best: exact._Candidate | None = None
    proved = -math.inf
    for i in np.argsort(-np.array(bounds), kind="stable"):
        stage = stages[i]
        if best is not None and bounds[i] < best.total - exact._TIE * abs(best.total):
            break
        choice = exact.select(stage, greedy=greedy)
        proved = max(proved, min(choice.upper_bound, bounds[i]))
        found = exact._Candidate(stage=stage, counts=choice.counts, total=exact._total(stage, choice.counts))
        if best is None or exact._better(found, best):
            best = found
    assert best is not None
    packed = exact.pack_counts(best.stage, best.counts)
    return Found(stage=best.stage, packed=packed, upper_bound=max(proved, best.total), level=level)


def _bound(stage: Stage) -> float:
    value = exact.bound(stage)
    stage.forget()
    return value
