#!/usr/bin/env bash
# The GPU kernels on a real GPU API, on any machine: burn's wgpu feature on the first GPU, or on Mesa's software Vulkan device, which is
# installed where there is none and this user may. A second build of burn (ten minutes on two cores), then minutes of tests, most of
# them burn's autotuning. `tests/gpu.sh amd` goes on with what is proved about AMD GPUs without one (docs/rocm.md): HIP text of every
# kernel, compiled; a binary with ROCm support, linked and run; clippy. A third build.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json >/dev/null 2>&1; then
    apt-get update -q && apt-get install -qy --no-install-recommends mesa-vulkan-drivers libvulkan1
fi
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target/gpu}"
cargo test --release --workspace --features mt-train/wgpu --test devices --test devices_attention --test offload
cargo test --release --workspace --features mt-train/wgpu --lib cube::
[ "${1:-}" = amd ] || exit 0

export CARGO_TARGET_DIR="$CARGO_TARGET_DIR-amd"
tests/amd/link.sh
rm -rf target/amd/generated
tests/amd/link.sh cargo test --workspace --features mt-train/rocm --lib hip_text
python3 tests/amd/compile.py
python3 tests/amd/run_on_host.py
DOCS_RS=1 cargo clippy --release --workspace --all-targets --features mt-train/rocm -- -D warnings
