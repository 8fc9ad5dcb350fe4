"""What holds for every plugin."""

from recipes.testing import PluginConformance


class TestXNNPACK(PluginConformance):
    plugin = "xnnpack"
    toolchain = ("executorch", "torchao")
    delegates = {"xnnpack": "XnnpackBackend"}  # noqa: RUF012
