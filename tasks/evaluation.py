"""Tasks that measure and tell."""

from lmpipe.evaluation import evaluate as evaluate_
from lmpipe.report import report as report_
from tasks.bridge import as_task

evaluate = as_task(evaluate_.evaluate, retries=2, tags=("gpu",), has_ranks=False)
report = as_task(report_.report, retries=2, tags=("cpu",), tells_failures=True)
