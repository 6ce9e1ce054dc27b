#!/usr/bin/env python3
"""Compiles the GPU kernels for AMD architectures on a machine with neither ROCm nor a GPU, and holds them to what they may use.

    python3 tests/amd/compile.py [--update-docs]

Code objects are left in target/amd/<arch>/<kernel>.hsaco, each with its text (.hip) and a description (.json): entry, grid, block,
LDS, arguments in their order, and for CubeCL's the layout of their last one, with an example. A kernel fails that spills, uses
scratch, more LDS than a workgroup has, or, where its purpose is matrix units, none of their instructions. The table of resources must
be the one in docs/kernels.md; --update-docs writes it.

Kernels: the hand-written ones of crates/model/src/ops, and CubeCL's, whose texts the tests named `hip_text` write to
target/amd/generated/<arch>/ (tests/gpu.sh runs them); without those, only the hand-written ones are compiled and the table isn't
compared.
Needs pip once, for the clang in the package `ziglang`; without, it says so and succeeds.
"""

import hashlib
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/amd"
TARGET = ROOT / "target/amd"
DOCS = ROOT / "docs/kernels.md"
COMPILER = "ziglang==0.17.1"
HEADERS = (HERE / "builtins.h", HERE / "include/hip/hip_bf16.h", HERE / "include/rocwmma/rocwmma.hpp")
RESOURCES = ("vgprs", "agprs", "lds_bytes", "scratch_bytes", "spills", "waves_per_simd", "matrix_instructions")
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
          "-O3", "-std=c++17", "-fdeclspec", "-include", HERE / "builtins.h", "-I", HERE / "include", "-Wno-everything", "-S",
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
    lds = used["lds_bytes"] + description["dynamic_lds_bytes"]
    if lds > LDS_LIMIT:
        yield f"{lds} bytes of LDS, a workgroup has {LDS_LIMIT}"
    if description.get("matrix_units") and not used["matrix_instructions"]:
        yield "no matrix instruction"


def compiled(zig, arch, name, text, description):
    """Its resources, after leaving text, code object and description; from the description where it was made of the same."""
    path = TARGET / arch / f"{name}.hip"
    described = path.with_suffix(".json")
    made_of = hashlib.sha256("".join([text, COMPILER, *(header.read_text() for header in HEADERS)]).encode()).hexdigest()
    if described.exists() and path.with_suffix(".hsaco").exists():
        found = json.loads(described.read_text())
        used = {key: found[key] for key in RESOURCES if key in found}
        if found.get("made_of") == made_of and len(used) == len(RESOURCES):
            described.write_text(describe(name, arch, description, used, made_of))
            return used
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    used = resources(compile_kernel(zig, arch, path))
    described.write_text(describe(name, arch, description, used, made_of))
    return used


def describe(name, arch, description, used, made_of):
    return json.dumps({"kernel": name, "arch": arch, **description, **used, "made_of": made_of}, indent=2) + "\n"


def table(kernels):
    """Of resources by kernel and architecture: a row per kernel."""
    archs = sorted({arch for of_kernel in kernels.values() for arch in of_kernel}, key=lambda arch: (len(arch), arch))

    def cell(used):
        if not used:
            return "|"
        agprs = f" + {used['agprs']}" if used["agprs"] else ""
        return f" {used['vgprs']}{agprs}, {used['waves_per_simd']} |"

    yield "| kernel | LDS | matrix instructions | " + " | ".join(archs) + " |"
    yield "|---|---:|---:|" + "---:|" * len(archs)
    for name in sorted(kernels):
        of_kernel = kernels[name]
        any_arch = next(iter(of_kernel.values()))
        start = f"| {name} | {any_arch['lds']} | {any_arch['matrix_instructions']} |"
        yield start + "".join(cell(of_kernel.get(arch)) for arch in archs)


def main():
    zig = compiler()
    if zig is None:
        print(f"skipped: kernels aren't compiled for AMD GPUs here, `pip install {COMPILER}` has no success")
        return
    texts, from_cubecl = list(hand_written()), list(generated())
    texts += from_cubecl
    with ThreadPoolExecutor(cpu_count()) as pool:
        results = list(pool.map(lambda kernel: compiled(zig, *kernel), texts))
    wrong, kernels = [], {}
    for (arch, name, _, description), used in zip(texts, results):
        wrong += [f"{arch} {name}: {complaint}" for complaint in complaints(used, description)]
        kernels.setdefault(name, {})[arch] = {**used, "lds": used["lds_bytes"] + description["dynamic_lds_bytes"]}
    rows = "\n".join(table(kernels))
    print(rows)
    print(f"{len(texts)} code objects in {TARGET.relative_to(ROOT)}")
    if wrong:
        sys.exit("\n".join(wrong))
    if not from_cubecl:
        print("CubeCL's kernels aren't among them: their text is written by tests/gpu.sh")
        return
    page = DOCS.read_text()
    before, rest = page.split(BEGIN)
    updated = f"{before}{BEGIN}\n{rows}\n{END}{rest.split(END)[1]}"
    if "--update-docs" in sys.argv:
        DOCS.write_text(updated)
    elif page != updated:
        sys.exit(f"the table in {DOCS.relative_to(ROOT)} isn't this one: run tests/amd/compile.py --update-docs")


main()
