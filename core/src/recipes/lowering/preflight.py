"""Check a model before the slow work: refuse what is going to fail, and fit the recipe to what the model needs."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from executorch.export import QuantizationRecipe
from torch.export import ExportedProgram
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map

from recipes.arguments import Request
from recipes.common import Finding, PreflightError, RecipesError, RecipesWarning, describe
from recipes.executorch import quantized_nodes
from recipes.plugins import ModelFacts
from recipes.recipe import ExportRecipe, Provenance, Source
from recipes.registry import default_registry

# Layers that compute something else in training mode. For other layers the flag has no effect.
_TRAINING_SENSITIVE = (
    torch.nn.modules.dropout._DropoutNd,
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.RReLU,
)


def preflight(request: Request, *, allow_training_mode: bool) -> tuple[ExportRecipe, list[Finding]]:
    """Check a request and fit its recipe to the model.

    Args:
        request: The checked arguments of an export.
        allow_training_mode: Whether layers may stay in training mode.

    Returns:
        The recipe to export with, and the findings; an export with a finding of level `error` must not begin.
    """
    findings: list[Finding] = []
    facts: list[ModelFacts] = []
    trains = request.recipe.quantization_recipe is not None and request.recipe.quantization_recipe.is_qat
    for method, model in request.models.items():
        if request.kind != "ExportedProgram" and not (allow_training_mode or trains):
            findings += _training_mode(model)
        samples = request.samples.get(method, [])
        elsewhere = _elsewhere(model)
        if elsewhere is not None:
            findings.append(elsewhere)
            continue
        gathered, problem = _gather(method, model, samples)
        facts.append(gathered)
        findings += [problem] if problem else []
        findings += _not_finite(gathered)
        if request.kind == "nn.Module" and (request.recipe.quantization_recipe or QuantizationRecipe()).quantizers:
            findings += _quantizable(gathered)
    findings += _calibration(request)
    recipe, more = _fit(request.recipe, facts)
    return recipe, findings + more


def with_contiguous_weights(model: Any) -> Any:
    """Return the model, or a copy with contiguous weights if some have another memory format, such as channels last.

    The copy shares all other weights. Backends read weights in their logical order, and some assert it inside a pass.
    """
    if isinstance(model, ExportedProgram):
        return model
    tensors = [*model.parameters(), *model.buffers()]
    odd = {id(t): t for t in tensors if t.layout == torch.strided and not t.is_contiguous()}
    if not odd:
        return model
    memo: dict[int, Any] = {id(t): t for t in tensors}
    for key, tensor in odd.items():
        fresh = tensor.detach().contiguous()
        memo[key] = torch.nn.Parameter(fresh, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else fresh
    return copy.deepcopy(model, memo)


def _training_mode(model: torch.nn.Module) -> Iterator[Finding]:
    for name, module in model.named_modules():
        if not module.training:
            continue
        idle = getattr(module, "p", 1) == 0 and isinstance(module, torch.nn.modules.dropout._DropoutNd)
        recurrent = isinstance(module, torch.nn.RNNBase | torch.nn.MultiheadAttention) and module.dropout > 0
        if (isinstance(module, _TRAINING_SENSITIVE) and not idle) or recurrent:
            yield Finding(
                "error",
                "training-mode",
                name or type(module).__name__,
                f"this {type(module).__name__} is in training mode, so the file would compute something else than "
                "the model does at inference.",
                "Call model.eval() first, or pass allow_training_mode=True.",
            )


def _elsewhere(model: Any) -> Finding | None:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    name, tensor = next(((n, t) for n, t in tensors.items() if t.device.type != "cpu"), ("", None))
    if tensor is None:
        return None
    meta = tensor.device.type == "meta"
    return Finding(
        "error",
        "not-on-cpu",
        name,
        f"this is on the device {tensor.device.type!r}, {'which holds no values' if meta else 'not on the CPU'}.",
        "Load the weights first." if meta else "Call model.cpu() first.",
    )


def _gather(method: str, model: Any, samples: Sequence[tuple[Any, ...]]) -> tuple[ModelFacts, Finding | None]:
    inputs = _named_tensors(model, samples[0]) if samples else {}
    if isinstance(model, ExportedProgram):
        weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        updated = {name: weights[name] for name in model.graph_signature.buffers_to_mutate.values() if name in weights}
        return ModelFacts(method, model, inputs, weights, updated), None
    weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    updated, replaced, problem = _run(method, model, samples[0])
    return ModelFacts(method, model, inputs, weights, updated, frozenset(replaced)), problem


def _named_tensors(model: Any, sample: tuple[Any, ...]) -> dict[str, torch.Tensor]:
    names = [f"input {index}" for index in range(len(sample))]
    if not isinstance(model, ExportedProgram):
        bound = inspect.signature(model.forward).bind(*sample).arguments
        sample, names = tuple(bound.values()), list(bound)
    found = {}
    for name, value in zip(names, sample, strict=True):
        for path, leaf in tree_flatten_with_path(value)[0]:
            if isinstance(leaf, torch.Tensor):
                found[f"{name}{keystr(path)}"] = leaf
    return found


def _run(
    method: str, model: torch.nn.Module, sample: tuple[Any, ...]
) -> tuple[dict[str, torch.Tensor], set[str], Finding | None]:
    """Run the model once, and find the buffers that it updates or replaces; they and the random state are restored."""
    places = [
        (module, key, f"{prefix}.{key}".lstrip("."), buffer, buffer.detach().clone(), buffer._version)
        for prefix, module in model.named_modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and not buffer.is_inference()
    ]
    problem = None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(*tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, sample))
    except Exception as error:
        problem = Finding(
            "error",
            "does-not-run",
            f"method {method!r}",
            f"the model does not run on its example inputs ({type(error).__name__}: {error}).",
            "Pass example_inputs that model(*example_inputs) accepts.",
        )
    updated, replaced = {}, set()
    for module, key, name, buffer, before, version in places:
        if module._buffers[key] is not buffer or buffer._version != version:
            if module._buffers[key] is not buffer:
                replaced.add(name)
            module._buffers[key] = buffer
            updated[name] = before
            with torch.no_grad():
                buffer.copy_(before)
    return updated, replaced, problem


def _not_finite(facts: ModelFacts) -> Iterator[Finding]:
    for name, weight in facts.weights.items():
        # Infinities in masks are intended, so only parameters count. A sum is finite only if every element is.
        checked = isinstance(weight, torch.nn.Parameter) and weight.is_floating_point()
        if checked and not bool(torch.isfinite(weight.detach().sum(dtype=torch.float64))):
            message = "this weight has values that are not finite."
            yield Finding("warning", "not-finite", name, message, "Check where the weights come from.")


def _quantizable(facts: ModelFacts) -> Iterator[Finding]:
    """PT2E needs float32: torchao refuses float64, and kernels abort on values dequantized to float16 or bfloat16."""
    for name in sorted(facts.replaced_buffers):
        yield Finding(
            "error",
            "buffer-replaced",
            name,
            "forward replaces this buffer with another tensor, and the capture before quantization keeps the old one.",
            "Write into it instead: self.buffer.copy_(...).",
        )
    tensors = {**facts.inputs, **facts.weights}
    for dtype in sorted({t.dtype for t in tensors.values() if t.is_floating_point()} - {torch.float32}, key=str):
        names = [name for name, tensor in tensors.items() if tensor.dtype == dtype]
        yield Finding(
            "error",
            "quantization-dtype",
            ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
            f"a recipe that quantizes requires float32, not {dtype}.",
            "Convert the model and its inputs first: model.float().",
        )


def _calibration(request: Request) -> Iterator[Finding]:
    """Warn if the calibration data is not sufficient to measure ranges."""
    if not _calibrates(request):
        return
    for method, model in request.models.items():
        given = (request.calibration_inputs or {}).get(method)
        samples = given() if given is not None else request.samples[method]
        if not isinstance(samples, Sequence):
            continue  # an iterator is read once, by the calibration itself
        if len(samples) == 1:
            yield Finding(
                "warning",
                "calibration-one-sample",
                f"method {method!r}",
                "activation ranges are measured on a single sample.",
                "Pass representative calibration_inputs, or several example_inputs.",
            )
        named = [_named_tensors(model, (s,) if isinstance(s, torch.Tensor) else tuple(s)) for s in samples]
        for name in named[0] if named else ():
            values = [tensors[name] for tensors in named if name in tensors]
            if not values[0].is_floating_point() or any(v.numel() == 0 for v in values):
                continue
            low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
            if low == high:
                yield Finding(
                    "warning",
                    "calibration-constant",
                    name,
                    f"this input is {low:g} everywhere in the calibration data, so no range can be measured from it.",
                    "Pass representative calibration_inputs.",
                )


def _calibrates(request: Request) -> bool:
    quantization = request.recipe.quantization_recipe
    if request.kind != "nn.Module" or quantization is None or not quantization.quantizers or quantization.is_qat:
        return False
    if quantization.calibration_inputs_fn is not None:
        return False  # the author of the recipe chose its data
    infos = [
        provider.describe(recipe_type)
        for source in _component_sources(request.recipe)
        for _, provider, recipe_type in [default_registry().find_recipe(source.recipe)]
    ]
    return any(info.needs_calibration for info in infos) if infos else True


def _component_sources(recipe: ExportRecipe) -> list[Source]:
    """The recipes of installed plugins that a recipe was merged from."""
    provenance = recipe.provenance or Provenance()
    sources: list[Source] = []
    for origin in provenance.origins:
        sources += [source for source in origin.sources if source not in sources and not source.manner]
    known = {recipe.id for recipe in default_registry().list_recipes()}
    return [source for source in sources if source.recipe in known]


def _fit(recipe: ExportRecipe, facts: Sequence[ModelFacts]) -> tuple[ExportRecipe, list[Finding]]:
    """Let each plugin check the model and change the options that the model decides."""
    findings: list[Finding] = []
    for source in _component_sources(recipe):
        _, provider, recipe_type = default_registry().find_recipe(source.recipe)
        options = dict(source.options)
        for one in facts:
            changed, found = provider.check_model(recipe_type, options, one)
            options.update(changed)
            findings += [finding for finding in found if finding not in findings]
        if options != dict(source.options):
            made = provider.create_recipe(recipe_type, **options)
            recipe = _with_partitioners(recipe, source, replace(source, options=options), made)
    return recipe, findings


def _with_partitioners(recipe: ExportRecipe, source: Source, now: Source, made: Any) -> ExportRecipe:
    """A copy of a recipe in which those of a new recipe of the same type replace the partitioners of one source.

    Only partitioners use the options that a model can decide.
    """
    provenance = recipe.provenance or Provenance()
    lowering, made_lowering = recipe.lowering_recipe, made.lowering_recipe
    fresh = iter(made_lowering.partitioners if made_lowering and made_lowering.partitioners else ())
    replaced: dict[int, Any] = {}
    origins = []
    for origin in provenance.origins:
        sources = tuple(now if s == source else s for s in origin.sources)
        value, text = origin.value, origin.text
        if origin.field.startswith("lowering_recipe.partitioners") and source in origin.sources:
            value = replaced[id(origin.value)] = next(fresh)
            text = describe(value)
        origins.append(replace(origin, sources=sources, value=value, text=text))
    if lowering is None or not replaced:
        raise RecipesError(
            f"The recipe {recipe.name!r} no longer has the partitioners of {source.recipe}, but the model "
            "requires changes to them. Create the recipe again with the options that the findings name."
        )

    def swapped(partitioners: Any) -> Any:
        if isinstance(partitioners, Mapping):
            return {method: swapped(group) for method, group in partitioners.items()}
        return [replaced.get(id(partitioner), partitioner) for partitioner in partitioners or ()]

    fitted = recipe.derive(partitioners=swapped(lowering.partitioners))
    fitted.lowering_recipe.partitioners = swapped(lowering.partitioners)
    fitted.provenance = replace(provenance, origins=tuple(origins))
    return fitted


def tell(findings: Sequence[Finding]) -> None:
    """Raise all errors among the findings at once, or issue their warnings."""
    if any(finding.level == "error" for finding in findings):
        raise PreflightError(findings)
    for finding in findings:
        if finding.level == "warning":
            warnings.warn(str(finding).removeprefix("warning: "), RecipesWarning, stacklevel=4)


def warn_of_skipped_stages(request: Request) -> None:
    """Warn if a captured model is past stages of the recipe, such as quantization: ExecuTorch silently skips them."""
    recipe, quantization = request.recipe, request.recipe.quantization_recipe
    if request.kind == "nn.Module" or recipe.pipeline_stages:
        return
    skipped = []
    quantizes = quantization is not None and (quantization.quantizers or quantization.ao_quantization_configs)
    for method, model in request.models.items():
        graph_module = model.graph_module if request.kind == "ExportedProgram" else model
        if quantizes and not any(quantized_nodes(graph_module)):
            skipped.append(f"method {method!r} is not quantized")
    if request.kind == "ExportedProgram" and recipe.aten_transform_passes:
        skipped.append("the aten_transform_passes are not applied")
    if skipped:
        warnings.warn(
            f"The recipe {recipe.name!r} has stages that a {request.kind} is already past: {', '.join(skipped)}. "
            "Pass the nn.Module instead.",
            RecipesWarning,
            stacklevel=4,
        )
