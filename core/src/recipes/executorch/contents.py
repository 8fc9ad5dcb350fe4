"""What is inside an ExecuTorch program, read from its bytes: no delegate is loaded and no weights are copied."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from executorch.exir._serialize._flatbuffer_program import _flatbuffer_to_program
from executorch.exir._serialize._program import _ExtendedHeader, _get_extended_header
from executorch.exir.schema import DataLocation, DelegateCall, KernelCall, Program, Tensor, TensorShapeDynamism
from executorch.exir.tensor import get_scalar_type

from recipes.common import ArgumentError

_HEAD = 8 + _ExtendedHeader.NUM_HEAD_BYTES
"""Bytes that contain the length of the program's own part: the flatbuffer's root and identifier, then the header."""


@dataclass(frozen=True)
class Value:
    """An input or output of a method.

    Args:
        kind: `tensor`, or the type of another value: `int`, `bool`, `double`, `string`, `null`.
        dtype: A tensor's data type: `float32`; empty for other values.
        shape: A tensor's sizes; for a dynamic size, the largest that memory is planned for.
        dynamic: Whether sizes may be smaller when the program runs.
        value: The value in the program, if it is not a tensor. An input must have this value, because the program was
            made for it.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    dynamic: bool = False
    value: int | float | bool | str | None = None

    def __str__(self) -> str:
        if self.kind != "tensor":
            return self.kind if self.value is None else f"{self.kind} {self.value!r}"
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" + (" at most" if self.dynamic else "")


@dataclass(frozen=True)
class Delegate:
    """A part of a method that a backend runs.

    Args:
        backend: The backend's id in the runtime.
        payload: Bytes of what its compiler returned. Weights may be stored beside it, as named data.
    """

    backend: str
    payload: int


@dataclass(frozen=True)
class Method:
    """A method of a program.

    Args:
        name: Its name.
        inputs: In the order of its arguments.
        outputs: In their order.
        delegates: In the program's order.
        kernels: How often each operator is called outside of delegates, by name: `aten::cumsum.out`.
        memory: Bytes of each arena that memory planning asks for.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    delegates: tuple[Delegate, ...]
    kernels: dict[str, int]
    memory: tuple[int, ...]


@dataclass(frozen=True)
class Contents:
    """What is inside a program.

    Args:
        size: Bytes of the whole file.
        sizes: Bytes by part; they add up to `size`. `program` is the instructions and their values,
            `delegate NAME` the payloads of a backend, `constants` the weights of kernels, `initial values` those of
            buffers, `named data` what delegates keep beside their payloads (mostly weights), `padding` the rest.
        methods: The methods, in the program's order.
    """

    size: int
    sizes: dict[str, int]
    methods: tuple[Method, ...]

    @property
    def backends(self) -> list[str]:
        """The backends that an app must link, sorted."""
        return sorted({delegate.backend for method in self.methods for delegate in method.delegates})

    @property
    def kernels(self) -> list[str]:
        """The operators that an app must link kernels for, sorted."""
        return sorted({name for method in self.methods for name in method.kernels})

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "bytes": self.size,
            "sizes": self.sizes,
            "backends": self.backends,
            "kernels": self.kernels,
            "methods": [asdict(method) for method in self.methods],
        }


def contents_of_file(path: str | os.PathLike[str]) -> Contents:
    """Read a `.pte` file.

    Args:
        path: The file.

    Raises:
        ArgumentError: There is no such file, it is not a program, or it is damaged.
    """
    name = str(path)
    if not Path(path).is_file():
        what = "is a folder" if Path(path).is_dir() else "does not exist"
        raise ArgumentError(f"The file {name!r} {what}.")
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            head += file.read(max(min(_program_bytes(head, size), size) - len(head), 0))
    except OSError as error:
        raise ArgumentError(f"The file {name!r} cannot be read: {error.strerror or error}.") from error
    return _parse(head, size, name)


def contents_of(write: Callable[[IO[bytes]], Any]) -> Contents:
    """Read a program that is not in a file.

    Args:
        write: Writes the program to an open file, as `ExecutorchProgramManager.write_to_file` does.
    """
    head = _Head()
    write(head)  # type: ignore[arg-type]
    return _parse(bytes(head.kept), head.size, "the program")


class _Head:
    """A writable file that keeps only the program's own part."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.size = 0

    def write(self, data: bytes) -> int:
        wanted = _program_bytes(self.kept, 0) if len(self.kept) >= _HEAD else 0
        if wanted == 0 or len(self.kept) < wanted:
            # A chunk may hold both this part and weights; it is cut once the header can be read.
            self.kept += data
            if len(self.kept) >= _HEAD and (wanted := _program_bytes(self.kept, 0)):
                del self.kept[wanted:]
        self.size += len(data)
        return len(data)


