"""Tests that hold for every plugin: subclass `PluginConformance` in your plugin's tests.

    from recipes.testing import PluginConformance

    class TestAcme(PluginConformance):
        plugin = "acme"

It needs pytest: `pip install 'recipes-core[testing]'`. Tests that need torch or the plugin's toolchain are skipped,
with the reason, where these are missing.
"""

from __future__ import annotations

from recipes.testing.conformance import PluginConformance

__all__ = ["PluginConformance"]
