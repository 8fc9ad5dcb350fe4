"""ExecuTorch's Core ML quantizer without the minute that it spends on tracing patterns.

ExecuTorch's `CoreMLQuantizer` looks for about 400 patterns in a model. For every model, it first traces each pattern
with a strict `torch.export`, although only a few patterns occur in one model. The quantizer here passes only the
patterns that can match to ExecuTorch's own annotation functions, in the same order and with the same configs.
Therefore the annotations are the same, and so is everything that follows.

This module imports torch and ExecuTorch: only recipe factories import it.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer as ExecuTorchCoreMLQuantizer
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer as executorch_quantizer
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer_utils as executorch_utils
from executorch.backends.apple.coreml.quantizer._annotation_config import AnnotationConfig

from recipes import RecipesWarning
from recipes_coreml.patterns import (
    ACTIVATIONS_WITH_IN_PLACE_FORM,
    ACTIVATIONS_WITHOUT_IN_PLACE_FORM,
    CONVOLUTIONS,
    chain_of,
    distinct_patterns,
    links_of,
    may_occur,
    patterns_by_annotator,
    trace_pattern,
)

# Annotators that trace nothing; they are called unchanged.
_ANNOTATORS_WITHOUT_PATTERNS = frozenset(
    f"{pool}{dimensions}d" for pool in ("max_pool", "avg_pool", "adaptive_avg_pool") for dimensions in (1, 2, 3)
) | {"flatten"}

# The functions that this module relies on, each with a digest of its source text (see `_digest`). The patterns below
# restate what these functions do, and trying fewer of them is correct only because of how matches are annotated. A
# version number would not be enough: it misses functions that are registered or replaced at run time, and it rejects a
# release that changes nothing here. Source text is the same under every Python, unlike byte code and syntax trees. A
# changed comment counts as a change too, which makes the quantizer slower, but never wrong.
# To adopt a change: read it, adapt the patterns, run the slow tests, then write the new digests here.
_KNOWN_ANNOTATORS: Mapping[str, str] = {
    "conv_act": "04820d97b0bd",
    "conv_bn_act": "15f244b1fde5",
    "conv_bn": "3d96a0635bb0",
    "conv": "d8d03f080303",
    "linear_act": "dc80d8e7212c",
    "linear_bn_act": "a9e3537ac476",
    "linear_bn": "2e0587a74987",
    "linear": "6a177167367f",
    "add_act": "a52be47eea23",
    "add": "4db859a1d452",
    "mul_act": "70b78ce78078",
    "mul": "0b22f96cde82",
    "matmul_act": "77c4564272d1",
    "matmul": "0be1a5db0eae",
}
_KNOWN_METHODS: Mapping[str, str] = {
    "annotate": "258b3d92448d",
    "_annotate_all_patterns": "ff2898457fed",
}
_KNOWN_HELPERS: Mapping[str, str] = {
    "_is_annotated": "ad069a1f3ab1",
    "_mark_nodes_as_annotated": "2bb9af6cf37f",
    "_get_aten_graph_module": "1f6870093476",
    "_get_aten_graph_module_for_pattern": "2760e12e1e6e",
    "_get_weighted_mod_pattern": "b3d2b185fcc2",
    "_get_weighted_mod_bn_pattern": "4890cc84ffba",
    "get_binary_op_act_pattern": "7924294e0d6e",
    "get_conv_pattern": "fe6dbc0184cd",
    "get_conv_bn_pattern": "6fca7957a1ad",
    "get_linear_pattern": "958c79b57e18",
    "get_linear_bn_pattern": "bf42c8afda25",
    "annotate_weighted_mod_pattern": "f1c9363a1930",
    "annotate_binary_op_act_pattern": "0cfa611afb43",
    "annotate_conv_bn_act_helper": "2214be74ec24",
    "annotate_linear_bn_act_helper": "f124d227b5f0",
    "annotate_binary_op_helper": "b08f7a29b86d",
}


@functools.cache
def _digest(function: object) -> str:
    """Return a short digest of a function's source text; empty if the source cannot be read."""
    try:
        source = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@functools.cache
