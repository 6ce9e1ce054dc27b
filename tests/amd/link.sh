#!/usr/bin/env bash
# Links `mt-train` with ROCm support on a machine with neither ROCm nor the LLVM bundle that cubecl-hip's build fetches otherwise,
# and runs it: it says what it looked for when a GPU is asked for, and trains on the CPU.
#
# With DOCS_RS set, the build fetches nothing and leaves LLVM's C functions undefined. They belong to a backend of CubeCL that isn't
# used here (HIP C++ through hiprtc is), so they are stubs that abort; which there are, the linker knows.
set -euo pipefail
cd "$(dirname "$0")/../.."
export DOCS_RS=1 CARGO_TERM_COLOR=never

folder=$PWD/target/amd/link
mkdir -p "$folder"
link() { cargo rustc --locked --release -p mt-train --features rocm --bin mt-train -- "$@"; }

echo "linking without LLVM, to see what is missing (mostly the build of the dependencies: minutes the first time)"
if ! link -C link-arg=-Wl,--error-limit=0 2>"$folder/linker.log"; then
    grep -oE "undefined (symbol: |reference to .)LLVM\w+" "$folder/linker.log" | grep -oE "LLVM\w+" | sort -u >"$folder/symbols" || true
    [ -s "$folder/symbols" ] || { tail -40 "$folder/linker.log"; echo "the build failed, and not for want of LLVM"; exit 1; }
    echo "$(wc -l <"$folder/symbols") functions of LLVM are stubs"
    {
        printf '#include <stdio.h>\n#include <stdlib.h>\n'
        printf 'static void stop(const char *name) { fprintf(stderr, "%%s: this build has no LLVM\\n", name); abort(); }\n'
        sed 's/.*/void &(void) { stop("&"); }/' "$folder/symbols"
    } >"$folder/stubs.c"
    # Hidden: a driver that brings its own LLVM must not find these.
    cc -c -w -fvisibility=hidden -o "$folder/stubs.o" "$folder/stubs.c"
    link -C link-arg="$folder/stubs.o"
fi
binary=target/release/mt-train

train() { timeout 300 "$binary" --config configs/quickstart.yml "$@" steps=2 base_output_directory="$folder/runs" run_name=linked; }

echo "asking for a GPU"
status=0
train hardware=gpu >"$folder/gpu.log" 2>&1 || status=$?
grep -q "libamdhip64.so" "$folder/gpu.log" || { cat "$folder/gpu.log"; echo "the error doesn't name the libraries"; exit 1; }
[ "$status" -le 2 ] && [ "$status" -ge 1 ] && ! grep -q panicked "$folder/gpu.log" || { cat "$folder/gpu.log"; echo "exit status $status"; exit 1; }
cat "$folder/gpu.log"

echo "devices"
"$binary" --devices

echo "two steps on the CPU"
train hardware=cpu >"$folder/cpu.log" 2>&1 || { cat "$folder/cpu.log"; exit 1; }
tail -2 "$folder/cpu.log"
