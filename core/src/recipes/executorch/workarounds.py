"""A table of everything that recipes does only because of a fault of ExecuTorch, torchao, torch or Python.

Run `core/tests/executorch/test_workarounds.py` with each new release of these. Each test in it shows one fault without
using our code. If a test fails, the fault is gone, and the work-around that names the test can be removed.
"""

from __future__ import annotations

from dataclasses import dataclass

_TESTS = "core/tests/executorch/test_workarounds.py"


@dataclass(frozen=True)
class Workaround:
    """A piece of code that is unnecessary with a release that does not have the fault.

    Args:
        name: A short name, in words joined by `-`.
        repairs: What happens without the work-around, in one sentence.
        distribution: The package that has the fault, as `pip` names it; `python` for Python itself.
        since: The oldest version in which the fault was found. Older ones were not tried.
        until: The first version without the fault; empty while none is known.
        where: The code, as `module:name`.
        test: The test that fails when the work-around is no longer needed, as pytest names it.
    """

    name: str
    repairs: str
    distribution: str
    since: str
    until: str
    where: str
    test: str


def _of(distribution: str, since: str, name: str, where: str, test: str, repairs: str) -> Workaround:
    return Workaround(name, repairs, distribution, since, "", where, f"{_TESTS}::{test}")


WORKAROUNDS = (
    _of(
        "torch",
        "2.13.0",
        "kept-ranges",
        "recipes.executorch.ranges:keeping_ranges",
        "test_a_fake_kernel_narrows_a_dynamic_size",
        "Passes that run fake tensors narrow the range of a dynamic size, so backends get a smaller range.",
    ),
    _of(
        "torch",
        "2.13.0",
        "no-guards-in-the-graph",
        "recipes.executorch.stages:QuantizeStage._capture",
        "test_a_module_of_a_capture_checks_its_guards_with_a_call_in_the_graph",
        "The module of a captured program calls a function that checks guards, which no quantizer or backend supports.",
    ),
    _of(
        "torch",
        "2.13.0",
        "kept-names",
        "recipes.executorch.programs:copy_of",
        "test_a_copy_of_a_graph_renames_what_is_called_like_a_builtin",
        "A copy of a graph renames nodes that have the name of a Python builtin, so its signature is wrong.",
    ),
    _of(
        "torch",
        "2.13.0",
        "decomposed-once",
        "recipes.executorch.programs:RememberingProgram.run_decompositions",
        "test_a_decomposed_program_is_decomposed_anew",
        "A program that is decomposed already is traced again for each partitioner and each target.",
    ),
    _of(
        "torchao",
        "0.18.0",
        "integers-unobserved",
        "recipes.executorch.quantizers:PrecedenceQuantizer",
        "test_integers_are_observed",
        "Quantizers observe integer tensors, so indices become floating-point numbers or calibration fails.",
    ),
    _of(
        "torchao",
        "0.18.0",
        "quantizers-in-order",
        "recipes.executorch.quantizers:PrecedenceQuantizer.annotate",
        "test_two_quantizers_that_know_an_operator_cannot_be_composed",
        "`ComposableQuantizer` refuses two quantizers that annotate one operator.",
    ),
    _of(
        "torchao",
        "0.18.0",
        "buffers-put-back",
        "recipes.executorch.stages:_put_back",
        "test_calibration_moves_the_buffers_of_the_model",
        "Calibration runs the model's own updates of its buffers, so the file would start from the updated values.",
    ),
    _of(
        "torchao",
        "0.18.0",
        "unread-tensors-dropped",
        "recipes.executorch.stages:_drop_unused_tensors",
        "test_a_quantized_graph_keeps_the_tensors_that_it_no_longer_reads",
        "A converted graph keeps float weights that nothing reads, and the file would hold them too.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "own-memory-planning",
        "recipes.common.values:_RUN_STATE",
        "test_configs_share_one_pass_that_plans_memory",
        "All configs share one memory planning pass, whose state an export changes for the whole process.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "config-copied",
        "recipes.executorch.lower_stage:LowerStage.run",
        "test_lowering_changes_the_config_that_it_is_given",
        "Lowering changes the edge compile config that it is given, and with it the recipe.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "initial-values-kept",
        "recipes.executorch.stages:_keep_initial_values",
        "test_buffers_start_from_zeros",
        "Buffers that forward updates start from zeros on the device, whatever they were.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "kernel-limits",
        "recipes.executorch.kernels:check_limits",
        "test_a_kernel_that_is_registered_cannot_do_it",
        "Some kernels are registered for operators that they refuse when the method is executed.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "endless-sizes-refused",
        "recipes.executorch.lower_stage:_check_bounds",
        "test_an_endless_dimension_gets_the_size_of_the_example",
        "Memory for a dynamic size without an upper bound is planned for the example's size.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "quiet-recipes",
        "recipes.recipe.export_recipe:ExportRecipe",
        "test_making_a_recipe_warns",
        "Every recipe that is made, and every class derived from it, warns that recipes are experimental.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "quiet-sessions",
        "recipes.lowering.session:ExportSession",
        "test_deriving_from_the_session_warns",
        "Making a session, or deriving from its class, warns that it is experimental.",
    ),
    _of(
        "python",
        "3.10",
        "partitioners-copied",
        "recipes.common.values:Copier",
        "test_a_read_only_mapping_cannot_be_copied",
        "Partitioners hold a read-only mapping, which `copy.deepcopy` cannot copy.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "bytes-of-data-files",
        "recipes.artifact.manifest:writers",
        "test_the_bytes_of_data_files_have_no_public_name",
        "The bytes of a program's data files are public only as files that are written in place, not atomically.",
    ),
    _of(
        "executorch",
        "1.5.1",
        "failed-saves-raise",
        "recipes.lowering.session:ExportSession.save_to_pte",
        "test_a_save_that_fails_is_logged_and_goes_on",
        "A save that fails is logged, and the caller goes on without a file.",
    ),
)
"""All work-arounds, by the package that has the fault."""
