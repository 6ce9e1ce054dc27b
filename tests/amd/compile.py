#!/usr/bin/env python3
"""Compiles the GPU kernels for AMD architectures on a machine with neither ROCm nor a GPU, and holds them to what they may use.

    python3 tests/amd/compile.py [--update-docs]

Code objects are left in target/amd/<arch>/<kernel>.hsaco, each with its text (.hip) and a description (.json): grid, block, LDS,
arguments in their order. A kernel fails that spills, uses scratch, more LDS than a workgroup has, or, where its purpose is matrix
units, none of their instructions. The table of resources must be the one in docs/kernels-amd.md; --update-docs writes it.

Kernels: the hand-written ones of crates/model/src/ops, and any text of CubeCL's found in target/amd/generated/<arch>/ (.hip with
.json); nothing in this repository writes those yet.
Needs pip once, for the clang in the package `ziglang`; without, it says so and succeeds.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "target/amd"
DOCS = ROOT / "docs/kernels-amd.md"
COMPILER = "ziglang==0.17.1"
LDS_LIMIT = 64 * 1024
BEGIN, END = "<!-- table: written by tests/amd/compile.py -->", "<!-- end of table -->"

Q, KV, LSE = "[batch, seq, query_heads, head_dim]", "[batch, seq, kv_heads, head_dim]", "[batch, seq, query_heads]"
SHAPE = ("shape", "in", "int32", "seq, query_heads, kv_heads, window (2147483647: none)")
SEGMENTS = ("segments", "in", "int32", "[batch, seq]")
RANGE = "[batch, 4 ceil(seq / 128)] of (first, plain_first, plain_end, end): {}; [first, end) holds all that any of the 32 {}, " \
        "[plain_first, plain_end) only what all of them {}; without tokens (seq, 0, 0, 0)"
KEYS_SEEN = ("ranges", "in", "int32 x 4", RANGE.format("the keys, counted in the row, that 32 queries see", "sees", "see"))
SEEN_BY = ("ranges", "in", "int32 x 4", RANGE.format("the queries that see 32 keys", "is seen by", "are seen by"))
QUERIES_GRID, KEYS_GRID = "ceil(seq / 128), query_heads, batch", "ceil(seq / 128), kv_heads, batch"


def bf16(way, layout, *names):
    return [(name, way, "bfloat16", layout) for name in names]


def f32(way, name):
    return [(name, way, "float32", LSE)]


ATTENTION = {
    "forward": (QUERIES_GRID, [*bf16("in", Q, "q"), *bf16("in", KV, "k", "v"), SEGMENTS, KEYS_SEEN, *bf16("out", Q, "out"),
                               *f32("out", "lse"), SHAPE]),
    "backward_queries": (QUERIES_GRID, [*bf16("in", Q, "q"), *bf16("in", KV, "k", "v"), *bf16("in", Q, "out", "dout"),
                                        *f32("in", "lse"), SEGMENTS, KEYS_SEEN, *bf16("out", Q, "dq"), *f32("out", "delta"),
                                        SHAPE]),
    "backward_keys": (KEYS_GRID, [*bf16("in", Q, "q"), *bf16("in", KV, "k", "v"), *bf16("in", Q, "dout"), *f32("in", "lse"),
                                  *f32("in", "delta"), SEGMENTS, SEEN_BY, *bf16("out", KV, "dk", "dv"), SHAPE]),
}


def hand_written():
    """Architecture, name, text and description of each kernel."""
    folder = ROOT / "crates/model/src/ops/attention/hip"
    for head_dim in (64, 128):
        for kernel, (grid, arguments) in ATTENTION.items():
            text = f"#define HEAD_DIM {head_dim}\n" + (folder / "tile.h").read_text() + (folder / f"{kernel}.hip").read_text()
            description = {
                "entry": f"attention_{kernel}",
                "head_dim": head_dim,
                "grid": grid,
                "block": [256, 1, 1],
                "dynamic_lds_bytes": 0,
                "matrix_units": True,
                "arguments": [dict(zip(("name", "direction", "dtype", "layout"), argument)) for argument in arguments],
                "passing": "one 64-bit pointer for each argument, tensors contiguous and 16-byte aligned",
            }
            for arch in ("gfx90a", "gfx942"):
                yield arch, f"attention_{kernel}_{head_dim}", text, description


def generated():
    for text in sorted(TARGET.glob("generated/*/*.hip")):
        yield text.parent.name, text.stem, text.read_text(), json.loads(text.with_suffix(".json").read_text())


def compiler():
    """The clang to call, as the start of a command; none if it can't be had."""
    packages = TARGET / "packages"
    zig = packages / "ziglang/zig"
    if not zig.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", packages, COMPILER]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError):
            return None
    return [zig]


