"""Test the Flower engine on several versions of Flower, each in a virtual environment of its own: make compat.

An environment holds only its Flower and what that pins; everything else comes from the environment that runs this
script, so that each takes seconds and megabytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".compat"
VERSIONS = ("1.36.0", "1.37.0", "1.38.0", "1.39.0", "1.40.0", "1.41.0", "1.42.0")
"""Versions that are tested: from the one that hospital platforms pin to the newest."""
TESTS = ("tests/engines",)


def environment(version: str) -> Path:
    """Return the Python of the environment with this version of Flower; make it if needed."""
    where = FOLDER / version
    python = where / "bin" / "python"
    if (where / "ready").exists():
        return python
    venv.create(where, with_pip=True, clear=True)
    inside = next((where / "lib").glob("python*/site-packages"))
    (inside / "zz_base.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, f"flwr=={version}"], stderr=subprocess.DEVNULL).returncode:
        # Its pins cannot be met from this index, for example because it names a release of the last days.
        subprocess.run([*pip, "--no-deps", f"flwr=={version}"], check=True)
    command = where / "bin" / "slackwater"
    command.write_text(f"#!{python}\nfrom slackwater.cli import main\n\nmain()\n")
    command.chmod(0o755)
    (where / "ready").touch()
    return python


def main() -> int:
    """Run the tests on every version, and return 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="versions of Flower; default: all")
    failed = []
    for version in parser.parse_args().versions:
        print(f"Flower {version}", flush=True)
        tests = ["-m", "pytest", *TESTS, "-m", "not processes", "-p", "no:cacheprovider", "-n", "0"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        if subprocess.run([str(environment(version)), *tests], cwd=ROOT, env=env).returncode:
            failed.append(version)
    print(f"Failed: {', '.join(failed)}" if failed else "All versions pass.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
