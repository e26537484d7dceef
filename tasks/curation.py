"""Tasks that turn raw crawl into clean documents."""

from lmpipe.curation.decontamination import decontaminate as decontaminate_
from lmpipe.curation.dedup import dedup as dedup_
from lmpipe.curation.extraction import extract as extract_
from lmpipe.curation.passages import dedup_passages as dedup_passages_
from lmpipe.curation.privacy import mask as mask_
from lmpipe.curation.quality import quality_classifier as quality_classifier_
from lmpipe.curation.quality import signals as signals_
from lmpipe.curation.selection import resample as resample_
from lmpipe.curation.selection import select as select_
from tasks.bridge import as_task

extract = as_task(extract_.extract, retries=2, tags=("cpu",))
quality_classifier = as_task(quality_classifier_.quality_classifier, retries=2, tags=("cpu",))
signals = as_task(signals_.signals, retries=2, tags=("cpu",))
select = as_task(select_.select, retries=2, tags=("cpu",))
dedup = as_task(dedup_.dedup, retries=2, tags=("cpu",))
dedup_passages = as_task(dedup_passages_.dedup_passages, retries=2, tags=("cpu",))
decontaminate = as_task(decontaminate_.decontaminate, retries=2, tags=("cpu",))
resample = as_task(resample_.resample, retries=2, tags=("cpu",))
mask = as_task(mask_.mask, retries=2, tags=("cpu",))
