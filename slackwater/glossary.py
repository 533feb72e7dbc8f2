"""The glossary: what each term of the product means, in one place for `slackwater explain` and the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slackwater.errors import SlackwaterError
from slackwater.registry import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One term."""

    term: str
    text: str
    """One to four short sentences."""
    unit: str | None = None
    aliases: tuple[str, ...] = ()
    """Other names by which the entry is found."""
    see: tuple[str, ...] = ()
    """Related terms."""

    @property
    def summary(self) -> str:
        """Return the first sentence."""
        return re.split(r"(?<=\.)\s", self.text, maxsplit=1)[0]


def explain(term: str) -> Entry:
    """Return the entry of a term or of one of its aliases.

    Args:
        term: Upper and lower case, spaces, hyphens and underscores make no difference.

    Raises:
        SlackwaterError: There is no such term. The message names the nearest one.
    """
    wanted = _key(term)
    for entry in GLOSSARY.values():
        if wanted in map(_key, (entry.term, *entry.aliases)):
            return entry
    known = [name for entry in GLOSSARY.values() for name in (entry.term, *entry.aliases)]
    raise SlackwaterError(
        f"{term!r} is not in the glossary.{did_you_mean(term, known)} To list all terms: slackwater explain"
    )


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())


def _entries() -> Iterator[Entry]:
    """Yield all entries, in alphabetical order."""
    yield Entry(
        term="actual intensity",
        text="Carbon intensity of a slot that is over, as a provider or a file gives it. The ledger is settled with it.",
        unit="kg CO2e/kWh",
        aliases=("actual", "actuals"),
        see=("carbon intensity", "forecast", "settlement"),
    )
    yield Entry(
        term="aggregator",
        text="Rule that combines the updates of the clients into one step of the global model. It applies before the "
        "fine-tuning window; inside the window the rule is always FedAvg. The default is echo.",
        see=("echo", "FedAvg", "U-FedAvg", "update"),
    )
    yield Entry(
        term="alpha",
        text="Fairness of the schedule, above 0 and at most 1; the default is 0.1. At 1 the plan takes the client-slots with "
        'the least carbon. Towards 0 it shares the slots more evenly over the clients. "log" is the limit at 0, and '
        '"max-min" first raises the lowest utility of any client.',
        aliases=("fairness", "alpha-fairness"),
        see=("objective", "utility"),
    )
    yield Entry(
        term="baseline",
        text="Training without slack at the same budget, to compare a run with. All available clients train in every slot "
        "from the start until the budget is spent. FedAvg combines their updates, and there is no fine-tuning window.",
        aliases=("no slack", "no-slack baseline"),
        see=("slack", "FedAvg", "budget"),
    )
    yield Entry(
        term="bound",
        text="Upper bound of what a coming slot can emit, from the actual intensity of the last 28 days. A round starts only "
        "if its bound fits the remaining budget. No forecast is used. An unusually steep rise of the intensity can break it.",
        unit="kg CO2e",
        aliases=("upper bound", "upper bound of intensity", "intensity bound"),
        see=("protected window", "settlement", "actual intensity", "certificate"),
    )
    yield Entry(
        term="budget",
        text="Most CO2e that the whole run may emit: training, idle power, server, network and evaluation. It is `budget_kg` "
        "in the scenario. A round that might exceed it does not start.",
        unit="kg CO2e",
        aliases=("budget_kg", "carbon budget"),
        see=("charge", "bound", "reserve"),
    )
    yield Entry(
        term="carbon intensity",
        text="CO2e that 1 kWh of electricity causes in a zone and at a time. Files and providers give it in g/kWh.",
        unit="kg CO2e/kWh",
        aliases=("intensity", "CI"),
        see=("factor", "zone", "actual intensity", "forecast"),
    )
    yield Entry(
        term="certificate",
        text="Proof of how good a plan is: objective, upper bound and gap. No allowed schedule has an objective above the "
        "upper bound. The gap is (upper bound - objective) / (upper bound - objective of the window alone). A plan is "
        "optimal if its gap is at most 1e-9.",
        aliases=("gap", "upper bound of the objective"),
        see=("objective", "schedule"),
    )
    yield Entry(
        term="charge",
        text="Ledger line for one client, slot and cause, written before the energy is used. With re-planning it stands at "
        "the upper bound of intensity until it is settled.",
        unit="kWh and kg CO2e",
        see=("ledger", "correction", "settlement", "bound"),
    )
    yield Entry(
        term="client",
        text="Site that trains on its own data, in one zone. In a cross-device run a client is a region with many devices.",
        aliases=("site",),
        see=("zone", "round"),
    )
    yield Entry(
        term="correction",
        text="Ledger line that changes the energy of a charge to the energy that was used. It holds the difference; the "
        "charge itself stays as it is.",
        unit="kWh and kg CO2e",
        see=("charge", "settlement", "ledger"),
    )
    yield Entry(
        term="echo",
        text="Default aggregator: it combines the latest update of every client. With each further round an update counts 5 % "
        "less. The step is lengthened, at most three times, as far as clients repeat their previous update: signal "
        "repeats, noise does not.",
        see=("aggregator", "update", "U-FedAvg"),
    )
    yield Entry(
        term="factor",
        text='Which emissions the carbon intensity counts. "direct": what power plants emit. "lifecycle": also their '
        'construction and fuel supply. "marginal": what one more kWh emits.',
        aliases=("emission factor", "lifecycle", "direct", "marginal"),
        see=("carbon intensity", "provider"),
    )
    yield Entry(
        term="FedAvg",
        text="Aggregator that takes the mean of the participants' updates. Clients that train often have more influence on "
        "the model.",
        see=("aggregator", "U-FedAvg", "fine-tuning window"),
    )
    yield Entry(
        term="fine-tuning window",
        text="Last slots of a run, in which every client trains and FedAvg combines the updates. It reduces the influence of "
        "the clients that happened to train last. `fine_tune` sets its length; the default is 1 slot.",
        unit="slots",
        aliases=("window", "fine_tune", "fine-tuning", "F(s)"),
        see=("s", "recall", "protected window"),
    )
    yield Entry(
        term="forecast",
        text="Expected carbon intensity of the coming slots, with an interval. It decides which slots a plan takes. It has no "
        "part in the check that a round fits the budget.",
        unit="kg CO2e/kWh",
        see=("provider", "reserve", "bound", "re-planning"),
    )
    yield Entry(
        term="horizon",
        text="All slots that a run may use: `rounds` plus slack, from `start`.",
        unit="slots",
        see=("slack", "s", "slot"),
    )
    yield Entry(
        term="idle power",
        text="Power of a client while it waits, `idle_w` in the scenario. Every client is charged for it in every slot until "
        "the run ends. A client that is off between blocks is charged only while it is up.",
        unit="W",
        aliases=("idle", "idle draw", "idle_w"),
        see=("charge", "PUE"),
    )
    yield Entry(
        term="ledger",
        text="Append-only list of all charges, corrections and settlements of a run, in `run.db`. Its sum is what the run has "
        "spent. Status and reports take every figure from it.",
        see=("charge", "correction", "settlement"),
    )
    yield Entry(
        term="level",
        text="Operating point of a client, in `levels` of the scenario: its power while it trains, and its share of the work. "
        "Full power has work 1.",
        unit="W; 0 to 1",
        aliases=("power level", "work"),
        see=("client", "utility"),
    )
    yield Entry(
        term="live",
        text="Kind of run that happens in real time: it waits for each slot. Its kg were emitted. Energy is measured where "
        "clients report it, else modelled from declared power and time.",
        aliases=("live run",),
        see=("rehearsed", "simulated", "settlement"),
    )
    yield Entry(
        term="objective",
        text="Number that a plan maximises: the sum over clients of utility^alpha. It ranks schedules; it is not an accuracy.",
        see=("utility", "alpha", "certificate"),
    )
    yield Entry(
        term="pi",
        text="Share of the slots before the fine-tuning window in which a client trains. Slots in which nobody trains count "
        "too. A client with pi = 0 trains only in the window.",
        unit="0 to 1",
        aliases=("pi_c", "participation"),
        see=("rho_H", "U-FedAvg", "fine-tuning window"),
    )
    yield Entry(
        term="protected window",
        text="Budget that is kept for the fine-tuning window, at the window's upper bound. No earlier round can use it.",
        unit="kg CO2e",
        see=("fine-tuning window", "bound", "budget"),
    )
    yield Entry(
        term="provider",
        text="Service that publishes carbon intensity, such as NESO, Energy-Charts or Electricity Maps. `source` in the "
        "[data] section of the scenario names one or several. Answers are kept in a cache.",
        see=("carbon intensity", "forecast", "zone"),
    )
    yield Entry(
        term="PUE",
        text="Power usage effectiveness: energy of a data centre divided by the energy of its machines, at least 1. It "
        "multiplies the energy of training, evaluation and idle power, but not of the network.",
        aliases=("power usage effectiveness",),
        see=("client", "idle power"),
    )
    yield Entry(
        term="quorum",
        text="Fewest clients in a used slot before the fine-tuning window, `min_parallel` in the scenario. With 2, no client "
        "ever trains alone, so no step of the model is a single update.",
        unit="clients",
        aliases=("min_parallel",),
        see=("slot", "update"),
    )
    yield Entry(
        term="re-planning",
        text="Planning the rest of a run again, with the kg spent so far and the newest forecast. Default: every hour with "
        "providers, never with files.",
        aliases=("replanning", "replan", "controller"),
        see=("forecast", "reserve", "bound"),
    )
    yield Entry(
        term="recall",
        text="Rule for a plan: every available client trains at least once in this many slots before the fine-tuning window. "
        "It keeps a deep model from forgetting clients that trained only early. 0, the default, turns it off.",
        unit="slots",
        see=("fine-tuning window", "schedule"),
    )
    yield Entry(
        term="rehearsed",
        text="Kind of run that takes the live path on a past period, without waiting. Each slot is decided on what was known "
        "at that time. Its kg are what the run would have emitted.",
        aliases=("rehearsal", "rehearse"),
        see=("live", "simulated", "forecast"),
    )
    yield Entry(
        term="reserve",
        text="Part of the remaining budget that a plan leaves free because forecasts err. It is measured on plans of the weeks "
        "before. With probability P, 0.6 by default, the plan and its forecast error stay within what is left. It shrinks "
        "as slots are settled.",
        unit="kg CO2e",
        see=("forecast", "re-planning", "budget"),
    )
    yield Entry(
        term="rho_H",
        text="How unevenly clients take part: the mean over clients of (1 - pi) / pi. It is 0 if every client trains in every "
        "slot before the window, and infinite if one of them never does.",
        aliases=("heterogeneity",),
        see=("pi", "U-FedAvg"),
    )
    yield Entry(
        term="round",
        text="Training in one slot: at least one client trains, and the server updates the global model. `rounds` in the "
        "scenario is the length of the run without slack. The budget decides how many rounds are held.",
        aliases=("rounds",),
        see=("slot", "slack", "aggregator"),
    )
    yield Entry(
        term="s",
        text="End time of a run, chosen by the plan: the run ends after slot rounds + s. It is between 0 and the slack.",
        unit="slots",
        aliases=("end time", "end"),
        see=("slack", "fine-tuning window", "horizon"),
    )
    yield Entry(
        term="schedule",
        text="Which client trains in which slot. A plan is a schedule with its problem and its certificate, stored in "
        "`plan.json`.",
        aliases=("plan",),
        see=("slot", "certificate", "objective"),
    )
    yield Entry(
        term="SCI",
        text="Software Carbon Intensity, ISO/IEC 21031: (O + M) / R. O is energy times carbon intensity, M the embodied "
        "emissions, R the number of functional units, such as training runs.",
        unit="g CO2e per functional unit",
        aliases=("software carbon intensity",),
        see=("ledger", "PUE"),
    )
    yield Entry(
        term="settlement",
        text="Ledger line that replaces the upper bound of a charge by the actual intensity, once that is known. It holds the "
        "difference. Until then the charge counts at its bound.",
        unit="kg CO2e",
        aliases=("settle", "settled"),
        see=("charge", "bound", "actual intensity"),
    )
    yield Entry(
        term="simulated",
        text="Kind of run that trains at once, without waiting for its slots. The intensity of the plan counts as the actual "
        "one. Its kg are what the run would have emitted.",
        aliases=("simulation",),
        see=("rehearsed", "live"),
    )
    yield Entry(
        term="slack",
        text="Extra slots that a run may take beyond `rounds`. With more slack a plan can choose cleaner hours. A `deadline` "
        "sets it as a date.",
        unit="slots",
        aliases=("slack time", "deadline"),
        see=("s", "horizon", "baseline"),
    )
    yield Entry(
        term="slot",
        text="Step of the schedule: a client either trains in a slot or does not. `slot_minutes` sets its length; the default "
        "is 60 minutes.",
        see=("round", "schedule", "horizon"),
    )
    yield Entry(
        term="start-up",
        text="Start of a client from off to up. It takes `startup_minutes` and draws `startup_kwh`; both count against the "
        "budget. A client with a start-up is off between blocks of slots.",
        unit="kWh",
        aliases=("startup", "startup_kwh"),
        see=("idle power", "budget"),
    )
    yield Entry(
        term="typical year",
        text="Synthetic year of carbon intensity that comes with Slackwater, for 103 zones. It is meant for trials and tests. "
        "Every output says that it is synthetic.",
        aliases=("typical", "synthetic"),
        see=("carbon intensity", "provider"),
    )
    yield Entry(
        term="U-FedAvg",
        text="Aggregator of the paper: an update has the weight 1 / (K pi), where K is the number of clients. It is unbiased, "
        "but the weight of a client that trains rarely becomes very large.",
        aliases=("ufedavg",),
        see=("pi", "FedAvg", "echo"),
    )
    yield Entry(
        term="update",
        text="Difference between the global model and a client's model after local training. The client sends it, or the model "
        "that gives it; the aggregator combines the updates.",
        aliases=("model update",),
        see=("aggregator", "round"),
    )
    yield Entry(
        term="utility",
        text="What a client's slots are worth: the sum over them of g_max - g. g is what the client emits in the slot, g_max "
        "what the dirtiest client-slot of the horizon emits.",
        unit="kg CO2e",
        see=("objective", "alpha"),
    )
    yield Entry(
        term="zone",
        text="Area of the electricity grid with a carbon intensity of its own, such as FR or SE-SE3. To list all: slackwater "
        "zones.",
        see=("carbon intensity", "client"),
    )


GLOSSARY: Mapping[str, Entry] = MappingProxyType({entry.term: entry for entry in _entries()})
"""All entries by term, in alphabetical order."""
