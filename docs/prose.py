"""Check the English of the pages that people write: `python docs/prose.py`.

proselint reads the sentences, with the settings in .proselintrc.json, and `VOCABULARY` has the words that these pages
do not use. Code, generated parts and addresses are no prose and are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRITTEN = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "core/README.md",
    "plugins/*/README.md",
    "docs/**/*.md",
)
MEASURED = ("docs/benchmarks.md", "docs/corpus.md", "docs/quantization.md")
"""Written by the programs that measure; their text is in those programs."""

VOCABULARY = {
    r"mend(s|ed|ing)?": "repair, fix",
    r"(is|are|was|were) told": "report, warn about",
    r"tells?": "report, say, show",
    r"makers?": "maintainers, authors",
    r"(what|which) it gives": "what it returns",
    r"warned of": "the export warns about it",
    r"likewise": "in the same way",
    r"nobody else": "no other plugin, no other package",
    r"without a word": "silently",
    r"for it (could|can) not": "because it cannot",
    r"master/slave": "primary and replica",
    r"whitelist|blacklist": "allowlist, denylist",
    r"simply|obviously|easily": "nothing: leave the word out",
}
"""Regular expressions for words and phrases, and what to write in their place."""

# In this order: a fence may stand in a generated part, and a comment inside of a fence is code.
_NO_PROSE = (
    re.compile(r"^<!-- begin (\w+) -->$.*?^<!-- end \1 -->$", re.DOTALL | re.MULTILINE),
    re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n+)+"),
    re.compile(r"`[^`]+`"),
    re.compile(r"(?<=\])\([^)]*\)|<https?://[^>]*>|https?://[^\s)]+"),
)


def prose(page: str) -> str:
    """A page with everything that is not prose as dots, so that every line and column stays where it is.

    Args:
        page: The Markdown.
    """
    for pattern in _NO_PROSE:
        page = pattern.sub(lambda match: re.sub(r"\S", "·", match[0]), page)
    # A heading is no beginning of the sentence after it, which often repeats its words.
    return re.sub(r"^(#.*)$", r"\1 ·", page, flags=re.MULTILINE)


def findings(name: str, text: str) -> Iterator[str]:
    """The words of a text that `VOCABULARY` rules out.

    Args:
        name: What to call the page.
        text: What `prose` returned for it.
    """
    for words, instead in VOCABULARY.items():
        for match in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: vocabulary: '{match[0]}'. Write: {instead}."


def written() -> dict[str, str]:
    """The prose of every page by the page's path, without pages that programs write."""
    pages = (path for pattern in WRITTEN for path in sorted(ROOT.glob(pattern)))
    texts = {path.relative_to(ROOT).as_posix(): path for path in pages}
    return {name: prose(path.read_text(encoding="utf-8")) for name, path in texts.items() if name not in MEASURED}


def main() -> int:
    """Check every page and print what was found; returns the exit code."""
    texts = written()
    found = [finding for name, text in texts.items() for finding in findings(name, text)]
    print("".join(f"{finding}\n" for finding in found), end="", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        for name, text in texts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        options = ("--config", str(ROOT / ".proselintrc.json"), "--output-format", "full")
        command = [sys.executable, "-m", "proselint", "check", *options, *texts]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        print((done.stdout + done.stderr).replace(f"{folder}/", ""), end="")
    return int(bool(found) or done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
