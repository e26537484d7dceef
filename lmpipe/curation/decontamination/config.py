"""What counts as a leaked evaluation item."""

from typing import Literal

from pydantic import Field

from lmpipe.artifacts.stage import StageConfig


class DecontaminateConfig(StageConfig):
    """What counts as an overlap with an evaluation item, and what becomes of the text."""

    ngram: int = Field(13, ge=1, le=64, description="Words in an n-gram.")
    min_item_words: int = Field(
        5, ge=1, le=64, description="Shorter texts of items are not looked for."
    )
    min_share: float = Field(
        0.0, ge=0, le=1, description="Least share of an item's n-grams that flags; 0: any one."
    )
    template_items: int = Field(
        8, ge=1, description="N-grams of more items than this are a template and flag nothing."
    )
    boilerplate_documents: int = Field(
        10,
        ge=0,
        description="N-grams of more documents than this flag nothing unless a document holds half "
        "of the item's; 0: no such limit.",
    )
    remove: Literal["document", "paragraph", "span", "nothing"] = Field(
        "document",
        description="What goes: the document, its lines that hold an item, the words of the item "
        "alone, or nothing (the report says what it would be).",
    )
    min_remaining_words: int = Field(
        20, ge=0, description="A document with fewer words left after a cut is removed."
    )
