"""Tasks that bring data in."""

from lmpipe.artifacts import source as source_
from lmpipe.curation.extraction import import_documents as import_documents_
from tasks.bridge import as_task
from tasks.conductor import Policy, SourceTask

source = SourceTask(source_.source, Policy(retries=2, tags=("cpu",)))
import_documents = as_task(import_documents_.import_documents, retries=2, tags=("cpu",))
