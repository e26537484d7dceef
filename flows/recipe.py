"""Recipes: one YAML file says what a run does, and is checked whole before anything runs.

A recipe has one section per stage (that stage's config, so all of it is identity), `sources` (where
files lie), `store` and `runtime` (where and how it runs, no identity). `extends: demo` starts from
another recipe and changes what is named.
"""

import glob
import re
import shlex
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flows.recipe_errors import causes, explain, unknown
from flows.store_root import default_root
from lmpipe.alignment.config import DpoConfig, GrpoConfig, SftConfig
from lmpipe.artifacts.source import PathOrUrl, SourceSpec
from lmpipe.artifacts.store import Store
from lmpipe.curation.decontamination.config import DecontaminateConfig
from lmpipe.curation.dedup.config import DedupConfig
from lmpipe.curation.extraction.config import ExtractConfig, ImportDocumentsConfig
from lmpipe.curation.passages.config import DedupPassagesConfig
from lmpipe.curation.privacy.config import MaskConfig
from lmpipe.curation.quality.config import (
    NsfwClassifierConfig,
    QualityClassifierConfig,
    SignalsConfig,
    ToxicityClassifierConfig,
)
from lmpipe.curation.selection.config import ResampleConfig, SelectConfig
from lmpipe.errors import ConfigError, did_you_mean
from lmpipe.evaluation.config import EvaluateConfig
from lmpipe.report.config import ReportConfig
from lmpipe.runtime import Runtime
from lmpipe.scaling.config import ScaleConfig
from lmpipe.token_data.shards import ShardsConfig
from lmpipe.tokenization.config import TokenizerConfig, VocabularyConfig
from lmpipe.training.config import PretrainConfig
from lmpipe.training.mixing import MAIN
from tasks.conductor import Settings

RECIPES = Path(__file__).parent / "recipes"
INSTALLATION = RECIPES.parents[1]
LONGEST_COMMAND = 400  # what ReportConfig.recipe takes


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StoreSpec(_Section):
    """Where artifacts lie."""

    root: PathOrUrl = Field(
        "artifacts",
        description="A folder, file:///… or s3://bucket/prefix. A relative folder in a recipe file "
        "starts from that file, in --set and in a form from the working directory.",
    )


