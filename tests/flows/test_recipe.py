from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flows.pipeline import pipeline
from flows.recipe import PipelineConfig, check_recipe, load_recipe
from flows.recipe_errors import MOVED
from flows.run import COMPOSITIONS, plan_run
from lmpipe.errors import ConfigError
from tasks.evaluation import report
from tasks.plan import step_names
from tasks.selection import Selection


def test_the_demo_plans_every_stage_in_an_empty_store(tmp_path: Path):
    recipe = load_recipe("demo", [f"store.root={tmp_path}"])
    steps = plan_run("pipeline", recipe, Selection())
    assert {step.status for step in steps} == {"RUN", "PENDING"}
    assert [step.name for step in steps][-1] == "report"
    assert list(tmp_path.iterdir()) == []
    made = {step.name for step in steps[:-1] if step.stage != "source"}
    given = set(steps[-1].reason.removeprefix("after ").split(", "))
    assert made <= given, "the report is to see whatever the pipeline makes"


@pytest.mark.parametrize("flow", sorted(COMPOSITIONS))
def test_every_flow_runs_alone_from_its_recipe(flow: str, tmp_path: Path):
    recipe = load_recipe("scale_demo", [f"store.root={tmp_path}"])
    names = [step.name for step in plan_run(flow, recipe, Selection())]
    assert names[0] == "source[crawl]" and len(names) == len(set(names))


def test_the_scaling_sweep_ends_in_a_page_that_names_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = load_recipe("scale_demo", [f"store.root={tmp_path}"])
    shown: list[str] = []
    monkeypatch.setattr(
        "flows.scale.report",
        lambda config, everything: shown.append(config.recipe) or report(config, everything),
    )
    steps = plan_run("scale", recipe, Selection())
    assert [step.name for step in steps][-2:] == ["scale", "report"]
    assert "scale" in steps[-1].reason.split(", ")
    assert set(shown) == {"scale_demo --flow scale"}


def test_a_recipe_may_begin_with_documents_in_place_of_a_crawl(tmp_path: Path):
    (tmp_path / "pages.jsonl").write_text('{"text": "one page"}')
    path = tmp_path / "mine.yaml"
    text = "extends: demo\nname: mine\nsources: {{crawl: {crawl}, documents: {documents}}}\n"
    path.write_text(text.format(crawl="null", documents="{paths: [pages.jsonl]}"))
    recipe = load_recipe(str(path), [f"store.root={tmp_path}/store"])
    names = step_names(lambda: pipeline(recipe))
    assert names[0] == "source[documents]" and "import_documents" in names
    assert "extract" not in names
    path.write_text(text.format(crawl="null", documents="null"))
    with pytest.raises(ConfigError, match="either crawl or documents, got none"):
        load_recipe(str(path))


MIXTURE = """
extends: demo
name: mixed
sources: {mixture: {code: {paths: [code.jsonl]}, maths: {paths: [maths.jsonl]}}}
pretrain:
  mixture:
    max_epochs: {code: 4}
    stages:
    - {fraction: 0.8, weights: {main: 0.9, code: 0.1}}
    - {fraction: 0.2, weights: {main: 0.5, code: 0.5}}
"""


def mixed(tmp_path: Path, text: str = MIXTURE) -> PipelineConfig:
    for name in ("code", "maths"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "one page"}')
    path = tmp_path / "mixed.yaml"
    path.write_text(text)
    return load_recipe(str(path), [f"store.root={tmp_path}/store"])


