#!/bin/sh
# Makes the virtual environment .venv beside this script and installs minicompile into it.
#
#   ./install.sh          the library and the demo
#   ./install.sh test     also what the tests and the examples need
#
# Without an NVIDIA GPU it takes PyTorch's CPU build, which is far smaller than the CUDA one on PyPI.
set -eu
cd "$(dirname "$0")"
extra="${1:-}"
torch='torch>=2.11,<2.16'

supported='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
python=
for candidate in python3 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c "$supported" 2>/dev/null; then python="$candidate"; break; fi
done
if [ -z "$python" ]; then
    echo "minicompile needs Python 3.11, 3.12 or 3.13; none was found on PATH" >&2
    exit 1
fi

[ -x .venv/bin/python ] && .venv/bin/python -c "$supported" || "$python" -m venv --clear .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }

if [ "$(uname -s)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1 && ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    # A wheel that pip has at hand (its find-links setting), else PyTorch's own index, else whatever PyPI gives.
    pip install --no-index --no-deps "$torch" 2>/dev/null ||
        pip install --retries 1 --no-deps --index-url https://download.pytorch.org/whl/cpu "$torch" ||
        echo "PyTorch's CPU index cannot be reached: installing the build on PyPI" >&2
fi
pip install -e ".${extra:+[$extra]}"
.venv/bin/python -c 'import torch, minicompile; print("minicompile", minicompile.__version__, "with torch", torch.__version__)'
