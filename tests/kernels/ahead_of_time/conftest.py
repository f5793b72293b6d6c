"""Compiling a kernel for a GPU that is not there, and reading what came out."""

import struct
from typing import NamedTuple

import pytest

_REGISTERS, _FRAME_SIZE, _MIN_STACK = 0x2F, 0x11, 0x12


class Artefact(NamedTuple):
    """What one kernel costs on one architecture: bytes of code, shared memory and stack, registers of a thread."""

    size: int
    shared: int
    stack: int
    registers: int
    ptx: str


@pytest.fixture
def compile_kernel():
    """Function that compiles a kernel as a launch with aligned tensors would, for an architecture.

    `types` holds the arguments that are not 32-bit integers, `constants` those known in advance, None for absent
    tensors.
    """
    import triton  # here, because pytest reads this file in processes that do without
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    def build(kernel, arch, types, constants, warps=4, stages=1):
        signature, aligned = {}, {}
        for place, name in enumerate(kernel.arg_names):
            signature[name] = "constexpr" if name in constants else types.get(name, "i32")
            if signature[name].startswith("*") or name.startswith("stride_"):
                aligned[(place,)] = [["tt.divisibility", 16]]
        source = ASTSource(kernel, signature, constants, aligned)
        options = {"num_warps": warps, "num_stages": stages}
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        cubin = compiled.asm["cubin"]
        info = list(resources(cubin))
        stack = max([value for kind, value in info if kind in (_FRAME_SIZE, _MIN_STACK)])
        registers = max([value & 0xFFFF for kind, value in info if kind == _REGISTERS])
        return Artefact(len(cubin), compiled.metadata.shared, stack, registers, compiled.asm["ptx"])

    return build


def resources(cubin):
    """Pairs (kind, value) in the `.nv.info` section of an ELF file: registers and stack of each function."""
    start = struct.unpack_from("<Q", cubin, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", cubin, start + size * i) for i in range(count)]
    text = sections[names][4]
    for name, _, _, _, offset, length in sections:
        if cubin[text + name : cubin.index(b"\0", text + name)] != b".nv.info":
            continue
        place = offset
        while place < offset + length:
            form, kind, value = struct.unpack_from("<BBH", cubin, place)
            place += 4
            if form == 4:  # a record of `value` bytes; those of interest hold a function's number and a figure
                if value == 8:
                    yield kind, struct.unpack_from("<II", cubin, place)[1]
                place += value
