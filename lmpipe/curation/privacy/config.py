"""Which personal data are masked."""

from typing import Literal

from pydantic import Field

from lmpipe.artifacts.stage import StageConfig

PersonalType = Literal["email", "iban", "card", "ssn", "ip", "phone"]


class MaskConfig(StageConfig):
    """What is masked."""

    types: tuple[PersonalType, ...] = Field(
        ("email", "iban", "card", "ssn", "ip", "phone"),
        min_length=1,
        description="Kinds of personal data to replace; the others stay as they are.",
    )
