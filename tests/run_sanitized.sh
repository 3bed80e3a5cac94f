#!/usr/bin/env bash
# The native part with address and undefined-behaviour sanitizers, and the tests that reach it. Takes several minutes.
#
#   tests/run_sanitized.sh [pytest arguments]       default: tests/model
#
# Uses the python on the path, which must have the test extra's packages and an installed pyclover's requirements.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/sanitized
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPYCLOVER_SANITIZE=ON -DPYCLOVER_PROGRAMS=OFF \
    -DPython_EXECUTABLE="$(python -c 'import sys; print(sys.executable)')"
cmake --build "$build" --target _lib
package="$build/package"
rm -rf "$package"
mkdir -p "$package"
cp -r pyclover "$package/"
cp "$build"/_lib.abi3.so "$build"/_build.json "$package/pyclover/_native/"
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
LD_PRELOAD="$("${CXX:-g++}" -print-file-name=libasan.so)" PYTHONPATH="$package" PYTHONMALLOC=malloc \
    python -c '
import sys
# an editable installation must not come first
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
import pytest, pyclover
assert "sanitized" in pyclover.__file__, pyclover.__file__
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
' "${@:-tests/model}"
