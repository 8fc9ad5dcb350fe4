"""The table of deployment targets against what coremltools accepts.

Every conversion runs in one process of its own: one that fails leaves coremltools in a state that shows in the next.
"""

import json
import subprocess
import sys

import pytest

from recipes_coreml.features import DEPLOYMENT_TARGETS, HALF_INPUTS, ML_PROGRAM, NO_INPUTS, STATE, Feature, is_below

CONVERT = """
import json, sys
import coremltools as ct
import torch
from executorch.backends.apple.coreml.compiler import CoreMLBackend
from executorch.backends.apple.coreml.partition import CoreMLPartitioner
from executorch.exir import to_edge_transform_and_lower

class Plain(torch.nn.Module):
    def forward(self, x):
        return x * 2

class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2

class Source(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("value", torch.ones(4))

    def forward(self):
        return self.value * 2

MODELS = {
    "ML programs": (Plain(), (torch.ones(4),)),
    "half-precision inputs": (Plain(), (torch.ones(4).half(),)),
    "mutable buffers that Core ML takes over as its state": (Counter(), (torch.ones(4),)),
    "models without inputs": (Source(), ()),
}

def converts(what, target):
    model, inputs = MODELS[what]
    specs = CoreMLBackend.generate_compile_specs(minimum_deployment_target=ct.target[target])
    program = torch.export.export(model, inputs)
    try:
        to_edge_transform_and_lower(program, partitioner=[CoreMLPartitioner(compile_specs=specs)])
    except (AssertionError, ValueError) as error:
        return str(error)
    return ""

print(json.dumps([converts(*case) for case in json.loads(sys.argv[1])]))
"""
CHECKED = [ML_PROGRAM, HALF_INPUTS, STATE, NO_INPUTS]


def one_below(target: str) -> str:
    return DEPLOYMENT_TARGETS[DEPLOYMENT_TARGETS.index(target) - 1]


@pytest.fixture(scope="module")
def problems() -> dict[tuple[str, str], str]:
    """What coremltools says of a feature at the target that it needs, and one below; empty where it converts."""
    cases = [(f.what, target) for f in CHECKED for target in (f.needs, one_below(f.needs))]
    done = subprocess.run(
        [sys.executable, "-c", CONVERT, json.dumps(cases)], capture_output=True, text=True, timeout=240, check=True
    )
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("feature", CHECKED, ids=lambda feature: feature.what)
def test_a_feature_converts_from_the_target_that_the_table_names(
    problems: dict[tuple[str, str], str], feature: Feature
) -> None:
    assert problems[feature.what, feature.needs] == ""
    assert feature.needs in problems[feature.what, one_below(feature.needs)]


def test_targets_compare_by_age() -> None:
    assert is_below("iOS18", "iOS26")
    assert not is_below("iOS18", "iOS18")
    assert not is_below("iOS17", "iOS16")
