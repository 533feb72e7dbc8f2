"""A dashboard on a free port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slackwater.cli.output_commands import open_library
from slackwater.dashboard.server import Dashboard


@pytest.fixture
def serve() -> Iterator[Callable[..., Dashboard]]:
    """Serve a path in a thread; ended when the test is."""
    with ExitStack() as ending:

        def start(what: Path, **options: Any) -> Dashboard:
            server = Dashboard(open_library(what), **({"host": "127.0.0.1", "port": 0} | options))
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            ending.callback(thread.join)
            ending.callback(server.close)
            ending.callback(server.shutdown)
            return server

        yield start
