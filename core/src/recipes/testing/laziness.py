"""Laziness: listing is light."""

from __future__ import annotations

from recipes.testing.failing import fail_for
from recipes.testing.subject import Subject


class Laziness(Subject):
    """Tests of how light listing is."""

    def test_listing_imports_nothing_heavy(self) -> None:
        self._tell_imports("listing", "Import it inside build_recipe, or in a module that only build_recipe imports.")

    def test_availability_imports_nothing_heavy(self) -> None:
        self._tell_imports(
            "availability",
            "Use Availability.of_host or importlib.util.find_spec; every listing calls availability().",
        )

    def _tell_imports(self, during: str, advice: str) -> None:
        found = self._probe()
        problems = [
            f"{during} imports {trap['module']} ({trap['where']})"
            for trap in found["sprung"]
            if trap["during"] == during
        ]
        fail_for(problems, advice)
