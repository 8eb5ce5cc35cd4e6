"""What a compiled kernel takes of the chip, read from its machine code with the `cuobjdump` that Triton brings."""

import functools
import pathlib
import re
import subprocess
import tempfile

import triton


@functools.cache
def cuobjdump() -> pathlib.Path | None:
    """The program, if this build of Triton has it."""
    path = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return path if path.is_file() else None


def resources(code: bytes) -> tuple[int | None, int | None]:
    """Registers per thread, and bytes of local memory per thread: stack and spilled registers."""
    program = cuobjdump()
    if program is None or not code.startswith(b"\x7fELF"):
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        run = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, timeout=60)
    found = re.search(r"REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)", run.stdout)
    return (int(found[1]), int(found[2]) + int(found[3])) if found else (None, None)
