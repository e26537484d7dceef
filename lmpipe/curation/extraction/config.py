"""What extract and import_documents are asked to do."""

from typing import Literal

from pydantic import Field

from lmpipe.artifacts.stage import StageConfig


class ExtractConfig(StageConfig):
    """How pages become text."""

    extractor: Literal["cascade", "trafilatura", "trafilatura_fast", "resiliparse"] = Field(
        "cascade",
        description="Which extractor finds the main text; cascade: trafilatura's rules, made fast,"
        " where a page names its content, else a walk over its blocks, and trafilatura where that"
        " finds little.",
    )
    max_page_bytes: int = Field(
        10_000_000, ge=1_000, le=1 << 30, description="Larger pages, once decoded, are removed."
    )
    max_page_seconds: float = Field(
        20.0, gt=0, le=3600, description="CPU time after which a page is given up."
    )
    max_page_memory_bytes: int = Field(
        2 << 30, ge=64 << 20, le=1 << 40, description="Memory that one page may take."
    )
    split_bytes: int = Field(
        256 << 20,
        ge=0,
        le=1 << 50,
        description="Larger archives are split at records into ranges of this size; 0: never.",
    )


class ImportDocumentsConfig(StageConfig):
    """Which fields of the rows become which columns."""

    text_field: str = Field("text", min_length=1, description="Field that holds the text.")
    id_field: str = Field(
        "", description="Field that names a row within its file; empty: the row's number."
    )
    url_field: str = Field("url", description="Field with the URL; rows without it have none.")
    date_field: str = Field("date", description="Field with the date; rows without it have none.")
    text_documents: Literal["file", "line"] = Field(
        "file", description="Whether a plain text file is one document, or each line is one."
    )
