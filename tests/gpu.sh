#!/usr/bin/env bash
# What is proved about GPUs on a machine without one, in one build of burn with its wgpu and ROCm backends beside the CPU (a quarter
# of an hour on two cores; docs/kernels.md, docs/rocm.md):
#
# - on the first GPU, or on Mesa's software Vulkan device, which is installed where there is none and this user may: every kernel
#   against float64, the whole model against the CPU and the golden values;
# - about AMD GPUs: a binary with ROCm support, linked and run; the HIP text of every kernel, compiled offline; clippy.
#
# CARGO_TARGET_DIR says where to build.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json >/dev/null 2>&1; then
    apt-get update -q && apt-get install -qy --no-install-recommends mesa-vulkan-drivers libvulkan1
fi
export FEATURES=mt-train/rocm,mt-train/wgpu CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target/gpu}"
step() { printf '\n-- %s (%ss)\n' "$1" "$SECONDS"; }
cargo() { tests/amd/link.sh cargo "$@"; }

step "a binary with ROCm support"
tests/amd/link.sh

step "the model and every operation on a GPU"
cargo test --workspace --features "$FEATURES" --test devices --test devices_attention --test offload --test kernels

step "kernels on a GPU, and their text for AMD GPUs"
rm -rf target/amd/generated
cargo test --workspace --features "$FEATURES" --lib -- cube:: hip_text emulated

step "that text, compiled for AMD GPUs"
python3 tests/amd/compile.py

step "that text, run on the CPU"
python3 tests/amd/run_on_host.py

step "clippy"
cargo clippy --workspace --all-targets --features "$FEATURES" -- -D warnings
