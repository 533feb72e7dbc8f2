"""Carries out the folders that it is told on stdin, each in a process of its own that can be killed.

One process loads PyTorch, and forks for every run. What was asked of clients goes to `asked.txt`. A number in `hold.txt`
makes the run wait for ever before that slot, with nothing under way; then there is `held.txt`. With a number in `die.txt` the
run kills itself at that step (see kills.py), and one that ends says in `steps.txt` how many it had.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import live_world as world

sys.path.append(str(Path(__file__).parents[1] / "ledger"))
from kills import Steps

from slackwater.errors import SlackwaterError
from slackwater.live.runner import carry_out
from slackwater.live.sites import Reply, Site, Work

PAUSE_S = 0.01


class SlowSites(world.Sites):
    """Sites that take a moment for everything."""

    folder: Path

    def online(self) -> Mapping[str, Site]:
        hold = self.folder / "hold.txt"
        if hold.exists() and int(hold.read_text()) == self.looks:
            _append(self.folder / "held.txt", "x")
            time.sleep(3600)
        time.sleep(PAUSE_S)
        return super().online()

    def train(self, work: Mapping[str, Work], until: datetime) -> Iterator[Reply]:
        _append(self.folder / "asked.txt", "".join(f"{one.slot} {name}\n" for name, one in work.items()))
        for reply in super().train(work, until):
            time.sleep(PAUSE_S)
            yield reply


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            sites = SlowSites()
            sites.folder = Path(line.strip())
            die = sites.folder / "die.txt"
            steps = Steps(int(die.read_text())) if die.exists() else None
            try:
                carry_out(sites.folder, sites, world.initial())
            except SlackwaterError as error:
                os._exit(error.exit_code)
            if steps is not None:
                _append(sites.folder / "steps.txt", str(steps.done))
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