def compile_kernel(zig, arch, path):
    """Leaves a code object beside the text; returns the assembly."""
    def clang(*arguments):
        done = subprocess.run([*zig, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{path}: {done.stderr}")

    ir, assembly, binary = (path.with_suffix(suffix) for suffix in (".ll", ".s", ".o"))
    clang("clang", "-x", "hip", f"--offload-arch={arch}", "--offload-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc",
          "-O3", "-std=c++17", "-fdeclspec", "-include", Path(__file__).with_name("builtins.h"), "-Wno-everything", "-S",
          "-emit-llvm", "-o", ir, path)
    target = ("clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-nogpulib", "-O3", "-x", "ir", ir)
    clang(*target, "-S", "-o", assembly)
    clang(*target, "-c", "-o", binary)
    clang("ld.lld", "-shared", "--no-undefined", "-o", path.with_suffix(".hsaco"), binary)
    text = assembly.read_text()
    for file in (ir, assembly, binary):
        file.unlink()
    return text


def resources(assembly):
    number = lambda pattern: int((re.search(pattern, assembly) or [0, 0])[1])
    return {
        "vgprs": number(r"; NumVgprs: (\d+)"),
        "agprs": number(r"; NumAgprs: (\d+)"),
        "lds_bytes": number(r"; LDSByteSize: (\d+)"),
        "scratch_bytes": number(r"; ScratchSize: (\d+)"),
        "spills": number(r"\.vgpr_spill_count: (\d+)") + number(r"\.sgpr_spill_count: (\d+)"),
        "waves_per_simd": number(r"; Occupancy: (\d+)"),
        "matrix_instructions": len(re.findall(r"^\s+v_s?w?mf?ma", assembly, re.M)),
    }


def complaints(used, description):
    if used["spills"] or used["scratch_bytes"]:
        yield f"{used['spills']} registers spilled, {used['scratch_bytes']} bytes of scratch: none may be"
    if used["lds_bytes"] > LDS_LIMIT:
        yield f"{used['lds_bytes']} bytes of LDS, a workgroup has {LDS_LIMIT}"
    if description.get("matrix_units") and not used["matrix_instructions"]:
        yield "no matrix instruction"


def main():
    zig = compiler()
    if zig is None:
        print(f"skipped: kernels aren't compiled for AMD GPUs here, `pip install {COMPILER}` has no success")
        return
    rows, wrong = [], []
    for arch, name, text, description in [*hand_written(), *generated()]:
        path = TARGET / arch / f"{name}.hip"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        used = resources(compile_kernel(zig, arch, path))
        path.with_suffix(".json").write_text(json.dumps({"kernel": name, "arch": arch, **description, **used}, indent=2) + "\n")
        wrong += [f"{arch} {name}: {complaint}" for complaint in complaints(used, description)]
        rows.append(f"| {name} | {arch} | {used['vgprs']} | {used['agprs']} | {used['lds_bytes']} | {used['waves_per_simd']} | "
                    f"{used['matrix_instructions']} |")
    table = "\n".join(["| kernel | arch | VGPRs | AGPRs | LDS bytes | waves/SIMD | matrix instructions |",
                       "|---|---|---:|---:|---:|---:|---:|", *sorted(rows)])
    print(table)
    if wrong:
        sys.exit("\n".join(wrong))
    page = DOCS.read_text()
    before, rest = page.split(BEGIN)
    updated = f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"
    if "--update-docs" in sys.argv:
        DOCS.write_text(updated)
    elif [row for row in sorted(rows) if row not in page]:
        sys.exit(f"the table in {DOCS.relative_to(ROOT)} isn't this one: run tests/amd/compile.py --update-docs")


main()