def test_the_plan_of_a_mixture_brings_in_the_sets_that_have_weights(tmp_path: Path) -> None:
    recipe = mixed(tmp_path)
    names = [step.name for step in plan_run("pipeline", recipe, Selection())]
    for stage in ("import_documents", "decontaminate", "shards"):
        assert f"{stage}[code]" in names and f"{stage}[maths]" not in names
    assert names.index("shards[code]") < names.index("pretrain")
    assert "source[mixture-code]" in names
    plain = load_recipe("demo", [f"store.root={tmp_path}/store"])
    assert recipe.pretrain.identity() != plain.pretrain.identity()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("code: 0.1}", "books: 0.1}", "weighs 'books', which is no token set; known are main"),
        ("maths: {paths", "main: {paths", "a name has a-z, 0-9, _ and -, and is not 'main'"),
        ("maths: {paths", "Maths: {paths", "a name has a-z"),
        ("fraction: 0.2", "fraction: 0.3", "fractions of the stages add up to 1.1"),
        ("max_epochs", "max_epoch", "max_epoch: unknown key; did you mean 'max_epochs'"),
    ],
)  # fmt: skip
def test_a_mixture_of_unknown_sets_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        mixed(tmp_path, MIXTURE.replace(old, new))


def test_shared_sources_are_one_step(tmp_path: Path):
    recipe = load_recipe("demo", [f"store.root={tmp_path}"])
    names = step_names(lambda: pipeline(recipe))
    assert names.count("source[benchmarks]") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("dedup.bnds=20", "dedup.bnds: unknown key; did you mean 'bands'"),
        ("dedpu.bands=20", "dedpu: unknown key; did you mean 'dedup'"),
        ("pretrain.model.num_layers=0", "pretrain.model.num_layers.*greater than or equal to 1"),
        ("pretrain.batch_tokens=1000", "batch_tokens=1000 must be a multiple.*try 768 or 1024"),
        ("runtime.zero_stage=7", "runtime.zero_stage.*less than or equal to 3, got '7'"),
        ("runtime.exectuor=ray", "runtime.exectuor: unknown key; did you mean 'executor'"),
        ("stage_runtime.extract.wrkers=3", "stage_runtime.extract.wrkers.*did you mean 'workers'"),
        ("stage_runtime.extrct.workers=3", "stage_runtime.extrct.*did you mean 'extract'"),
        ("select.languages=[en]", "select.languages"),
        ("store.root=gs://x/y", "conditional writes"),
        ("dedup.bands", "KEY=VALUE"),
        ("name.first=x", "is a value and has no keys"),
    ],
)
def test_a_bad_change_is_refused_with_key_range_and_spelling(change: str, message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        load_recipe("demo", [change]).settings()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "pretrain.mixture={stages: [{main: 0.7}]}",
            r"pretrain\.mixture\.stages\.0\.main: unknown key; known are fraction, weights; "
            r"use one of these, or take the key out \(got '0\.7'\)",
        ),
        (
            "sources.mixture={code: {path: a.jsonl}}",
            r"sources\.mixture\.code\.path: unknown key; did you mean 'paths'\? \(got 'a",
        ),
        (
            "stage_runtime.sft.rank=2",
            r"stage_runtime\.sft\.rank: unknown key; .*'ranks'\? \(got '2'\)",
        ),
    ],
)
def test_an_unknown_key_in_a_list_or_mapping_says_what_is_known_there(change: str, said: str):
    with pytest.raises(ConfigError, match=said):
        load_recipe("demo", [change])