class Sources(_Section):
    """What comes from outside, each pinned by hash."""

    crawl: SourceSpec | None = Field(None, description="WARC files.")
    documents: SourceSpec | None = Field(
        None, description="Parquet, JSONL or text files, in place of a crawl."
    )
    language_model: SourceSpec = Field(description="fastText language-id model (lid.176).")
    quality_examples: SourceSpec = Field(description="JSONL of text and label: good or bad pages.")
    perplexity_model: SourceSpec | None = Field(
        None,
        description="KenLM models, each named by its language (en.kenlm, de.kenlm); a file whose "
        "name begins with no language scores all others.",
    )
    toxicity_examples: SourceSpec | None = Field(
        None, description="JSONL of text and label: toxic or not; null: no such score."
    )
    nsfw_examples: SourceSpec | None = Field(
        None, description="JSONL of text and label: unsafe or not; null: no such score."
    )
    block_lists: SourceSpec | None = Field(
        None, description="hosts*.txt, urls*.txt, words.LANGUAGE.txt; null: none."
    )
    resample_target: SourceSpec | None = Field(
        None, description="Texts that resample draws towards (JSONL or text); null: no draw."
    )
    benchmarks: SourceSpec = Field(description="Eval items as JSONL, one file per set.")
    gpt2: SourceSpec | None = Field(
        None, description="GPT-2's merges.txt, to compare its tokenizer with; null: left out."
    )
    mixture: dict[str, SourceSpec] = Field(
        default_factory=dict,
        description="Parquet, JSONL or text that pretraining reads beside the recipe's own "
        "documents (`main`), by the name that pretrain.mixture weighs it by.",
    )

    @model_validator(mode="after")
    def _one_beginning(self) -> Self:
        given = [name for name in ("crawl", "documents") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give either crawl or documents, got {' and '.join(given) or 'none'}")
        return self


class PipelineConfig(_Section):
    """A whole run: every stage's config, the sources, and where and how it runs."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", description="The run's name.")
    base: str = Field("", description="Folder that relative source paths start from.")
    store: StoreSpec = Field(StoreSpec(), description="Where artifacts lie.")
    runtime: Runtime = Field(Runtime(), description="How stages run; no identity.")
    stage_runtime: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Runtime fields that differ for single stages."
    )
    sources: Sources = Field(description="What comes from outside.")
    import_documents: ImportDocumentsConfig = Field(
        ImportDocumentsConfig(), description="Parquet, JSONL or text to documents."
    )
    extract: ExtractConfig = Field(ExtractConfig(), description="WARC to documents.")
    quality_classifier: QualityClassifierConfig = Field(
        QualityClassifierConfig(), description="The fastText quality classifier."
    )
    toxicity_classifier: ToxicityClassifierConfig = Field(
        ToxicityClassifierConfig(),
        description="Trained where sources.toxicity_examples is given.",
    )
    nsfw_classifier: NsfwClassifierConfig = Field(
        NsfwClassifierConfig(),
        description="Trained where sources.nsfw_examples is given.",
    )
    signals: SignalsConfig = Field(SignalsConfig(), description="What is measured.")
    select: SelectConfig = Field(SelectConfig(), description="What is kept.")
    dedup: DedupConfig = Field(DedupConfig(), description="Exact and near-duplicate removal.")
    dedup_index: str = Field(
        "", description="List of earlier crawls to compare with (`lmpipe dedup-index`)."
    )
    dedup_passages: DedupPassagesConfig | None = Field(
        None, description="Cutting of repeated paragraphs or sentences; null: texts stay whole."
    )
    resample: ResampleConfig = Field(
        ResampleConfig(), description="The draw towards sources.resample_target."
    )
    decontaminate: DecontaminateConfig = Field(
        DecontaminateConfig(), description="Removal of eval items."
    )
    mask: MaskConfig | None = Field(
        None, description="Masking of personal data; null: texts stay as they are."
    )
    tokenizer: TokenizerConfig = Field(TokenizerConfig(), description="BPE training.")
    shards: ShardsConfig = Field(ShardsConfig(), description="Documents to token shards.")
    vocabulary: VocabularyConfig = Field(
        VocabularyConfig(), description="What the tokenizer is worth, on held-out documents."
    )
    pretrain: PretrainConfig = Field(PretrainConfig(), description="Pretraining.")
    sft: SftConfig = Field(SftConfig(), description="Supervised fine-tuning.")
    dpo: DpoConfig = Field(DpoConfig(), description="Direct preference optimisation.")
    grpo: GrpoConfig = Field(GrpoConfig(), description="Reinforcement learning.")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="Benchmarks.")
    report: ReportConfig = Field(ReportConfig(), description="The page about the run.")
    scale: ScaleConfig = Field(ScaleConfig(), description="Scaling sweep.")

    @model_validator(mode="after")
    def _mixture_has_its_sources(self) -> Self:
        for name in self.sources.mixture:
            if not re.fullmatch("[a-z0-9][a-z0-9_-]*", name) or name == MAIN:
                raise ValueError(
                    f"sources.mixture.{name}: a name has a-z, 0-9, _ and -, and is not {MAIN!r}, "
                    "which is the recipe's own documents"
                )
        for name in self.mixed_in:
            if name not in self.sources.mixture:
                known = ", ".join((MAIN, *sorted(self.sources.mixture)))
                raise ValueError(
                    f"pretrain.mixture weighs {name!r}, which is no token set; known are {known}. "
                    f"Add sources.mixture.{name}"
                )
        return self

    @property
    def mixed_in(self) -> tuple[str, ...]:
        """Token sets that pretraining reads beside the recipe's own."""
        return self.pretrain.mixture.names[1:] if self.pretrain.mixture else ()

    def portable(self) -> "PipelineConfig":
        """Return the recipe for another installation: what lies in this one is named from its root.

        Deployed runs start in the root of their installation, a folder or an image.
        """
        base = Path(self.base)
        if not base.is_relative_to(INSTALLATION):
            return self
        return self.model_copy(update={"base": base.relative_to(INSTALLATION).as_posix()})

    def written(self) -> dict[str, Any]:
        """Return the plain values that the recipe names, less those left at their defaults."""
        return self.model_dump(mode="json", exclude_unset=True)

    def settings(self) -> Settings:
        """Return where artifacts lie and how stages run."""
        return Settings(Store(self.store.root), self.runtime, self.stage_runtime)


def load_recipe(name: str, changes: list[str] | None = None) -> PipelineConfig:
    """Return a recipe by name (`demo`) or path, with `--set a.b=value` changes applied.

    Raises:
        ConfigError: no such recipe, an unknown key (the nearest spelling is named), or a bad value
            (its range is named). Nothing has run then.
    """
    path = _path_of(name)
    raw = _read(path, name, ())
    _default_store(raw, path)
    for change in changes or []:
        _apply(raw, change)
    _note_changes(raw, changes or [])
    return check_recipe(raw, str(path))


def parse_recipe(text: str, settings: dict[str, Any] | None = None) -> PipelineConfig:
    """Return a recipe by name, by path, or given whole as YAML, which may `extends` another.

    Args:
        text: empty: the settings are the whole recipe.
        settings: plain values that are laid over the recipe's, section by section.

    Raises:
        ConfigError: as `load_recipe`.
    """
    if "\n" not in text and ":" not in text and text.strip():
        path = _path_of(text.strip())
        raw, origin = _read(path, text.strip(), ()), str(path)
    else:
        origin = "the recipe given"
        raw = _extended(_parse(text, origin), origin, Path(), ())
    return check_recipe(
        _laid_over(raw, settings or {}), f"{origin} with settings" * bool(settings) or origin
    )


def _path_of(name: str) -> Path:
    return Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"


def _read(path: Path, name: str, below: tuple[Path, ...]) -> dict[str, Any]:
    """Return a recipe's plain values on top of those of the recipe that it `extends`.

    Args:
        below: the recipes that extend this one.
    """
    if not path.is_file():
        known = sorted(p.stem for p in RECIPES.glob("*.yaml"))
        asked = f"{below[-1]}: extends: " if below else ""
        raise ConfigError(f"{asked}no recipe {name!r}; {did_you_mean(name, known)}")
    if path.resolve() in below:
        chain = " extends ".join(str(p) for p in (*below, path.resolve()))
        raise ConfigError(f"recipes extend each other in a circle: {chain}; cut it at one of them")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as UTF-8 text: {error}") from error
    raw = _parse(text, str(path))
    raw.setdefault("base", str(path.parent.absolute()))
    if not _is_shipped(path):
        _anchor_places(raw, path.parent.absolute())
    report = raw.setdefault("report", {})
    if "name" in raw and isinstance(report, dict):
        report.setdefault("recipe", path.stem if path.parent == RECIPES else path.name)
    return _extended(raw, str(path), path.parent, (*below, path.resolve()))


class _Loader(yaml.SafeLoader):
    """YAML whose keys are unique: of two equal ones PyYAML takes the last in silence."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        written = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in written:
            if written.count(key) > 1:
                raise yaml.composer.ComposerError(
                    "while reading a section", node.start_mark, f"the key {key!r} stands twice"
                )
        return node


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        raw = yaml.load(text, Loader=_Loader) or {}
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{origin} is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{origin} must hold keys and values, holds a {type(raw).__name__}")
    return raw


def _extended(
    raw: dict[str, Any], origin: str, folder: Path, below: tuple[Path, ...]
) -> dict[str, Any]:
    parent = raw.pop("extends", "")
    if not parent:
        return raw
    if not isinstance(parent, str):
        raise ConfigError(f"{origin}: extends: must be one name or path, got {parent!r}")
    path = _path_of(parent)
    inherited = _read(path if path.is_absolute() else folder / path, parent, below)
    return _laid_over(inherited, raw)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return two recipes as one; the files that the lower one names stay where they are."""
    if above.get("base", below.get("base")) != below.get("base"):
        _anchor(below)
    return _merged(below, above)


def _is_shipped(path: Path) -> bool:
    return path.resolve().parent == RECIPES.resolve()


def _default_store(raw: dict[str, Any], path: Path) -> None:
    """Put the store of a recipe that names none beside its file; a shipped one's, where we are."""
    store = raw.setdefault("store", {})
    if isinstance(store, dict):
        folder = "" if _is_shipped(path) else str(path.parent.absolute())
        store.setdefault("root", default_root(folder))


def _anchor_places(raw: dict[str, Any], folder: Path) -> None:
    """Make a recipe file's own relative places absolute: they start from the file's folder."""
    stages = raw.get("stage_runtime")
    runtimes = [raw.get("runtime"), *(stages.values() if isinstance(stages, dict) else ())]
    places = [(raw.get("store"), "root")]
    places += [(runtime, key) for runtime in runtimes for key in ("hostfile", "scratch")]
    for section, key in places:
        place = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(place, str) and place and "://" not in place:
            section[key] = str(folder / Path(place).expanduser())


def _anchor(raw: dict[str, Any]) -> None:
    """Make source paths absolute, for a recipe in another folder that takes them over."""
    sources = raw.get("sources")
    if not isinstance(sources, dict):
        return
    for spec in [*sources.values(), *(sources.get("mixture") or {}).values()]:
        if isinstance(spec, dict) and isinstance(spec.get("paths"), list):
            spec["paths"] = [anchored(path, str(raw.get("base", ""))) for path in spec["paths"]]


def anchored(path: Any, base: str) -> Any:
    """Return a source's path or list as an absolute one, URLs as they are."""
    if not isinstance(path, str) or "://" in path:
        return path
    is_list = path.startswith("@")
    return "@" * is_list + str(Path(glob.escape(base)) / path.removeprefix("@"))


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return two sections as one: the upper one wins, sections are merged key by key."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _merged(old, value)
        result[key] = value
    return result


def check_recipe(raw: dict[str, Any], origin: str) -> PipelineConfig:
    """Validate a recipe's plain values; see `load_recipe` for the errors."""
    try:
        recipe = PipelineConfig.model_validate(raw)
    except ValidationError as error:
        lines = [explain(dict(detail), PipelineConfig) for detail in causes(error)]
        raise ConfigError(f"{origin} is not a valid recipe:\n" + "\n".join(lines)) from error
    for stage, update in recipe.stage_runtime.items():
        if stage not in PipelineConfig.model_fields:
            raise ConfigError(f"stage_runtime.{unknown((stage,), PipelineConfig, update)}")
        for key in update:
            if key not in Runtime.model_fields:
                hint = unknown((key,), Runtime, update[key])
                raise ConfigError(f"stage_runtime.{stage}.{hint}")
        try:
            Runtime.model_validate({**recipe.runtime.model_dump(), **update})
        except ValidationError as error:
            lines = [explain(dict(detail), Runtime) for detail in error.errors()]
            raise ConfigError(f"{origin}: stage_runtime.{stage}:\n" + "\n".join(lines)) from error
    return recipe


def _apply(raw: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {change!r} must read KEY=VALUE, such as dedup.bands=20")
    parts = key.split(".")
    section = raw
    for part in parts[:-1]:
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise ConfigError(f"--set {key}: {part!r} is a value and has no keys below it")
    try:
        section[parts[-1]] = yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {key}: {text!r} is no YAML value: {error}") from error


def _note_changes(raw: dict[str, Any], changes: list[str]) -> None:
    """Let the report's commands repeat the changes: not those of where and how a run goes."""
    kept = [c for c in changes if not c.startswith(("store", "runtime", "stage_runtime", "report"))]
    report = raw.get("report")
    if isinstance(report, dict) and isinstance(report.get("recipe"), str):
        words = [report["recipe"], *(f"--set {shlex.quote(change)}" for change in kept)]
        if len(text := " ".join(words)) <= LONGEST_COMMAND:
            report["recipe"] = text
