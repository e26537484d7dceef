"""What the documents say of the code is what the code says of itself."""

import re

from tests.architecture.modules import REPOSITORY, stages
from tests.architecture.stage_table import ORDER, stage_table

STAGES = (REPOSITORY / "docs" / "stages.md").read_text()
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")])
BEGIN, END = "<!-- stages: python -m tests.architecture.stage_table -->", "<!-- end of stages -->"


def test_the_stage_table_is_the_one_generated_from_the_code() -> None:
    written = STAGES.partition(BEGIN)[2].partition(END)[0].strip()
    assert written == stage_table()


def test_every_stage_has_its_place_in_the_order_and_says_what_it_does() -> None:
    assert set(stages()) <= set(ORDER)
    empty = [row for row in stage_table().splitlines()[2:] if row.split("|")[2].strip() == ""]
    assert not empty, f"the first line of the docstring is missing: {empty}"


def test_every_link_into_the_repository_leads_somewhere() -> None:
    for document in DOCUMENTS:
        targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", document.read_text())
        missing = [target for target in targets if not (document.parent / target).exists()]
        assert not missing, f"{document.name} links to {missing}"


def test_every_make_target_named_in_the_documents_exists() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, flags=re.MULTILINE))
    for document in DOCUMENTS:
        named = set(
            re.findall(r"(?:^|`)\s*make ([a-z][a-z-]*)", document.read_text(), flags=re.MULTILINE)
        )
        assert named <= targets, f"{document.name} names {sorted(named - targets)}"


def test_the_readme_is_one_screen_and_leads_to_every_page() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    assert len(readme.splitlines()) <= 75
    unlinked = [p.name for p in REPOSITORY.glob("docs/*.md") if f"](docs/{p.name})" not in readme]
    assert not unlinked
