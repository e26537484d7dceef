"""The columns of a document and of the ledger, said once and never inferred.

A schema inferred from the first batch pins a null column's type, and an empty shard then has none;
both have cost other pipelines whole runs. So every file of documents is written with the schema
below, whatever its rows hold. The price: a new signal means a new column here.
"""

import hashlib

import pyarrow as pa

SIGNAL_COLUMNS: dict[str, pa.DataType] = {
    # counts over the shared tokenisation
    "num_words": pa.int32(),
    "num_non_symbol_words": pa.int32(),
    # Gopher quality (Rae et al. 2021, A1.1)
    "mean_word_length": pa.float32(),
    "hash_word_ratio": pa.float32(),
    "ellipsis_word_ratio": pa.float32(),
    "bullet_line_fraction": pa.float32(),
    "ellipsis_line_fraction": pa.float32(),
    "alphabetic_word_fraction": pa.float32(),
    "num_stop_words": pa.int32(),
    # Gopher repetition (Rae et al. 2021, table A1)
    "duplicate_paragraph_fraction": pa.float32(),
    "duplicate_paragraph_character_fraction": pa.float32(),
    "duplicate_line_fraction": pa.float32(),
    "duplicate_line_character_fraction": pa.float32(),
    **{f"top_{n}_gram_character_fraction": pa.float32() for n in (2, 3, 4)},
    **{f"duplicate_{n}_gram_character_fraction": pa.float32() for n in range(5, 11)},
    # C4 (Raffel et al. 2020, 2.2), over the lines that C4's line rules keep
    "num_sentences": pa.int32(),
    "has_lorem_ipsum": pa.bool_(),
    "has_curly_bracket": pa.bool_(),
    # FineWeb (Penedo et al. 2024, 3.6)
    "punctuated_line_fraction": pa.float32(),
    "short_line_fraction": pa.float32(),
    "repeated_line_character_fraction": pa.float32(),
    "newline_word_ratio": pa.float32(),
    # learned scores
    "quality_score": pa.float32(),
    "kenlm_perplexity": pa.float32(),
    # select's labels: head, middle or tail of its language; the band of several scores
    "perplexity_bucket": pa.string(),
    "ensemble_band": pa.int32(),
    "toxicity": pa.float32(),
    "nsfw": pa.float32(),
    # lists given from outside
    "num_adult_words": pa.int32(),
    "is_blocked": pa.bool_(),
}

DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("host", pa.string()),
        pa.field("date", pa.string()),
        pa.field("warc_path", pa.string()),
        # where to read from: the record's beginning, or that of the compressed member that holds
        # it (several records in one stream: warc_record_id tells them apart). Imported: the row.
        pa.field("warc_offset", pa.int64()),
        pa.field("warc_record_id", pa.string()),
        pa.field("content_type", pa.string()),
        pa.field("charset", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float32()),
        pa.field("extractor", pa.string()),
        *(pa.field(name, type_) for name, type_ in SIGNAL_COLUMNS.items()),
    ]
)

REMOVED_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("reasons", pa.list_(pa.string())),
        pa.field("score", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("keeper", pa.string()),
        pa.field("similarity", pa.float64()),
        pa.field("url", pa.string()),
    ]
)


def document_id(source_name: str, record_key: str) -> str:
    """Name a document by what it is, not by where it lies: 32 hex digits.

    The key is the WARC-Record-ID, else the offset or row within the source's logical file. Paths,
    order and worker counts do not enter, so the same record has one name in every run.
    """
    message = f"{len(source_name)}:{source_name}{record_key}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(message, digest_size=16).hexdigest()
