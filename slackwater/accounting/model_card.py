"""The `co2_eq_emissions` of a Hugging Face model card, ready to paste."""

from __future__ import annotations

import json

from slackwater.accounting.statement import Statement
from slackwater.ledger.kinds import KINDS
from slackwater.units import G_PER_KG

_MOST_ZONES = 20


def model_card(statement: Statement) -> str:
    """Return YAML front matter; emissions are in grams, as the Hub asks."""
    run = statement.run
    zones = list(run.zones)
    more = f" and {len(zones) - _MOST_ZONES} more" if len(zones) > _MOST_ZONES else ""
    synthetic = ", synthetic intensity: not a record of real emissions" if run.synthetic else ""
    words = KINDS[run.kind]
    kind = f"{words.label} run" if run.kind == "live" else f"{words.label} run, not measured emissions"
    source = (
        f"{kind}: Slackwater {run.slackwater}, location-based, hourly {run.factor} intensity, "
        f"energy {' and '.join(statement.uncertainty.charged_kg_by_method) or 'unknown'}{synthetic}"
    )
    return "\n".join(
        [
            "---",
            "co2_eq_emissions:",
            f"  emissions: {G_PER_KG * statement.account.total_kg:.3f}",
            f"  source: {_quoted(source)}",
            '  training_type: "pre-training"  # or "fine-tuning", if the model had been trained before',
            f"  geographical_location: {_quoted(', '.join(zones[:_MOST_ZONES]) + more)}",
            f"  hardware_used: {_quoted(f'{run.clients} federated clients, {run.client_rounds} client-rounds')}",
            "---",
            "",
        ]
    )


def _quoted(text: str) -> str:
    """Return a YAML string. JSON escapes as YAML does except beyond 16 bits, so those characters stay as they are."""
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return json.dumps(clean, ensure_ascii=False)
