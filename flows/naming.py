"""What flow runs are called: `demo · rerun dedup · 2026-12-01 05:10`.

Recipe, what is done, and the time in UTC at which the run was due. A name that somebody typed, or
that a run got before it was retried or queued again, stays. Prefect does not record whether it made
a name up, so that is seen from the name: the server draws an adjective and an animal from the lists
of `coolname`, and the form in the UI from lists of its own.
"""

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

from flows.recipe import parse_recipe
from lmpipe.errors import LmpipeError
from tasks.selection import Selection

# What the form of Prefect 3.9.1 fills in, such as Ergonomic-Guppy: 17 adjectives, and an animal of
# at most six letters.
_FORM = re.compile(
    "(Awesome|Rustic|Small|Gorgeous|Fantastic|Sleek|Intelligent|Unbranded|Refined|Licensed|Generic|"
    "Practical|Ergonomic|Handcrafted|Tasty|Handmade|Incredible)-.{1,6}"
)


PLAN = "plan"  # what a run does that plans another


def run_name(*words: str, due: datetime) -> str:
    """Return the name of a run that nobody named."""
    return " · ".join([*words, f"{due.astimezone(UTC):%Y-%m-%d %H:%M}"])


def describe(flow: str, selection: Selection) -> str:
    """Say in a few words what a run of a flow builds."""
    forced = ", ".join(selection.force)
    if selection.only:
        rest = "" if selection.force in ((), (selection.only,)) else f", {forced} anew"
        return f"{'rerun' if selection.force and not rest else 'only'} {selection.only}{rest}"
    span = (f"{word} {stage}" for word, stage in _ends(selection) if stage)
    words = " ".join([flow, *span])
    return f"{words}, {forced} anew" if forced else words


def is_made_up(name: str) -> bool:
    """Whether Prefect's server or its form made a name up."""
    if _FORM.fullmatch(name):
        return True
    adjective, _, animal = name.partition("-")
    return adjective in _words("adj_any") and animal in _words("subj")


def prefect_name() -> str:
    """Return the name of the Prefect flow run that we are in, or ""."""
    from prefect.runtime import flow_run

    return str(flow_run.get_name() or "")


def name_of_this_run() -> str:
    """Return what the flow run that we are in is to be called, from its parameters.

    For `flow_run_name`, which Prefect asks at every start of a run.
    """
    from prefect.runtime import flow_run

    name = prefect_name()
    if name and not is_made_up(name):
        return name
    flow, given = str(flow_run.get_flow_name()), flow_run.get_parameters()
    due = flow_run.get_scheduled_start_time()
    if flow == "housekeeping":
        return run_name(flow, *["preview"] * bool(given.get("preview")), due=due)
    selection = Selection.model_validate(given.get("selection") or {})
    if flow == "rerun":
        what = f"{PLAN} {describe(given.get('flow', 'pipeline'), selection)}"
    else:
        what = describe(flow, selection)
    return run_name(_recipe_name(given), what, due=due)


def _recipe_name(given: dict[str, Any]) -> str:
    try:
        return parse_recipe(given.get("recipe", "demo"), given.get("settings")).name
    except LmpipeError:  # said in full, and in the run's log, when the run reads it
        return "unreadable recipe"


def _ends(selection: Selection) -> tuple[tuple[str, str], ...]:
    return (("from", selection.from_stage), ("until", selection.until_stage))


@cache
def _words(name: str) -> frozenset[str]:
    """Return the words of one of coolname's lists, and of the lists that it names."""
    from coolname.data import config

    entry: Any = config[name]
    if "words" in entry:
        return frozenset(entry["words"])
    return frozenset().union(*(_words(part) for part in entry["lists"]))
