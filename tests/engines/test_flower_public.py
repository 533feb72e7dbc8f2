"""What `slackwater.flower` offers, and that it costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys

import slackwater.flower


def test_public_names_exist() -> None:
    assert sorted(slackwater.flower.__all__) == list(slackwater.flower.__all__)
    assert all(
        getattr(slackwater.flower, name).__module__.startswith("slackwater.engines.")
        for name in slackwater.flower.__all__
    )
    assert dir(slackwater.flower) == slackwater.flower.__all__


def test_importing_it_is_light_and_without_flower_it_says_what_to_install() -> None:
    code = """
import sys
import slackwater.flower
assert not [name for name in ("flwr", "torch") if name in sys.modules]
sys.modules["flwr"] = None
try:
    slackwater.flower.measured
except slackwater.MissingExtraError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'slackwater[flower]'" in said
