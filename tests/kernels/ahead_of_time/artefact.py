"""Compiling a kernel for a GPU that is not there, and reading what came out."""

import struct
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
_REGISTERS, _FRAME_SIZE, _MIN_STACK = 0x2F, 0x11, 0x12


class Artefact(NamedTuple):
    """What one kernel costs on one architecture."""

    size: int
    shared: int
    stack: int
    registers: int
    ptx: str


def compile_kernel(kernel, arch, types, constants, warps=4, stages=1):
    """Compile `kernel` as a launch with aligned tensors would.

    `types` holds what is not a 32-bit integer, `constants` what is known in advance, None for absent tensors.
    """
    signature, aligned = {}, {}
    for place, name in enumerate(kernel.arg_names):
        signature[name] = "constexpr" if name in constants else types.get(name, "i32")
        if signature[name].startswith("*") or name.startswith("stride_"):
            aligned[(place,)] = [["tt.divisibility", 16]]
    target = GPUTarget("cuda", arch, 32)
    options = {"num_warps": warps, "num_stages": stages}
    compiled = triton.compile(ASTSource(kernel, signature, constants, aligned), target=target, options=options)
    cubin = compiled.asm["cubin"]
    info = list(_resources(cubin))
    stack = max([value for kind, value in info if kind in (_FRAME_SIZE, _MIN_STACK)], default=0)
    registers = max([value & 0xFFFF for kind, value in info if kind == _REGISTERS], default=0)
    return Artefact(len(cubin), compiled.metadata.shared, stack, registers, compiled.asm["ptx"])


def _resources(cubin):
    """Pairs (kind, value) of the `.nv.info` section of an ELF file: registers and stack of each function."""
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
            if form == 4:  # a record of `value` bytes; here: the function's number and a value
                if value == 8:
                    yield kind, struct.unpack_from("<II", cubin, place)[1]
                place += value
