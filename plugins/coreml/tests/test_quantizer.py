"""The quantizer annotates as ExecuTorch's does.

ExecuTorch's own takes a minute for each model, so its traced patterns are kept for the process: tracing
depends on the pattern and the shapes alone. The tests in the fast set let ExecuTorch trace its own pattern
modules with make_fx instead, which shows that the right patterns are tried in the right order; that make_fx
and strict export trace alike is shown for a few patterns, and for all of them in the slow set, where
ExecuTorch's quantizer also runs just as it is shipped.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

ct = pytest.importorskip("coremltools", reason="Core ML's toolchain does not install on this platform")

import torch  # noqa: E402
from executorch.backends.apple.coreml.quantizer import CoreMLQuantizer as ExecuTorchCoreMLQuantizer  # noqa: E402
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer as executorch_quantizer  # noqa: E402
from executorch.backends.apple.coreml.quantizer import _coreml_quantizer_utils as executorch_utils  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer import SharedQuantizationSpec  # noqa: E402

from recipes import RecipesWarning  # noqa: E402
from recipes_coreml import patterns as pattern_module  # noqa: E402
from recipes_coreml import quantizer as fast_quantizer  # noqa: E402
from recipes_coreml.patterns import Pattern, patterns_by_annotator, trace_pattern  # noqa: E402
from recipes_coreml.quantizer import CoreMLQuantizer  # noqa: E402

Tensors = tuple[torch.Tensor, ...]
Tracer = Callable[[torch.nn.Module, Tensors], torch.fx.GraphModule]
PatternKey = tuple[Any, ...]

LinearQuantizerConfig = ct.optimize.torch.quantization.LinearQuantizerConfig
ModuleLinearQuantizerConfig = ct.optimize.torch.quantization.ModuleLinearQuantizerConfig

strict_trace: Tracer = executorch_utils._get_aten_graph_module


def quick_trace(pattern: torch.nn.Module, inputs: Tensors) -> torch.fx.GraphModule:
    return make_fx(lambda tensors: pattern(*tensors), pre_dispatch=True)(inputs)


def module_config(**settings: Any) -> Any:
    defaults = {
        "quantization_scheme": "symmetric",
        "activation_dtype": torch.quint8,
        "weight_dtype": torch.qint8,
        "weight_per_channel": True,
    }
    return ModuleLinearQuantizerConfig(**{**defaults, **settings})


CONFIGS = {
    "int8": LinearQuantizerConfig(global_config=module_config()),
    "weight-only": LinearQuantizerConfig(global_config=module_config(activation_dtype=torch.float32)),
    "per-tensor": LinearQuantizerConfig(
        global_config=module_config(quantization_scheme="affine", weight_per_channel=False)
    ),
    "by-name": LinearQuantizerConfig(
        global_config=module_config(), module_name_configs={"convolution": module_config(weight_per_channel=False)}
    ),
    "by-type": LinearQuantizerConfig(
        global_config=None, module_type_configs={torch.nn.Linear: module_config(), torch.nn.Conv2d: None}
    ),
}

# ExecuTorch's patterns, traced at most once a process with each tracer.
_traced: dict[tuple[Tracer, PatternKey], torch.fx.GraphModule] = {}


def pattern_key(pattern: torch.nn.Module, inputs: Tensors) -> PatternKey:
    """What tells one of ExecuTorch's pattern modules from another: its class is made anew for each."""
    forward = type(pattern).forward
    assert forward.__closure__ is not None
    captured = tuple(cell.cell_contents for cell in forward.__closure__)
    return (forward.__qualname__, *captured, *(tuple(tensor.shape) for tensor in inputs))


@contextmanager
def executorch_traces_with(tracer: Tracer, order: list[PatternKey] | None = None) -> Iterator[None]:
    def trace(pattern: torch.nn.Module, inputs: Tensors) -> torch.fx.GraphModule:
        key = pattern_key(pattern, inputs)
        if order is not None:
            order.append(key)
        if (tracer, key) not in _traced:
            _traced[tracer, key] = tracer(pattern, inputs)
        return copy.deepcopy(_traced[tracer, key])  # the matcher rewrites what it is given

    with mock.patch.object(executorch_utils, "_get_aten_graph_module", trace):
        yield


