"""What pretraining does: the model, its data, its optimizer and its course."""

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from lmpipe.artifacts.stage import StageConfig
from lmpipe.errors import ConfigError
from lmpipe.eval_items.contamination_record import ACCEPT_DESCRIPTION, LIMIT_DESCRIPTION
from lmpipe.model.config import ModelConfig
from lmpipe.token_data.packing import PackingName
from lmpipe.training.mixing import MixtureConfig
from lmpipe.training.optimizer import OptimizerConfig
from lmpipe.training.schedule import ScheduleConfig

if TYPE_CHECKING:
    from lmpipe.model.decoder import Attention, Decoder


class PretrainConfig(StageConfig):
    """How to train a language model on token shards."""

    model: ModelConfig = Field(ModelConfig.model_validate({}), description="The model's shape.")
    total_tokens: int = Field(
        2_000_000, ge=1, le=10**15, description="Training tokens of the whole run, epochs included."
    )
    batch_tokens: int = Field(
        8192, ge=1, le=2**30, description="Tokens per optimizer step over all ranks."
    )
    sequence_length: int = Field(256, ge=2, le=2**20, description="Tokens per training sequence.")
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="AdamW's settings.")
    schedule: ScheduleConfig = Field(
        ScheduleConfig(), description="The course of the learning rate."
    )
    z_loss: float = Field(
        0.0, ge=0, le=1, description="Weight of log(Z)^2, which keeps logits from drifting; 1e-4."
    )
    packing: PackingName = Field(
        "concatenate",
        description="How documents fill training sequences: concatenate cuts one stream; best_fit "
        "keeps whole what fits, and pads. Padding counts as training tokens.",
    )
    mixture: MixtureConfig | None = Field(
        None,
        description="Shares of several token sets, by stage of the run; null: main alone. `main` "
        "is the recipe's own, the others are named in sources.mixture.",
    )
    document_masking: bool = Field(
        True, description="Keep attention within documents where a sequence holds several."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Of the initial weights and the data order.")
    validation_every: int = Field(
        50, ge=0, le=10**9, description="Steps between validations; 0 validates at the end only."
    )
    validation_tokens: int = Field(
        65_536, ge=1, le=10**12, description="Tokens of the validation split that are read."
    )
    max_contaminated_fraction: float = Field(0.0, ge=0, le=1, description=LIMIT_DESCRIPTION)
    accept_contamination: tuple[str, ...] = Field((), description=ACCEPT_DESCRIPTION)

    @model_validator(mode="after")
    def _sizes_fit(self) -> "PretrainConfig":
        length, batch = self.sequence_length, self.batch_tokens
        if batch % length:
            low, high = batch // length * length, -(-batch // length) * length
            nearest = " or ".join(str(value) for value in (low, high) if value)
            raise ConfigError(
                f"batch_tokens={batch} must be a multiple of sequence_length={length}; "
                f"try {nearest}"
            )
        if self.total_tokens < batch:
            raise ConfigError(
                f"total_tokens={self.total_tokens} is less than one step of batch_tokens={batch}; "
                f"try total_tokens={batch} or a smaller batch"
            )
        if length > self.model.max_seq_len:
            raise ConfigError(
                f"sequence_length={length} is more than model.max_seq_len="
                f"{self.model.max_seq_len}; raise the one or lower the other"
            )
        if self.mixture is not None:
            self.mixture.steps(self.total_steps)
        return self

    @property
    def batch_sequences(self) -> int:
        """Sequences per step over all ranks."""
        return self.batch_tokens // self.sequence_length

    @property
    def total_steps(self) -> int:
        """Whole steps that total_tokens pay for."""
        return self.total_tokens // self.batch_tokens

    def build_model(self, attention: "Attention") -> "Decoder":
        """Return the model with its initial weights; called in the ranks, where torch is loaded."""
        from lmpipe.model.decoder import Decoder

        return Decoder(self.model, attention).initialise(self.seed)
