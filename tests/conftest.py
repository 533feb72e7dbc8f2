import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real data that may not be published; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("SLACKWATER_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data, which is not at {folder} (set SLACKWATER_SHARED_DATA)")
    return folder


@pytest.fixture(scope="session", autouse=True)
def _own_state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs of the tests are not remembered among the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLACKWATER_STATE", str(tmp_path_factory.mktemp("state")))
        yield
