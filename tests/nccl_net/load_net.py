"""python load_net.py LIBNCCL: what NCCL does with its network plugin when a communicator begins and
when it ends, on a machine with no GPU.

A communicator cannot be made there: NCCL asks CUDA for a device first. So the functions that it
would call next are called by themselves, on memory that is all zeros, as a new communicator's is.
libnccl.so.2 does not export them, but its table of symbols says where they lie.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
import sys

ANCHOR = "ncclGetVersion"  # exported: tells where the library has been loaded to
BEGIN, END = "_Z11ncclNetInitP8ncclComm", "_Z15ncclNetFinalizeP8ncclComm"
# Until 2.26 these two were calls of their own.
LOAD, UNLOAD = "_Z17ncclNetPluginLoadP8ncclComm", "_Z19ncclNetPluginUnloadP8ncclComm"
CALLS = (LOAD, BEGIN, END, UNLOAD)
COMMUNICATOR_BYTES = 16 << 20  # more than any version's
NO_SYMBOLS = 77  # the exit status of a library that has no such table
SYMTAB = 2  # the type of a section that lists symbols, local ones too


def addresses(path: str) -> dict[str, int]:
    """Addresses in the file of the functions, those that it has."""
    found: dict[str, int] = {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        (table,) = struct.unpack_from("<Q", elf, 40)
        size, count = struct.unpack_from("<HH", elf, 58)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", elf, table + size * index) for index in range(count)
        ]
        for _, kind, _, _, offset, length, link, _, _, entry in sections:
            if kind != SYMTAB:
                continue
            names = sections[link][4]
            for at in range(offset, offset + length, entry):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", elf, at)
                begin = names + name
                text = elf[begin : elf.find(b"\0", begin)].decode()
                if text in (ANCHOR, *CALLS):
                    found[text] = value
    return found


def main() -> int:
    path = sys.argv[1]
    where = addresses(path)
    if not {ANCHOR, BEGIN, END} <= set(where):
        print(f"{path} has no table of symbols with {BEGIN} and {END}")
        return NO_SYMBOLS
    nccl = ctypes.CDLL(path)
    version = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    print("version", version.value)
    unique = (ctypes.c_char * 128)()
    status = nccl.ncclGetUniqueId(unique)  # reads NCCL's variables, too
    if status != 0:
        print("ncclGetUniqueId:", status)
        return 1
    loaded = ctypes.cast(nccl.ncclGetVersion, ctypes.c_void_p).value
    assert loaded is not None
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    communicator = ctypes.create_string_buffer(COMMUNICATOR_BYTES)
    for name in filter(where.__contains__, CALLS):
        status = call(loaded - where[ANCHOR] + where[name])(ctypes.addressof(communicator))
        print(name, status, flush=True)
        if status != 0:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
