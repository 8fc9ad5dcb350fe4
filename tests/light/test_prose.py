"""What the check of the pages' English reads, and what it finds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

PAGE = """# Title

Words, `code mends`, and [a link](mends.md).

```console
mends
```

    mends indented

<!-- begin table -->
| mends |
<!-- end table -->

The command mends it.
"""


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    specification = importlib.util.spec_from_file_location("docs_prose", ROOT / "docs" / "prose.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_code_and_generated_parts_are_not_read_and_lines_stay_where_they_are(checker: ModuleType) -> None:
    read = checker.prose(PAGE)
    assert read.count("\n") == PAGE.count("\n")
    assert read.count("mends") == 1
    assert "a link" in read


def test_a_word_to_avoid_is_reported_with_its_line_and_another_word(checker: ModuleType) -> None:
    (finding,) = checker.findings("page.md", checker.prose(PAGE))
    assert finding == "page.md:15: vocabulary: 'mends'. Write: repair, fix."


def test_the_pages_use_no_word_to_avoid(checker: ModuleType) -> None:
    assert [finding for name, text in checker.written().items() for finding in checker.findings(name, text)] == []
