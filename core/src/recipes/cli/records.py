"""What `--json` prints. The keys are stable; each command's help lists them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.plugins import OptionValue, Plugin, Target, TargetComponent
    from recipes.registry import Registry
    from recipes.vendor import Diagnosis

Record = dict[str, Any]


def as_text(record: Record | list[Record]) -> str:
    """The JSON text of a record; `plain_value` converts a value that JSON cannot represent."""
    return json.dumps(record, indent=2, default=plain_value)


def plain_value(value: Any) -> str:
    """A callable as `module:name`, anything else as `str` returns it."""
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return str(value)


def of_target(target: Target) -> Record:
    """A target without its options."""
    return {
        "name": target.name,
        "os": target.os,
        "arch": target.arch,
        "accelerator": target.accelerator,
        "precision": target.precision,
        "state": target.state,
        "summary": target.summary,
        "default": target.default,
        "plugin": target.plugin,
        "reason": target.reason,
        "hint": target.hint,
        "components": [_of_component(component) for component in target.components],
    }


def _of_component(slot: TargetComponent) -> Record:
    return {
        "recipe": slot.component.recipe,
        "role": slot.component.role,
        "required": slot.component.required,
        "plugin": slot.plugin,
        "available": slot.available,
        "reason": slot.reason,
        "hint": slot.hint,
    }


def of_target_in_full(registry: Registry, target: Target, effective: Sequence[dict[str, OptionValue]]) -> Record:
    """A target with the properties and options of each component.

    Args:
        registry: The registry that has the target.
        target: The target.
        effective: The effective options of each active component, in partitioning order.
    """
    recipes = {recipe.id: recipe.info for recipe in registry.list_recipes()}
    resolved = iter(effective)
    record = of_target(target)
    for slot, component in zip(target.components, record["components"], strict=True):
        info = recipes.get(slot.component.recipe)
        values = next(resolved) if slot.available else {}
        component["summary"] = info.summary if info else None
        component["weights"] = info.weights if info else None
        component["activations"] = info.activations if info else None
        component["needs_calibration"] = info.needs_calibration if info else None
        component["deployment_target"] = info.deployment_target if info else None
        component["options"] = [
            {
                "name": option.name,
                "type": option.type,
                "expects": option.expects,
                "choices": list(option.choices),
                "default": option.default,
                "required": option.required,
                "help": option.help,
                "value": values[option.name].value if slot.available else None,
                "source": values[option.name].source if slot.available else None,
            }
            for option in (info.options if info else ())
        ]
    return record


def of_plugin(plugin: Plugin) -> Record:
    """A plugin's row."""
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "state": plugin.state,
        "stage": plugin.stage,
        "reason": plugin.reason,
        "backends": [
            {"name": name, "available": a.available, "reason": a.reason, "hint": a.hint}
            for name, a in sorted(plugin.availability.items())
        ],
        "targets": sorted(target.name for target in plugin.targets),
    }


def of_diagnosis(diagnosis: Diagnosis) -> Record:
    """What `recipes doctor` found."""
    return {
        "needs_a_person": diagnosis.needs_a_person,
        "python": diagnosis.python,
        "executable": diagnosis.executable,
        "platform": diagnosis.platform,
        "distributions": dict(diagnosis.distributions),
        "plugins": [
            {**of_plugin(plugin), "seconds": round(plugin.seconds, 4), "heavy_imports": list(plugin.heavy_imports)}
            for plugin in diagnosis.plugins
        ],
        "runtime": {"backends": dict(diagnosis.runtime.backends), "problem": diagnosis.runtime.problem},
        "targets": [
            {"name": target.name, "state": target.state, "reason": target.reason, "hint": target.hint}
            for target in diagnosis.targets
        ],
        "findings": [finding.to_dict() for finding in diagnosis.findings],
    }
