"""The same small documents and store as the tokenizer's tests."""

from tests.tokenization.conftest import make_documents, store

__all__ = ["make_documents", "store"]
