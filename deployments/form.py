"""The forms in Prefect's UI, which the server also checks every queued run against.

Prefect makes a form from a flow's signature. A recipe has some 400 fields: shown one by one they
filled a page of 43,000 pixels, and the few that a run is started for were lost in it. So a form has
the stages to choose from, a recipe's name, and one text field for whatever else shall differ. An
object without named properties is such a field to the UI, as JSON. Its contents hang on an
`if`/`then`, which the UI does not draw and the server does check, so that a wrong key or value is
named when the form is sent and not when a worker has started the run.
"""

from typing import Any

from flows.evaluate import KINDS
from flows.recipe import PipelineConfig, Sources
from tasks import curation, evaluation, sources, tokenization, training
from tasks.conductor import StageTask

Json = dict[str, Any]

DEFINITIONS = "#/definitions/"
STAGE_FIELDS = ("only", "from_stage", "until_stage")


def form(entrypoint: str) -> Json:
    """Return the schema of a flow's parameters, which is the form in the UI and is enforced."""
    from deployments import deployed

    flow = getattr(deployed, entrypoint.rpartition(":")[2])
    schema: Json = flow.parameters.model_dump(mode="json")
    definitions = schema.get("definitions", {})
    for holder in (schema, *definitions.values()):
        for position, (name, field) in enumerate(holder.get("properties", {}).items()):
            field["position"] = position  # PostgreSQL keeps no order of keys
            if holder is schema:
                field["title"] = name.replace("_", " ").capitalize()
                field["description"] = field["description"][:1].upper() + field["description"][1:]
    if "Selection" in definitions:
        _offer_stages(definitions["Selection"]["properties"])
        schema["properties"]["selection"]["default"] = {}
    if "settings" in schema["properties"]:
        recipe, models = _recipe_schema()
        schema["properties"]["settings"] |= {"if": {}, "then": recipe}
        schema["definitions"] = models | definitions
    return schema


def stage_choices() -> list[str]:
    """Return what a selection may name: stages, then single uses of those with several."""
    modules = (sources, curation, tokenization, training, evaluation)
    stages = [
        item.stage.name
        for module in modules
        for item in vars(module).values()
        if isinstance(item, StageTask)
    ]
    uses = [f"evaluate[{kind}]" for kind in KINDS]
    uses += [f"quality_classifier[{kind}]" for kind in ("toxicity", "nsfw")]
    uses += [f"source[{name}]" for name in Sources.model_fields if name != "mixture"]
    return list(dict.fromkeys(stages)) + uses


def _offer_stages(properties: Json) -> None:
    choices = stage_choices()
    for name in STAGE_FIELDS:
        properties[name]["enum"] = ["", *choices]
        del properties[name]["default"]  # a list that opens at "" looks broken; without: "Select"
    properties["force"]["items"] = {"type": "string", "enum": choices}


def _recipe_schema() -> tuple[Json, Json]:
    """Return the schema of a part of a recipe, and of the models in it: nothing is required."""
    whole = PipelineConfig.model_json_schema(ref_template=DEFINITIONS + "{model}")
    models = whole.pop("$defs")
    return _optional(whole), {name: _optional(model) for name, model in models.items()}


def _optional(schema: Json) -> Json:
    return {key: value for key, value in schema.items() if key != "required"}
