"""Write the stored files again: python tests/goldens/write.py [--to FOLDER] [plans] [outputs] [runs] [commands].

To show that a change of structure changes no bit, on one machine: with SLACKWATER_GOLDENS=exact, write to one folder
before the change and to another one after it, and compare the two with diff.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from golden_record import FOLDER, GROUPS, record

sys.path[:0] = [str(Path(__file__).parents[2])]


arguments = sys.argv[1:]
target = FOLDER
if arguments[:1] == ["--to"]:
    target = Path(arguments[1])
    target.mkdir(parents=True, exist_ok=True)
    del arguments[:2]


def store(file: str, content: dict[str, Any]) -> None:
    """Write one file; texts are kept in sections, of which only those named are replaced."""
    path = target / file
    if file == "texts.json" and path.exists():
        content = json.loads(path.read_text()) | content
    path.write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


for group in arguments or GROUPS:
    for name, found in record(group).items():
        store(name, found)
