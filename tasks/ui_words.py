"""What a run shows in Prefect's UI: hints in the words of its forms, numbers as people read them.

Who reads a deployed run sits before the UI, where `--only` and `lmpipe run` can be typed nowhere.
The same flows run from a terminal, whose reader wants the command. So messages are written for the
command, which has every option, and said anew where a deployment's run raises or logs them.
"""

import re
from typing import Any

from lmpipe.report.wording import cell

# The fields of the form, by the command's option.
FIELDS = {"only": "Only", "from": "From", "until": "Until", "force": "Force"}
_OPTION = re.compile(r"--(only|from|until|force)\b")
_CHOICE = re.compile(r" --(only|from|until|force) ([^\s)`;,]+)")
_COMMAND = re.compile(rf"`?lmpipe run \S+((?:{_CHOICE.pattern})+)`?")
_ADDRESS = re.compile(r"<([\w.]+) object at 0x[0-9a-f]+>")


def in_ui_words(text: str) -> str:
    """Return a message with the command's hints turned into what to choose in the UI."""
    return _OPTION.sub(lambda match: FIELDS[match[1]], _COMMAND.sub(_form, text))


def for_the_reader(text: str) -> str:
    """Return a message in the words of whoever reads the run that we are in."""
    from prefect.runtime import deployment

    return in_ui_words(text) if deployment.get_id() else text


def without_addresses(line: str) -> str:
    """Return a line of a log less the addresses of objects, which say nothing to anyone."""
    return _ADDRESS.sub(r"<\1>", line)


def readable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table with rounded numbers and their units."""
    return [{name: cell(name, value) for name, value in row.items()} for row in rows]


def _form(match: re.Match[str]) -> str:
    chosen = (f"{FIELDS[option]} {value}" for option, value in _CHOICE.findall(match[1]))
    return f"open the deployment rerun, choose {' and '.join(chosen)}"
