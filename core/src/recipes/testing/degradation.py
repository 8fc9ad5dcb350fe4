"""Degradation: a plugin reports what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from recipes.testing.failing import fail_for
from recipes.testing.installed import HEAVY
from recipes.testing.subject import Subject


class Degradation(Subject):
    """Tests of what a plugin reports when something is missing."""

    def test_without_torch_everything_is_listed_with_the_reason(self) -> None:
        self._tell_absence((*HEAVY, *self.toolchain))

    def test_absent_toolchain_is_reported(self, module: str) -> None:
        self._tell_absence((module,), names=module)

    def _tell_absence(self, absent: tuple[str, ...], names: str = "") -> None:
        usual = self._probe()
        if usual["sprung"]:
            pytest.skip("listing imports what it must not; see the tests of laziness")
        found = self._probe(absent=tuple(dict.fromkeys(absent)))
        without = f"without {', '.join(dict.fromkeys(absent))}"
        if found.get("failed") or found["state"] != usual["state"]:
            why = found.get("failed") or f"{found['reason']}\n{found['raised']}"
            fail_for(
                [f"{without} the plugin cannot be listed: {why}"],
                "Import the toolchain inside build_recipe, and have availability() report what is missing.",
            )
        problems = []
        for backend, was in usual["availability"].items():
            if not was["available"]:
                continue  # the host cannot lower, with or without the toolchain
            now = found["availability"][backend]
            told = f"{without}: availability() of backend {backend!r}"
            if now["available"]:
                problems.append(f"{told} reports that it is available")
            else:
                problems += [f"{told} returns no {what}" for what in ("reason", "hint") if not now[what].strip()]
                if names and now["reason"] and names not in now["reason"] + now["hint"]:
                    problems.append(f"{told} does not name {names}: {now['reason']!r}")
        if not problems and not all(was["available"] for was in usual["availability"].values()):
            pytest.skip("this host cannot lower whatever is installed: " + _reasons(usual))
        if not problems:
            problems += [
                f"{without}: the target {name} is listed as {row['state']} " + "without a reason"
                for name, row in found["targets"].items()
                if row["state"] != "ready" and not row["reason"]
            ]
        fail_for(problems, "List the toolchain's modules: Availability.of_host(modules={'module': 'package'}).")


def _reasons(found: Mapping[str, Any]) -> str:
    return "; ".join(row["reason"] for row in found["availability"].values() if row["reason"])
