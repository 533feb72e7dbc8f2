"""A recount of a run's ledger that shares no code with it: SQL and arithmetic only."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path


def check(folder: Path, *, under_way: bool = False) -> dict[str, float]:
    """Sums agree, nothing is charged twice, the budget holds at every line; raises AssertionError where not.

    Of a run that is under way, the slot that is open is only looked at for what it was charged.
    """
    db = sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    db.isolation_level = None
    try:
        db.execute("BEGIN")  # all of it as of one moment
        budget, plan = db.execute("SELECT budget_kg, plan FROM run").fetchone()
        lines = [dict(row) for row in db.execute("SELECT * FROM charges ORDER BY id")]
        attempts = [dict(row) for row in db.execute("SELECT * FROM attempts")]
        rounds = [dict(row) for row in db.execute("SELECT * FROM rounds ORDER BY slot")]
        found = db.execute("SELECT value FROM state WHERE name = 'open'").fetchone()
        db.execute("ROLLBACK")
    finally:
        db.close()
    total, by_slot = 0.0, dict[tuple[int, str, str], float]()
    keys = set()
    for line in lines:
        total = math.fsum((total, line["kg"]))
        by_slot[line["slot"], line["client"], line["cause"]] = (
            by_slot.get((line["slot"], line["client"], line["cause"]), 0.0) + line["kg"]
        )
        if line["kind"] == "charge":
            key = (line["slot"], line["client"], line["cause"], line["attempt"])
            assert key not in keys, f"charged twice: {key}"
            keys.add(key)
        assert total <= budget * (1 + 1e-6), f"over the budget after line {line['id']}: {total} of {budget} kg"
    assert all(kg >= -1e-12 for kg in by_slot.values()), "a slot was corrected below nothing"
    trained = {(slot, client) for slot, client, cause, _ in keys if cause == "training"}
    sent = {(one["slot"], one["client"]) for one in attempts if one["sent_at"] is not None}
    assert trained == sent, f"charged and sent differ: {sorted(trained ^ sent)}"
    is_open = json.loads(found[0]) if found else None
    assert under_way or is_open is None, f"slot {is_open} is still open"
    used = {(done["slot"], name) for done in rounds for name in json.loads(done["participants"])}
    assert used <= sent, f"used, but never sent: {sorted(used - sent)}"
    done = {(one["slot"], one["client"]) for one in attempts if one["outcome"] == "done" and one["slot"] != is_open}
    assert used == done, f"done and used differ: {sorted(used ^ done)}"
    assert len({one["slot"] for one in rounds}) == len(rounds)
    planned = json.loads(plan)
    return {
        "spent_kg": total,
        "budget_kg": budget,
        "lines": len(lines),
        "rounds": len(rounds),
        "slots": planned.get("slots", 0) or 0,
        "lost": len(sent - done),
    }