def capture(model: torch.nn.Module, inputs: Tensors) -> torch.fx.GraphModule:
    return torch.export.export(model.eval(), inputs, strict=True).module(check_guards=False)


# --- what is compared -------------------------------------------------------------------------------------------


def plain(graph_module: torch.fx.GraphModule) -> list[tuple[Any, ...]]:
    """A pattern's graph with nodes as numbers, the nesting of its result, and its literals.

    batch_norm's last argument is left out: it tells whether cuDNN is on, which strict export turns off
    and which Core ML's matcher, that ignores literals, does not read.
    """
    numbers = {node: number for number, node in enumerate(graph_module.graph.nodes)}
    lines: list[tuple[Any, ...]] = []
    for node in graph_module.graph.nodes:
        if node.op == "output":
            assert graph_module._out_spec is not None
            result = pytree.tree_unflatten(pytree.tree_leaves(node.args), graph_module._out_spec)
            lines.append(pytree.tree_map(numbers.__getitem__, result))
        elif node.op == "placeholder":
            lines.append(("placeholder",))
        else:
            args = node.args[:-1] if node.target is torch.ops.aten.batch_norm.default else node.args
            lines.append((node.op, node.target, torch.fx.map_arg(args, numbers.__getitem__), dict(node.kwargs)))
    return lines


def annotated_nodes(model: torch.fx.GraphModule) -> list[tuple[Any, ...]]:
    """Every node with its annotation; specs are numbered, so which ones are one object is compared too."""
    numbers: dict[int, int] = {}

    def describe(spec: Any) -> Any:
        if spec is None:
            return None
        if isinstance(spec, SharedQuantizationSpec):
            return f"as {spec.edge_or_node}"
        return numbers.setdefault(id(spec), len(numbers)), str(spec)

    described: list[tuple[Any, ...]] = []
    for node in model.graph.nodes:
        annotation = node.meta.get(executorch_utils.Q_ANNOTATION_KEY)
        if annotation is None:
            described.append((node.name, str(node.target)))
            continue
        inputs = [(str(source), describe(spec)) for source, spec in annotation.input_qspec_map.items()]
        output = describe(annotation.output_qspec)
        described.append((node.name, str(node.target), inputs, output, annotation._annotated))
    return described


def structure(model: torch.fx.GraphModule) -> list[tuple[Any, ...]]:
    """Every node with its arguments and, where it calls an observer, the observer and which of them it is."""
    numbers: dict[int, int] = {}

    def describe(node: torch.fx.Node) -> Any:
        if node.op != "call_module":
            return None
        module = model.get_submodule(str(node.target))
        return numbers.setdefault(id(module), len(numbers)), repr(module)

    return [
        (node.name, node.op, str(node.target), str(node.args), str(node.kwargs), describe(node))
        for node in model.graph.nodes
    ]


