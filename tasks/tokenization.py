"""Tasks that turn documents into token shards."""

from lmpipe.token_data import shards as shards_
from lmpipe.tokenization import tokenizer as tokenizer_
from lmpipe.tokenization import vocabulary as vocabulary_
from tasks.bridge import as_task

tokenizer = as_task(tokenizer_.tokenizer, retries=2, tags=("cpu",))
shards = as_task(shards_.shards, retries=2, tags=("cpu",))
vocabulary = as_task(vocabulary_.vocabulary, retries=2, tags=("cpu",))
