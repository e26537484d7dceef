"""A base checkpoint for tests: random weights, a byte-level tokenizer, seconds to make."""

from pydantic import Field

from lmpipe.artifacts.output import Output
from lmpipe.artifacts.stage import StageConfig, stage
from lmpipe.artifacts.types import Checkpoint
from lmpipe.runtime import Runtime
from tests.alignment.toy import toy_tokenizer


class RandomBaseConfig(StageConfig):
    """The size of the model."""

    seed: int = Field(0, ge=0, description="Seed of the weights.")
    d_model: int = Field(32, ge=16, description="Width.")


@stage(version=1, kind="statistical")
def random_base(
    out: Output[Checkpoint], config: RandomBaseConfig, *, runtime: Runtime
) -> Checkpoint:
    """Write a small decoder with random weights."""
    from lmpipe.model.config import ModelConfig
    from lmpipe.model.decoder import Decoder
    from lmpipe.model.huggingface import save_model

    tokenizer = toy_tokenizer()
    shape = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_layers=2,
        d_model=config.d_model,
        num_heads=2,
        num_kv_heads=1,
        max_seq_len=64,
    )
    with out.scratch(runtime) as folder:
        save_model(Decoder(shape).initialise(config.seed), shape, folder / "model")
        tokenizer.save(str(folder / "model" / "tokenizer.json"))
        out.put_dir("model", folder / "model")
    out.write_json("meta.json", {"kind": "base"})
    return out.commit()