def _annotators_without_chains() -> list[str]:
    """The annotators that have a pattern with a function that does not become exactly one ATen op."""
    return [
        annotator
        for annotator, patterns in patterns_by_annotator().items()
        if any(len(chain_of(pattern)) != pattern.steps for pattern in patterns)
    ]


def unexpected_changes() -> list[str]:
    """Find differences between the installed ExecuTorch and torch and those that this module was written for.

    Returns:
        One phrase for each difference. If there are none, both quantizers annotate in the same way.
    """
    annotators = executorch_quantizer._AnnotationPatternRegistry.get_annotators()
    utilities = vars(executorch_utils)
    changes = [
        f"annotator {name!r} is new"
        for name in annotators
        if name not in _KNOWN_ANNOTATORS and name not in _ANNOTATORS_WITHOUT_PATTERNS
    ]
    changes += [f"annotator {name!r} is gone" for name in sorted(_ANNOTATORS_WITHOUT_PATTERNS - annotators.keys())]
    for kind, digests, present in (
        ("annotator", _KNOWN_ANNOTATORS, annotators),
        ("method", _KNOWN_METHODS, vars(ExecuTorchCoreMLQuantizer)),
        ("function", _KNOWN_HELPERS, utilities),
    ):
        for name, digest in digests.items():
            if name not in present:
                changes.append(f"{kind} {name!r} is gone")
            elif _digest(present[name]) != digest:
                changes.append(f"{kind} {name!r} has changed")
    for name, expected in (
        ("_supported_activations", ACTIVATIONS_WITH_IN_PLACE_FORM),
        ("_supported_activations_no_inplace", ACTIVATIONS_WITHOUT_IN_PLACE_FORM),
        ("_conv_fn_map", CONVOLUTIONS),
    ):
        if utilities.get(name) != expected:
            changes.append(f"table {name!r} has changed")
    changes += [f"torch no longer traces annotator {name!r} to plain chains" for name in _annotators_without_chains()]
    return changes


class CoreMLQuantizer(ExecuTorchCoreMLQuantizer):
    """ExecuTorch's Core ML quantizer, a minute faster: the same annotations, but it tries only patterns that can match.

    If ExecuTorch's annotators are not those that this class was written for, it warns and uses ExecuTorch's own
    search.

    Args:
        config: A `coremltools.optimize.torch.quantization.LinearQuantizerConfig`, as ExecuTorch's takes.
    """

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Annotate a model for `prepare_pt2e`, in place.

        Args:
            model: A graph module of ATen ops, from `torch.export`.

        Returns:
            The same graph module.
        """
        if changes := unexpected_changes():
            warnings.warn(
                "The installed ExecuTorch's Core ML quantizer is not the one that recipes-coreml supports "
                f"({'; '.join(changes)}), so ExecuTorch's own search for patterns is used. The result is correct, but "
                "takes about a minute longer for each model. Install matching versions of recipes-coreml and "
                "executorch.",
                RecipesWarning,
                stacklevel=2,
            )
        super().annotate(model)
        return model

    def _annotate_all_patterns(
        self,
        model: torch.fx.GraphModule,
        quantization_config: Any,
        filter_fn: Callable[[torch.fx.Node], bool] | None = None,
    ) -> None:
        if unexpected_changes():
            super()._annotate_all_patterns(model, quantization_config, filter_fn)
            return
        # ExecuTorch does this before each pattern. Annotating adds no nodes, so once is enough. Without it, a model in
        # which nothing can match would keep its dead code.
        model.graph.eliminate_dead_code()
        model.recompile()
        links = links_of(model.graph)
        for name, annotator in executorch_quantizer._AnnotationPatternRegistry.get_annotators().items():
            # Each annotator gets its own config, as in ExecuTorch, because specs that are one object share an observer.
            config = AnnotationConfig.from_quantization_config(quantization_config)
            if name not in patterns_by_annotator():
                annotator(model, config, filter_fn)
                continue
            for chain, pattern in distinct_patterns()[name].items():
                if not may_occur(chain, links):
                    continue
                annotate = (
                    executorch_utils.annotate_weighted_mod_pattern
                    if pattern.is_weighted
                    else executorch_utils.annotate_binary_op_act_pattern
                )
                # The pattern is copied, because the matcher changes it.
                annotate(model, copy.deepcopy(trace_pattern(pattern)), config, filter_fn)
