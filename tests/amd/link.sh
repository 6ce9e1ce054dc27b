#!/usr/bin/env bash
# Links `mt-train` with ROCm support on a machine with neither ROCm nor the LLVM bundle that cubecl-hip's build fetches otherwise,
# and runs it: it says what it looked for when a GPU is asked for, and trains on the CPU.
#
#   tests/amd/link.sh            all of that
#   tests/amd/link.sh cargo ...  cargo with the same settings, such as `test --workspace --features mt-train/rocm`
#
# With DOCS_RS set, the build fetches nothing and leaves LLVM's C functions undefined. They belong to a backend of CubeCL that isn't
# used here (HIP C++ through hiprtc is), so they are stubs that abort: a library that cargo is told to link in place of LLVM, whichever
# the linker is. It's empty while libraries are built, and is then given what they miss.
set -euo pipefail
cd "$(dirname "$0")/../.."
export DOCS_RS=1 CARGO_TERM_COLOR=never CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target/gpu}"
features=${FEATURES:-mt-train/rocm}

folder=$PWD/target/amd/link
mkdir -p "$folder"
host=$(rustc -vV | sed -n 's/^host: //p')
cat >"$folder/config.toml" <<EOF
[target.$host.llvm-23]
rustc-link-lib = ["static:-bundle=llvm_stubs"]
rustc-link-search = ["native=$folder"]
EOF
run_cargo() { local command=$1; shift; cargo --config "$folder/config.toml" "$command" --locked --release "$@"; }

# Every symbol of LLVM or of CubeCL's own C++ around it that the libraries miss.
stubs() {
    local libraries
    libraries=$(ls "$CARGO_TARGET_DIR"/release/deps/lib{llvm_sys,pliron_llvm,cubecl_llvm}-*.rlib)
    # shellcheck disable=SC2086
    nm --undefined-only $libraries 2>/dev/null | grep -oE "\b(LLVM|LLD|lld_|cubecl_)\w+$" | grep -v '^_' | sort -u >"$folder/symbols"
    [ -s "$folder/symbols" ] || { echo "no function of LLVM is missing: has its backend changed?"; exit 1; }
    {
        printf '#include <stdio.h>\n#include <stdlib.h>\n'
        printf 'static void stop(const char *name) { fprintf(stderr, "%%s: this build has no LLVM\\n", name); abort(); }\n'
        sed 's/.*/void &(void) { stop("&"); }/' "$folder/symbols"
    } >"$folder/stubs.c"
    # Hidden: a driver that brings its own LLVM must not find these.
    cc -c -w -fvisibility=hidden -o "$folder/stubs.o" "$folder/stubs.c"
    rm -f "$folder/libllvm_stubs.a"
    ar rcs "$folder/libllvm_stubs.a" "$folder/stubs.o"
}

[ -f "$folder/libllvm_stubs.a" ] || ar rcs "$folder/libllvm_stubs.a"
echo "building libraries (mostly dependencies: a quarter of an hour the first time)"
run_cargo build --workspace --features "$features" --lib
stubs
echo "$(wc -l <"$folder/symbols") functions of LLVM are stubs"

if [ "${1:-}" = cargo ]; then
    shift
    run_cargo "$@"
    exit
fi
run_cargo build --workspace --features "$features" --bin mt-train
binary=$CARGO_TARGET_DIR/release/mt-train

train() { timeout 300 "$binary" --config configs/quickstart.yml "$@" steps=2 base_output_directory="$folder/runs" run_name=linked; }

# With a runtime beside ROCm in the build, a GPU may be found all the same; its driver is hidden.
export VK_DRIVER_FILES=/dev/null VK_ICD_FILENAMES=/dev/null
echo "asking for a GPU"
status=0
train hardware=gpu >"$folder/gpu.log" 2>&1 || status=$?
cat "$folder/gpu.log"
grep -q "libamdhip64.so" "$folder/gpu.log" || { echo "the error doesn't name the libraries"; exit 1; }
grep -q panicked "$folder/gpu.log" && { echo "it panicked"; exit 1; }
[ "$status" -eq 1 ] || [ "$status" -eq 2 ] || { echo "exit status $status"; exit 1; }

echo "devices"
"$binary" --devices

echo "two steps on the CPU"
train hardware=cpu >"$folder/cpu.log" 2>&1 || { cat "$folder/cpu.log"; exit 1; }
tail -2 "$folder/cpu.log"