def assert_same_state(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    left, right = ours.state_dict(), theirs.state_dict()
    assert left.keys() == right.keys()
    assert [name for name in left if not torch.equal(left[name], right[name])] == []


def assert_quantized_alike(
    captured: torch.fx.GraphModule, config: Any, tracer: Tracer, calibration: Tensors | None
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """Annotate, prepare, calibrate (unless there is no data) and convert with both quantizers; compare each step.

    Returns:
        The last graphs, ours and that of ExecuTorch's quantizer.
    """
    annotated = [copy.deepcopy(captured), copy.deepcopy(captured)]
    CoreMLQuantizer(config).annotate(annotated[0])
    with executorch_traces_with(tracer):
        ExecuTorchCoreMLQuantizer(config).annotate(annotated[1])
    expected = annotated_nodes(annotated[1])
    assert any(len(line) > 2 for line in expected), "nothing is annotated, so nothing would be compared"
    assert annotated_nodes(annotated[0]) == expected

    ours = prepare_pt2e(copy.deepcopy(captured), CoreMLQuantizer(config))
    with executorch_traces_with(tracer):
        theirs = prepare_pt2e(copy.deepcopy(captured), ExecuTorchCoreMLQuantizer(config))
    assert structure(ours) == structure(theirs)
    if calibration is None:
        return ours, theirs

    with torch.no_grad():
        ours(*calibration)
        theirs(*calibration)
    assert_same_state(ours, theirs)
    ours, theirs = convert_pt2e(ours), convert_pt2e(theirs)
    assert structure(ours) == structure(theirs)
    assert_same_state(ours, theirs)
    return ours, theirs


# --- models -----------------------------------------------------------------------------------------------------


class Layers(torch.nn.Module):
    """Layers of several kinds, with a residual sum, pools that share observers, and code that is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.second = torch.nn.Conv2d(4, 4, 1, bias=False)
        self.third = torch.nn.Conv2d(4, 4, 1)
        self.pool = torch.nn.MaxPool2d(2)
        self.mean = torch.nn.AdaptiveAvgPool2d(2)
        self.flatten = torch.nn.Flatten()
        self.linear = torch.nn.Linear(16, 8)
        self.line = torch.nn.Conv1d(1, 2, 3)
        self.line_pool = torch.nn.MaxPool1d(2)
        self.line_mean = torch.nn.AvgPool1d(2)
        self.volume = torch.nn.Conv3d(1, 2, 1)
        self.volume_pool = torch.nn.AvgPool3d(1)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = torch.relu_(self.norm(self.convolution(image)))
        features = torch.nn.functional.hardtanh(features + self.second(features))
        # Two patterns of one annotator: the one found second takes its input's spec from the one found first.
        features = torch.nn.functional.gelu(self.third(torch.relu(self.second(features))))
        pooled = self.mean(self.pool(features))
        flat = self.flatten(pooled)
        scores = torch.nn.functional.gelu(self.linear(flat))
        scores = torch.sigmoid(scores * 2.0) * scores
        similar = torch.tanh(torch.matmul(scores, scores.transpose(0, 1)))
        line = self.line_mean(self.line_pool(self.line(scores.unsqueeze(1))))
        volume = self.volume_pool(self.volume(features.unsqueeze(1)))
        return similar, line, volume


class EveryPattern(torch.nn.Module):
    """Each of the given patterns once, side by side, with weights of its own."""

    def __init__(self, patterns: list[Pattern]) -> None:
        super().__init__()
        self.patterns = patterns
        for index, pattern in enumerate(patterns):
            for place, shape in enumerate(pattern.all_shapes[1:]):
                value = torch.rand(shape)
                if place < 4:
                    self.register_parameter(f"value_{index}_{place}", torch.nn.Parameter(value))
                else:  # running mean and variance
                    self.register_buffer(f"value_{index}_{place}", value)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for index, pattern in enumerate(self.patterns):
            values = [getattr(self, f"value_{index}_{place}") for place in range(len(pattern.all_shapes) - 1)]
            # The input of the pattern's rank: linear's and binary operations' come after those of convolutions.
            first = next(x for x in inputs if x.shape == torch.Size(pattern.shapes[0]))
            results.append(pattern((first, *values))[0])
        return results


def inputs_for(patterns: list[Pattern]) -> Tensors:
    return tuple(torch.rand(shape) for shape in dict.fromkeys(pattern.shapes[0] for pattern in patterns))


def all_patterns() -> list[Pattern]:
    return [pattern for patterns in patterns_by_annotator().values() for pattern in patterns]


def every_activation_of_every_annotator() -> list[Pattern]:
    """For each annotator each activation once, the annotator's operations taking turns."""
    chosen = []
    for patterns in patterns_by_annotator().values():
        by_activation: dict[Any, list[Pattern]] = {}
        for pattern in patterns:
            by_activation.setdefault(pattern.activation, []).append(pattern)
        chosen += [alike[turn % len(alike)] for turn, alike in enumerate(by_activation.values())]
        if len(by_activation) == 1:
            chosen += patterns[1:]
    return chosen


@pytest.fixture(scope="module")
def layers() -> torch.fx.GraphModule:
    torch.manual_seed(0)
    return capture(Layers(), (torch.rand(2, 3, 8, 8),))


# --- fast -------------------------------------------------------------------------------------------------------


def executorch_patterns(tracer: Tracer) -> list[torch.fx.GraphModule]:
    """Every pattern that ExecuTorch looks for, in its order."""
    empty = torch.fx.symbolic_trace(torch.nn.Identity())
    order: list[PatternKey] = []
    with executorch_traces_with(tracer, order):
        ExecuTorchCoreMLQuantizer(CONFIGS["int8"]).annotate(empty)
    return [_traced[tracer, key] for key in order]


def test_the_patterns_are_executorchs_in_its_order_and_with_its_names() -> None:
    theirs = executorch_patterns(quick_trace)
    ours = [trace_pattern(pattern) for pattern in all_patterns()]
    assert [plain(graph) for graph in ours] == [plain(graph) for graph in theirs]


def test_a_pattern_is_traced_to_the_chain_that_is_predicted_for_it() -> None:
    for pattern in all_patterns():
        nodes = [node for node in trace_pattern(pattern).graph.nodes if node.op == "call_function"]
        assert tuple(node.target for node in nodes) == pattern_module.chain_of(pattern)
        assert all(node.args[0] is before for before, node in itertools.pairwise(nodes))


@pytest.mark.parametrize(
    ("get_pattern", "index"),
    [
        (lambda: executorch_utils.get_conv_pattern(2, torch.nn.functional.relu, True), ("conv_act", 22)),
        (lambda: executorch_utils.get_conv_bn_pattern(1), ("conv_bn", 0)),
        (lambda: executorch_utils.get_linear_bn_pattern(torch.nn.functional.gelu), ("linear_bn_act", 22)),
        (lambda: executorch_utils.get_binary_op_act_pattern(torch.matmul, torch.tanh), ("matmul_act", 25)),
    ],
    ids=["conv2d-relu_", "conv1d-batch_norm", "linear-batch_norm-gelu", "matmul-tanh"],
)
def test_strict_export_traces_a_pattern_to_the_same_graph(
    get_pattern: Callable[[], torch.fx.GraphModule], index: tuple[str, int]
) -> None:
    annotator, place = index
    assert plain(trace_pattern(patterns_by_annotator()[annotator][place])) == plain(get_pattern())


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_layers_are_quantized_as_executorch_quantizes_them(layers: torch.fx.GraphModule, config: Any) -> None:
    assert_quantized_alike(layers, config, quick_trace, calibration=(torch.rand(2, 3, 8, 8),))


def test_every_activation_after_every_operation_is_quantized_as_executorch_quantizes_it() -> None:
    torch.manual_seed(0)
    patterns = every_activation_of_every_annotator()
    inputs = inputs_for(patterns)
    captured = capture(EveryPattern(patterns), inputs)
    assert_quantized_alike(captured, CONFIGS["int8"], quick_trace, calibration=inputs)


def test_annotating_never_calls_torch_export(layers: torch.fx.GraphModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.export, "export", mock.Mock(side_effect=AssertionError("traced with torch.export")))
    forget_traced_patterns()
    CoreMLQuantizer(CONFIGS["int8"]).annotate(copy.deepcopy(layers))


def forget_traced_patterns() -> None:
    for cached in (pattern_module.trace_pattern, pattern_module._aten_ops, pattern_module.distinct_patterns):
        cached.cache_clear()


def test_no_random_number_is_drawn(layers: torch.fx.GraphModule) -> None:
    forget_traced_patterns()
    before = torch.get_rng_state()
    CoreMLQuantizer(CONFIGS["int8"]).annotate(copy.deepcopy(layers))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "around",
    [
        torch.inference_mode,
        lambda: torch.autocast("cpu"),
        lambda: torch.device("meta"),
        lambda: torch._subclasses.FakeTensorMode(),
    ],
    ids=["inference_mode", "autocast", "meta-device", "fake-tensors"],
)
def test_the_callers_modes_do_not_change_how_patterns_are_traced(around: Callable[[], Any]) -> None:
    examples = [patterns[0] for patterns in patterns_by_annotator().values()]
    expected = [plain(trace_pattern(pattern)) for pattern in examples]
    forget_traced_patterns()
    try:
        with around():
            assert [plain(trace_pattern(pattern)) for pattern in examples] == expected
    finally:
        forget_traced_patterns()


def test_threads_that_annotate_at_once_get_the_same_annotations(layers: torch.fx.GraphModule) -> None:
    models = [copy.deepcopy(layers) for _ in range(5)]
    CoreMLQuantizer(CONFIGS["int8"]).annotate(models[0])
    expected = annotated_nodes(models[0])
    forget_traced_patterns()
    quantizer = CoreMLQuantizer(CONFIGS["int8"])
    threads = [threading.Thread(target=quantizer.annotate, args=(model,)) for model in models[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [annotated_nodes(model) == expected for model in models[1:]] == [True] * 4


def test_a_copy_of_the_quantizer_annotates_like_the_original(layers: torch.fx.GraphModule) -> None:
    original = CoreMLQuantizer(CONFIGS["by-name"])
    models = [copy.deepcopy(layers), copy.deepcopy(layers)]
    original.annotate(models[0])
    copy.deepcopy(original).annotate(models[1])
    assert annotated_nodes(models[0]) == annotated_nodes(models[1])


def test_dead_code_is_removed_from_a_model_in_which_nothing_can_match() -> None:
    graph = torch.fx.Graph()
    value = graph.placeholder("value")
    graph.call_function(torch.ops.aten.cos.default, (value,))
    graph.output(graph.call_function(torch.ops.aten.sin.default, (value,)))
    model = torch.fx.GraphModule(torch.nn.Module(), graph)
    CoreMLQuantizer(CONFIGS["int8"]).annotate(model)
    assert [node.name for node in model.graph.nodes] == ["value", "sin_default", "output"]


def test_the_installed_executorch_is_the_known_one() -> None:
    assert fast_quantizer.unexpected_changes() == []


class ExecuTorchTracesPatternsError(Exception):
    """ExecuTorch's own search has begun: it traces its first pattern."""


def annotator_of_somebody_else(model: Any, config: Any, filter_fn: Any = None) -> None:
    """Registered in place of, or beside, ExecuTorch's annotators."""


def change_annotator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(executorch_quantizer._AnnotationPatternRegistry.REGISTRY, "mul", annotator_of_somebody_else)


def add_annotator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(executorch_quantizer._AnnotationPatternRegistry.REGISTRY, "sub", annotator_of_somebody_else)


def remove_annotator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(executorch_quantizer._AnnotationPatternRegistry.REGISTRY, "matmul")


def remove_pool_annotator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(executorch_quantizer._AnnotationPatternRegistry.REGISTRY, "max_pool2d")


def add_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    more = (*executorch_utils._supported_activations_no_inplace, torch.nn.functional.softplus)
    monkeypatch.setattr(executorch_utils, "_supported_activations_no_inplace", more)


def change_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executorch_utils, "annotate_binary_op_act_pattern", annotator_of_somebody_else)


def remove_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(executorch_utils, "_mark_nodes_as_annotated")


def change_method(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ExecuTorchCoreMLQuantizer._annotate_all_patterns
    monkeypatch.setattr(ExecuTorchCoreMLQuantizer, "_annotate_all_patterns", lambda *args: own(*args))


def hide_source(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {}
    exec("def annotate_conv(model, config, filter_fn=None): pass", namespace)
    monkeypatch.setitem(executorch_quantizer._AnnotationPatternRegistry.REGISTRY, "conv", namespace["annotate_conv"])


def trace_to_two_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_quantizer, "_annotators_without_chains", lambda: ["linear_act"])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (change_annotator, "annotator 'mul' has changed"),
        (add_annotator, "annotator 'sub' is new"),
        (remove_annotator, "annotator 'matmul' is gone"),
        (remove_pool_annotator, "annotator 'max_pool2d' is gone"),
        (add_activation, "table '_supported_activations_no_inplace' has changed"),
        (change_helper, "function 'annotate_binary_op_act_pattern' has changed"),
        (remove_helper, "function '_mark_nodes_as_annotated' is gone"),
        (change_method, "method '_annotate_all_patterns' has changed"),
        (hide_source, "annotator 'conv' has changed"),
        (trace_to_two_ops, "torch no longer traces annotator 'linear_act' to plain chains"),
    ],
)
def test_another_executorch_is_named_and_its_own_search_is_used(
    layers: torch.fx.GraphModule,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch], None],
    named: str,
) -> None:
    change(monkeypatch)
    monkeypatch.setattr(torch.export, "export", mock.Mock(side_effect=ExecuTorchTracesPatternsError))
    with (
        pytest.warns(RecipesWarning, match=rf"recipes-coreml supports \({re.escape(named)}\)"),
        pytest.raises(ExecuTorchTracesPatternsError),
    ):
        CoreMLQuantizer(CONFIGS["int8"]).annotate(copy.deepcopy(layers))


