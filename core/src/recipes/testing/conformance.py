"""The class whose tests hold for every plugin. Each kind of test is a class in a module of its own."""

from __future__ import annotations

from recipes.testing.contract import Contract
from recipes.testing.degradation import Degradation
from recipes.testing.laziness import Laziness
from recipes.testing.semantic import Semantic
from recipes.testing.static import Static


# pytest takes the tests of bases from the last to the first: what is read off is told before what is made.
class PluginConformance(Degradation, Semantic, Contract, Laziness, Static):
    """What every plugin must do. Subclass it, name the plugin, and let pytest run it.

    The tests that take a recipe, a target or a module run once for each that the plugin has.

    Attributes:
        plugin: The name of the plugin's entry point.
        toolchain: Top-level modules that lowering needs. Listing must not import them, and the plugin must say so where
            one is absent.
        delegates: By backend: the id that its delegates have in a program, or None where it promises none and only
            gives kernels. A backend that is not in it must make a delegate, whatever its id.
        expected_failures: By the name of a test, `test_x` or `test_x[acme:fp16]`: why it fails. Strict: a test that is
            named and passes is a failure, and so is a name that no test has.
    """
