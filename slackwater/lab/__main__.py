"""Start a study: `python -m slackwater.lab STUDY run`, then `table`."""

from __future__ import annotations

from importlib import import_module

import click

from slackwater.cli.main import ErrorGroup

STUDIES = {
    "aggregation": "Aggregators on the same schedules.",
    "auto": "Rules and schedules for the planner `auto` on a small network.",
    "auto-cnn": "The choice of the planner `auto` with the paper's CNN.",
    "backtests": "Back-tests of past runs, planned on the forecasts of the time.",
    "calibration": "Predicted against measured remaining error.",
    "carbon-to-target": "Emissions until a method has the score of full training, on several tasks.",
    "correlation": "Heterogeneity and correlation of participation.",
    "differences": "Changes of the paper's method where our tables differ from the published ones.",
    "forecasts": "Forecast errors, and savings of plans made on forecasts.",
    "raising": "Changes of auto and echo, tried on two tasks and judged on others.",
    "quorum": "Lone slots, and what a quorum costs.",
    "slot-lengths": "The planner auto beside no slack, with slots of 15 to 120 minutes.",
    "soak": "Long runs and faults on real Flower processes.",
    "world": "A week of slots with faults in the test world.",
}


class _Studies(ErrorGroup):
    """Import a study only when it is called: most need PyTorch, some the repository's tests."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(STUDIES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in STUDIES:
            return None
        command: click.Command = import_module(f"slackwater.lab.studies.{name.replace('-', '_')}").main
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Studies"):
            formatter.write_dl(list(STUDIES.items()))


@click.group(cls=_Studies, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Run a study from the top of the repository, or show its tables.

    Results are appended to experiments/results/STUDY.jsonl, one line per cell. A stopped study continues.
    """


if __name__ == "__main__":
    main(prog_name="python -m slackwater.lab")
