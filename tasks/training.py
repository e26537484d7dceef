"""Tasks that train: pretraining, alignment, scaling sweeps.

A retry resumes from the newest checkpoint inside the stage, so retries are cheap.
"""

from lmpipe.alignment import dpo as dpo_
from lmpipe.alignment import grpo as grpo_
from lmpipe.alignment import sft as sft_
from lmpipe.scaling import scale as scale_
from lmpipe.training import pretrain as pretrain_
from tasks.bridge import as_task

pretrain = as_task(pretrain_.pretrain, retries=3, retry_delay_seconds=30, tags=("gpu",))
sft = as_task(sft_.sft, retries=3, retry_delay_seconds=30, tags=("gpu",))
dpo = as_task(dpo_.dpo, retries=3, retry_delay_seconds=30, tags=("gpu",))
grpo = as_task(grpo_.grpo, retries=3, retry_delay_seconds=30, tags=("gpu",))
scale = as_task(scale_.scale, retries=3, retry_delay_seconds=30, tags=("gpu",))
