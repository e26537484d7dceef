"""Documents on disk: the schema, reading, writing, and the ledger of what was removed.

from lmpipe.documents.schema import DOCUMENT_SCHEMA, REMOVED_SCHEMA, SIGNAL_COLUMNS, document_id
from lmpipe.documents.read import read_documents, read_shard, shard_names
from lmpipe.documents.write import DocumentWriter
from lmpipe.documents.ledger import assert_conserved, removal, write_ledger
"""