@pytest.mark.parametrize(("old", "new"), sorted(MOVED.items()))
def test_an_old_key_is_told_the_new_one_which_there_is(tmp_path: Path, old: str, new: str) -> None:
    value: Any = load_recipe("demo")
    for part in new.split("."):
        assert part in type(value).model_fields
        value = getattr(value, part)
    says = rf"{old}: .*did you mean '{new}'\?"
    with pytest.raises(ConfigError, match=says):
        load_recipe("demo", [f"{old}=constant"])
    stage, key = old.split(".")
    written = tmp_path / "old.yaml"
    written.write_text(f"extends: demo\nname: old\n{stage}: {{{key}: constant}}\n")
    with pytest.raises(ConfigError, match=says):
        load_recipe(str(written))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sft.learning_rte=1", "sft.learning_rte: .* 'sft.optimizer.learning_rate'"),
        ("grpo.weigth_decay=0", "'grpo.optimizer.weight_decay'"),
        ("sft.optimizer.lr=1", "sft.optimizer.lr: .* 'sft.optimizer.learning_rate'"),
        ("sft.optimizer.warmup_steps=3", "'sft.schedule.warmup_steps'"),
        ("dpo.schedule.num_steps=3", "dpo.schedule.num_steps: .* 'dpo.num_steps'"),
        ("grpo.clip=0.1", "did you mean 'clip_low'"),
        ("pretrain.schedule=cosine", "takes no value; did you mean 'pretrain.schedule.name'"),
        ("tokenizer=4096", "tokenizer: is a section and takes no value; its keys are vocab_size"),
    ],
)
def test_a_key_of_another_section_of_the_stage_is_named_whole(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_recipe("demo", [change])


def test_a_section_given_in_part_keeps_the_rest_of_its_own_stage() -> None:
    recipe = load_recipe("demo", ["sft.optimizer.beta2=0.99", "grpo.schedule.warmup_steps=7"])
    assert recipe.sft.optimizer.model_dump() == {
        "learning_rate": 2e-3, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.0,
        "gradient_clip": 1.0,
    }  # fmt: skip
    assert recipe.grpo.schedule.name == "constant" and recipe.grpo.schedule.warmup_steps == 7


def test_a_list_whose_only_item_is_bad_is_not_said_to_be_too_short():
    with pytest.raises(ConfigError) as bad_item:
        load_recipe("demo", ["pretrain.mixture={stages: [{main: 0.7}]}"])
    assert "stages.0.fraction" in str(bad_item.value)
    assert "at least 1 item" not in str(bad_item.value)
    with pytest.raises(ConfigError, match="at least 1 item"):
        load_recipe("demo", ["pretrain.mixture={stages: []}"])


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        load_recipe("dmeo")


def test_a_recipe_that_is_no_mapping_or_no_yaml_is_named(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("- 1")
    (tmp_path / "b.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="must hold keys"):
        load_recipe(str(tmp_path / "a.yaml"))
    with pytest.raises(ConfigError, match="is not YAML"):
        load_recipe(str(tmp_path / "b.yaml"))


def test_a_recipe_extends_another_key_by_key(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: demo\nname: mine\ndedup: {bands: 20}\n")
    mine, demo = load_recipe(str(path)), load_recipe("demo")
    assert mine.dedup.bands == 20 and mine.dedup.rows == demo.dedup.rows
    assert mine.sft == demo.sft and mine.name == "mine"


def test_a_recipe_in_another_folder_keeps_the_sources_of_the_one_it_extends(tmp_path: Path):
    """Each relative path is relative to the file that names it, wherever the command is run."""
    (tmp_path / "a [1]").mkdir()
    (tmp_path / "eval.jsonl").write_text("{}")
    (tmp_path / "a [1]" / "parent.yaml").write_text(
        "extends: demo\nname: p\nsources: {toxicity_examples: {paths: [t.jsonl]}}\n"
    )
    (tmp_path / "a [1]" / "t.jsonl").write_text("{}")
    child = tmp_path / "child.yaml"
    child.write_text(
        "extends: a [1]/parent.yaml\nname: c\nsources: {benchmarks: {paths: [eval.jsonl]}}\n"
    )

    def sources(recipe: PipelineConfig) -> dict[str, str]:
        steps = plan_run("curate", recipe, Selection())
        return {s.name: s.artifact for s in steps if s.stage == "source"}

    store = f"store.root={tmp_path}/store"
    demo, mine = sources(load_recipe("demo", [store])), sources(load_recipe(str(child), [store]))
    assert mine.pop("source[toxicity_examples]")
    assert mine.pop("source[benchmarks]") != demo.pop("source[benchmarks]")
    assert mine == demo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extends: mine.yaml", "extend each other in a circle: .*mine.yaml extends .*mine.yaml"),
        ("extends: [demo]", r"mine.yaml: extends: must be one name or path, got \['demo'\]"),
        ("extends: dmeo", "mine.yaml: extends: no recipe 'dmeo'; did you mean 'demo'"),
        ("extends: demo\ndedup: {bands: 3, bands: 4}", "the key 'bands' stands twice"),
        ("name: \xff", "mine.yaml cannot be read as UTF-8"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, text: str, message: str
):
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        load_recipe(str(path))


def test_a_section_that_extends_an_anchor_keeps_its_own_values(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extends: demo\nname: m\nsft: {task: &t {min_numbers: 2, max_numbers: 4}}\n"
        "dpo: {task: {<<: *t, max_numbers: 5}}\n"
    )
    recipe = load_recipe(str(path))
    assert recipe.dpo.task.max_numbers == 5 and recipe.dpo.task.min_numbers == 2


def test_an_impossible_combination_is_said_once_and_without_its_section():
    with pytest.raises(ConfigError) as caught:
        load_recipe("demo", ["pretrain.batch_tokens=1000"])
    assert str(caught.value).endswith("try 768 or 1024")


def test_the_report_names_the_recipe_and_changes_that_repeat_the_run(tmp_path: Path):
    assert load_recipe("demo").report.recipe == "demo"
    path = tmp_path / "mine.yaml"
    path.write_text("extends: demo\nname: mine\n")
    changes = [f"store.root={tmp_path}", "runtime.workers=3", "select.languages={en: 0.5}"]
    recipe = load_recipe(str(path), changes)
    assert recipe.report.recipe == "mine.yaml --set 'select.languages={en: 0.5}'"
    assert load_recipe("demo", ["runtime.workers=3"]).report == load_recipe("demo").report
    many = [f"dedup.bands={n}" for n in range(1, 40)]
    assert load_recipe("demo", many).report.recipe == "demo"


def test_an_extended_recipes_files_are_found_from_wherever_the_new_one_lies(tmp_path: Path):
    (tmp_path / "crawl.warc").touch()
    (tmp_path / "mine.yaml").write_text(
        f"extends: demo\nname: mine\nstore: {{root: {tmp_path}}}\n"
        "sources: {crawl: {paths: [crawl.warc]}}\n"
    )
    mine, demo = load_recipe(str(tmp_path / "mine.yaml")), load_recipe("demo")
    (path,) = mine.sources.quality_examples.paths
    assert path == str(Path(demo.base) / demo.sources.quality_examples.paths[0])
    assert mine.sources.language_model == demo.sources.language_model  # package://
    assert mine.sources.crawl is not None and mine.sources.crawl.paths == ("crawl.warc",)
    steps = {step.name for step in plan_run("curate", mine, Selection())}
    assert {"source[crawl]", "source[quality_examples]"} <= steps
    (tmp_path / "based.yaml").write_text(f"extends: demo\nname: based\nbase: {demo.base}\n")
    assert load_recipe(str(tmp_path / "based.yaml")).sources == demo.sources
    (tmp_path / "mixed.yaml").write_text(
        "extends: mine.yaml\nname: mixed\n"
        "sources: {mixture: {code: {paths: [code.txt, '@list.txt', s3://bucket/x]}}}\n"
    )
    (tmp_path / "below").mkdir()
    (tmp_path / "below/last.yaml").write_text("extends: ../mixed.yaml\nname: last\n")
    last = load_recipe(str(tmp_path / "below/last.yaml"))
    folder = tmp_path / "below/.."
    assert last.sources.mixture["code"].paths == (
        f"{folder}/code.txt", f"@{folder}/list.txt", "s3://bucket/x"
    )  # fmt: skip
    assert last.sources.crawl is not None and last.sources.quality_examples.paths == (path,)
    assert last.sources.crawl.paths == (f"{folder}/crawl.warc",)


def test_a_recipe_survives_the_trip_through_json():
    recipe = load_recipe("demo")
    assert PipelineConfig.model_validate_json(recipe.model_dump_json()) == recipe


def test_where_and_how_a_run_goes_bears_no_identity(tmp_path: Path):
    def ids(*changes: str) -> list[str]:
        recipe = load_recipe("demo", [f"store.root={tmp_path}", *changes])
        return [step.artifact for step in plan_run("pipeline", recipe, Selection())]

    moved = ids(f"store.root={tmp_path}/elsewhere", "runtime.workers=7", "runtime.ranks=1")
    assert ids() == moved
    assert ids("runtime.device=cpu", "runtime.keep_checkpoints=5") == moved


def test_a_recipe_without_sources_is_refused():
    with pytest.raises(ConfigError, match="sources: Field required"):
        check_recipe({"name": "x"}, "x.yaml")


@pytest.mark.parametrize("key", ["store.root", "sources.crawl.paths"])
def test_a_password_in_a_url_is_refused_and_not_repeated(key: str):
    url = "https://me:letmein@host.example/crawl.warc.gz"
    given = url if key == "store.root" else f"[{url}]"
    with pytest.raises(ConfigError, match=r"a password in a URL \(…@host\.example") as caught:
        load_recipe("demo", [f"{key}={given}"])
    assert "letmein" not in str(caught.value)


def test_the_forms_refuse_a_password_in_a_url():
    schema = PipelineConfig.model_json_schema()
    recipe = load_recipe("demo").model_dump(mode="json")
    jsonschema.validate(recipe, schema)
    recipe["sources"]["benchmarks"]["paths"] = ["https://me:letmein@host.example/eval.jsonl"]
    with pytest.raises(jsonschema.ValidationError, match="does not match"):
        jsonschema.validate(recipe, schema)


def test_models_and_labelled_files_of_a_recipe_become_inputs_of_signals(tmp_path: Path):
    for name in ("en.arpa", "de.arpa", "toxic.jsonl", "unsafe.jsonl"):
        (tmp_path / name).write_text(name)
    changes = [
        f"store.root={tmp_path}/store",
        f"sources.perplexity_model.paths=[{tmp_path}/*.arpa]",
        f"sources.toxicity_examples.paths=[{tmp_path}/toxic.jsonl]",
        f"sources.nsfw_examples.paths=[{tmp_path}/unsafe.jsonl]",
        "nsfw_classifier.rename_labels={porn: nsfw}",
        "select.max_nsfw=0.5",
        "select.perplexity_buckets.keep=[head, middle]",
        "select.languages.de=0.4",
        "select.thresholds_by_language.de.gopher_min_stop_words=null",
    ]
    recipe = load_recipe("demo", changes)
    assert recipe.select.thresholds_by_language == {"de": {"gopher_min_stop_words": None}}
    names = step_names(lambda: pipeline(recipe))
    for name in ("quality_classifier[toxicity]", "quality_classifier[nsfw]"):
        assert name in names and names.index(name) < names.index("signals")
    assert names.count("source[perplexity_model]") == 1
    steps = {step.name: step for step in plan_run("pipeline", recipe, Selection())}
    (tmp_path / "de.arpa").write_text("another model")
    again = {step.name: step for step in plan_run("pipeline", recipe, Selection())}
    changed = [name for name in steps if steps[name].artifact != again[name].artifact]
    assert "source[perplexity_model]" in changed and "source[crawl]" not in changed
    with pytest.raises(ConfigError, match="gopher_min_stop_wrds: unknown key; did you mean"):
        load_recipe("demo", ["select.thresholds_by_language.de.gopher_min_stop_wrds=2"])


def test_passages_are_cut_between_dedup_and_decontaminate_where_a_recipe_asks(tmp_path: Path):
    root = f"store.root={tmp_path}"
    for changes, count in (
        ([], 0),
        (["dedup_passages.unit=sentences"], 1),
        (["dedup_passages={}"], 1),
    ):
        recipe = load_recipe("demo", [root, *changes])
        names = [step.name for step in plan_run("curate", recipe, Selection())]
        assert names.count("dedup_passages") == count
        if count:
            assert names.index("dedup") + 1 == names.index("dedup_passages")
            assert names.index("dedup_passages") < names.index("decontaminate")