# --- slow: ExecuTorch's quantizer with patterns traced by strict export -------------------------------------------


@pytest.mark.slow
def test_strict_export_traces_every_pattern_to_the_same_graph() -> None:
    theirs = executorch_patterns(strict_trace)
    assert [plain(trace_pattern(pattern)) for pattern in all_patterns()] == [plain(graph) for graph in theirs]


@pytest.mark.slow
def test_every_pattern_is_quantized_as_executorch_quantizes_it() -> None:
    torch.manual_seed(0)
    inputs = inputs_for(all_patterns())
    captured = capture(EveryPattern(all_patterns()), inputs)
    assert_quantized_alike(captured, CONFIGS["int8"], strict_trace, calibration=inputs)


def mobilenet() -> tuple[torch.nn.Module, Tensors]:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(image_size=64, depth_multiplier=0.35, return_dict=False)
    return MobileNetV2ForImageClassification(config), (torch.rand(1, 3, 64, 64),)


def resnet() -> tuple[torch.nn.Module, Tensors]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 2, 2], layer_type="basic", return_dict=False
    )
    return ResNetForImageClassification(config), (torch.rand(1, 3, 64, 64),)


TRANSFORMER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "return_dict": False,
}


def bert() -> tuple[torch.nn.Module, Tensors]:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(vocab_size=100, **TRANSFORMER)), (torch.randint(0, 100, (1, 16)),)


