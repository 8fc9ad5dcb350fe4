"""The class whose tests hold for every plugin. Each kind of test is a class in a module of its own."""

from __future__ import annotations

from recipes.testing.contract import Contract
from recipes.testing.degradation import Degradation
from recipes.testing.laziness import Laziness
from recipes.testing.semantic import Semantic
from recipes.testing.static import Static


# pytest runs the tests of the last base first: declarations are tested before the recipes that are made from them.
class PluginConformance(Degradation, Semantic, Contract, Laziness, Static):
    """What every plugin must do. Subclass it, name the plugin, and let pytest run it.

    The tests that take a recipe, a target or a module run once for each that the plugin has.

    Attributes:
        plugin: The name of the plugin's entry point.
        toolchain: Top-level modules that lowering needs. Listing must not import them, and the plugin must report a
            missing one.
        delegates: By backend: the id of its delegates in a program, or None where it makes no delegates and only
            provides kernels. A backend that is not listed must make a delegate, with any id.
        expected_failures: By the name of a test, `test_x` or `test_x[acme:fp16]`: why it fails. It is strict: a listed
            test that passes is a failure, and so is a name that no test has.
    """
