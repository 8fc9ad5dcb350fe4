"""The page about merging has the policies of the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_up_to_date(generator: ModuleType) -> None:
    assert generator.main(["--check"]) == 0


def test_check_tells_a_page_that_is_out_of_date_and_leaves_it_alone(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "merge.md"
    stale = "<!-- begin policies -->\nold\n<!-- end policies -->\n"
    page.write_text(stale, encoding="utf-8")
    monkeypatch.setattr(generator, "DOCS", tmp_path)
    monkeypatch.setattr(generator, "GENERATED", {"merge.md": generator.GENERATED["merge.md"]})

    assert generator.main(["--check"]) == 1
    assert page.read_text(encoding="utf-8") == stale
    assert "merge.md" in capsys.readouterr().out
    assert generator.main([]) == 0
    assert "| `LoweringRecipe` | `partitioners` | concatenate |" in page.read_text(encoding="utf-8")
