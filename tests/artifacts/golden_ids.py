"""What the ids of fixed configs are: `python -m tests.artifacts.golden_ids` prints the table.

An id that moves orphans whatever somebody has trained under it. It may move by a stage's version,
which is bumped on purpose and so left out here; by nothing else without a line of IDS changing.
"""

import importlib
from typing import Any

from lmpipe.artifacts.identity import artifact_id
from lmpipe.artifacts.source import PinnedFile, SourceConfig
from lmpipe.artifacts.stage import Stage
from tests.architecture.modules import stages

SOURCE = SourceConfig(name="crawl", files=(PinnedFile(name="a", bytes=1, sha256="0" * 64),))
CONFIGS: dict[str, Any] = {"source": SOURCE}  # of the others: the defaults


def ids() -> dict[str, str]:
    """Return the id of what each stage makes from its default config and one input a role."""
    found = {}
    for name, module in sorted(stages().items()):
        declared: Stage[Any] = getattr(importlib.import_module(module), name)
        config = CONFIGS.get(name) or declared.config_type()
        inputs = {role.name: ["1" * 64] for role in declared.roles if not role.optional}
        # what stands in the files is their own affair, that they count is the id's
        files = dict.fromkeys(config.identity_file_digests(), "2" * 64)
        found[name] = artifact_id(name, 0, config.identity(), inputs, files)
    return found


if __name__ == "__main__":
    for stage, artifact in ids().items():
        print(f'    "{stage}": "{artifact}",')