def _program_bytes(head: bytes | bytearray, otherwise: int) -> int:
    header = _get_extended_header(bytes(head[:_HEAD]))
    return header.program_size if header is not None else otherwise


def _parse(head: bytes, size: int, name: str) -> Contents:
    if not re.match(rb"ET\d\d", head[4:8]):
        raise ArgumentError(f"{name!r} is not an ExecuTorch program: it does not begin like one.")
    header = _get_extended_header(head[:_HEAD])
    promised = 0
    if header is not None:
        promised = max(header.program_size, header.segment_base_offset + header.segment_data_size)
    if promised > size:
        raise ArgumentError(f"{name!r} is damaged: it is cut short, with {size} of {promised} bytes.")
    try:
        program = _flatbuffer_to_program(head if header is None else head[: header.program_size])
        return _contents(program, len(head) if header is None else header.program_size, size)
    except Exception as error:  # flatbuffers follows offsets unchecked, so damage can raise any error
        raise ArgumentError(f"{name!r} is damaged: its program cannot be read ({type(error).__name__}).") from error


def _contents(program: Program, program_bytes: int, size: int) -> Contents:
    segments = [segment.size for segment in program.segments]
    inline = [len(data.data) for data in program.backend_delegate_data]
    sizes: Counter[str] = Counter(program=program_bytes)
    methods = []
    counted = set()
    for plan in program.execution_plan:
        delegates = []
        for delegate in plan.delegates:
            is_inline = delegate.processed.location == DataLocation.INLINE
            payload = (inline if is_inline else segments)[delegate.processed.index]
            delegates.append(Delegate(delegate.id, payload))
            place = (is_inline, delegate.processed.index)
            if place not in counted:  # delegates may share a payload
                counted.add(place)
                sizes[f"delegate {delegate.id}"] += payload
                sizes["program"] -= payload if is_inline else 0
        calls = [i.instr_args for chain in plan.chains for i in chain.instructions]
        names = [f"{o.name}.{o.overload}" if o.overload else o.name for o in plan.operators]
        kernels = Counter(names[call.op_index] for call in calls if isinstance(call, KernelCall))
        used = {call.delegate_index for call in calls if isinstance(call, DelegateCall)}
        if not used <= set(range(len(delegates))):
            raise IndexError("a call of a delegate that is not there")
        methods.append(
            Method(
                plan.name,
                _values(plan, plan.inputs),
                _values(plan, plan.outputs),
                tuple(delegates),
                dict(sorted(kernels.items())),
                tuple(plan.non_const_buffer_sizes[1:]),  # the first stands for constants
            )
        )
    inline_constants = sum(len(buffer.storage) for buffer in program.constant_buffer)
    sizes["constants"] += inline_constants
    sizes["program"] -= inline_constants
    if program.constant_segment and program.constant_segment.offsets:
        sizes["constants"] += segments[program.constant_segment.segment_index]
    for mutable in program.mutable_data_segments or ():
        sizes["initial values"] += segments[mutable.segment_index]
    for index in {data.segment_index for data in program.named_data or ()}:
        sizes["named data"] += segments[index]
    sizes["padding"] = size - sum(sizes.values())
    if min(sizes.values()) < 0:
        raise ValueError("parts are larger than the whole")
    return Contents(size, {part: count for part, count in sizes.items() if count}, tuple(methods))


def _values(plan: Any, indices: Sequence[int]) -> tuple[Value, ...]:
    found = []
    for index in indices:
        value = plan.values[index].val
        if isinstance(value, Tensor):
            dtype = str(get_scalar_type(value.scalar_type)).removeprefix("torch.")
            dynamic = value.shape_dynamism != TensorShapeDynamism.STATIC
            found.append(Value("tensor", dtype, tuple(value.sizes), dynamic))
        else:
            kind = type(value).__name__.lower()
            found.append(Value(kind, value=getattr(value, f"{kind}_val", None)))
    return tuple(found)