def vit() -> tuple[torch.nn.Module, Tensors]:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(image_size=32, patch_size=8, **TRANSFORMER)), (torch.rand(1, 3, 32, 32),)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "weight-only", "per-tensor"])
@pytest.mark.parametrize("make", [mobilenet, resnet, bert, vit])
def test_a_model_is_quantized_as_executorch_quantizes_it(
    make: Callable[[], tuple[torch.nn.Module, Tensors]], name: str
) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    # ExecuTorch's quantizer puts observers on integer tensors of transformers, which cannot be calibrated.
    observes_integers = make in (bert, vit) and name != "weight-only"
    calibration = None if observes_integers else inputs
    assert_quantized_alike(capture(model, inputs), CONFIGS[name], strict_trace, calibration)


def package(quantized: torch.fx.GraphModule, inputs: Tensors, folder: Path) -> dict[str, Any]:
    """The files of the Core ML package that a model is lowered to, by path, without what differs every time."""
    from executorch.backends.apple.coreml import executorchcoreml
    from executorch.backends.apple.coreml.compiler import CoreMLBackend
    from executorch.backends.apple.coreml.partition import CoreMLPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.lowered_backend_module import LoweredBackendModule

    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=ct.target.iOS17)
    edge = to_edge_transform_and_lower(
        torch.export.export(quantized, inputs, strict=True), partitioner=[CoreMLPartitioner(compile_specs=specs)]
    )
    lowered = [m for m in edge.exported_program().graph_module.modules() if isinstance(m, LoweredBackendModule)]
    assert len(lowered) == 1
    folder.mkdir()
    executorchcoreml.unflatten_directory_contents(lowered[0].processed_bytes, str(folder))
    return {str(path.relative_to(folder)): without_identifiers(path) for path in folder.rglob("*") if path.is_file()}


def without_identifiers(path: Path) -> Any:
    """A file's content; the manifest's items as a sorted list, since their keys are random identifiers."""
    identifier = rb"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
    date = rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?"
    content = re.sub(date, b"date", re.sub(identifier, b"identifier", path.read_bytes()))
    if path.name != "Manifest.json":
        return content
    items = json.loads(path.read_bytes())["itemInfoEntries"].values()
    return sorted(json.dumps(item, sort_keys=True) for item in items)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "weight-only"])
def test_the_core_ml_package_is_the_one_from_executorchs_quantizer(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, inputs = resnet()
    ours, theirs = assert_quantized_alike(capture(model, inputs), CONFIGS[name], strict_trace, inputs)
    expected = package(theirs, inputs, tmp_path / "theirs")
    assert any(path.endswith("weight.bin") for path in expected)
    assert package(ours, inputs, tmp_path / "ours") == expected
