"""Tests that hold for every plugin: subclass `PluginConformance` in the tests of yours.

    from recipes.testing import PluginConformance

    class TestAcme(PluginConformance):
        plugin = "acme"

It needs pytest: `pip install 'recipes-core[testing]'`. What needs torch or the plugin's toolchain is skipped, with the
reason, where these are absent.
"""

from __future__ import annotations

from recipes.testing.conformance import PluginConformance

__all__ = ["PluginConformance"]
