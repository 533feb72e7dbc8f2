import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data that may not be published; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("SLACKWATER_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data, which is not at {folder} (set SLACKWATER_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_interrupts() -> Iterator[None]:
    """A shell ignores Ctrl-C for what it starts in the background; tests that press it need Python's own handler."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _own_log_level() -> Iterator[None]:
    """A study that silences our log silences it for its own test only."""
    logger = logging.getLogger("slackwater")
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(scope="session", autouse=True)
def _own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of the tests are not remembered among the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLACKWATER_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium; where it is missing the tests skip, but not in CI."""
    if shutil.which(CHROMIUM) is None:
        if os.environ.get("CI"):
            pytest.fail(f"{CHROMIUM} is missing, and CI must have it: make browser")
        pytest.skip(f"needs {CHROMIUM} (make browser)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()
