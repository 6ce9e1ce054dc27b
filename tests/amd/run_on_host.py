#!/usr/bin/env python3
"""Runs text that CubeCL generated for AMD GPUs on this machine's CPU, a thread for each unit, against the definition in float64.

    python3 tests/amd/run_on_host.py

Text, arguments, grid and info buffer are those of target/amd/generated/gfx942 (tests/gpu.sh writes them), each kernel's example.
Needs c++ with C++20; without it, it says so and succeeds.
"""

import array
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "target/amd/generated/gfx942"

PRELUDE = r"""
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
using std::exp, std::fabs, std::fma, std::log, std::sqrt;
template <class T> static T max(T a, T b) { return a < b ? b : a; }
template <class T> static T min(T a, T b) { return b < a ? b : a; }
#define __global__
#define __device__
#define __shared__
#define __align__(bytes)
#define __launch_bounds__(threads)
struct Index { unsigned x, y, z; };
static thread_local Index threadIdx;
static Index blockIdx, gridDim, blockDim;
static std::barrier<> *cube;
static void __syncthreads() { cube->arrive_and_wait(); }
"""

MAIN = r"""
alignas(64) char %(lds)s[65536];
static void call(std::vector<char*>& buffers) { %(entry)s(%(pointers)s); }
}  // namespace kernel

int main(int, char** arguments) {
    std::FILE* file = std::fopen(arguments[1], "r+b");
    long sizes[] = {%(sizes)s};
    std::vector<char*> buffers;
    for (long size : sizes) {
        buffers.push_back((char*)std::aligned_alloc(64, (size + 63) / 64 * 64));
        if (std::fread(buffers.back(), 1, size, file) != (size_t)size) return 1;
    }
    gridDim = {%(grid)s};
    blockDim = {%(block)s, 1, 1};
    std::barrier<> all(blockDim.x);
    cube = &all;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < blockDim.x; ++i)
        threads.emplace_back([&, i] {
            threadIdx = {i, 0, 0};
            for (unsigned z = 0; z < gridDim.z; ++z)
                for (unsigned y = 0; y < gridDim.y; ++y)
                    for (unsigned x = 0; x < gridDim.x; ++x) {
                        if (i == 0) blockIdx = {x, y, z};
                        all.arrive_and_wait();
                        kernel::call(buffers);
                        all.arrive_and_wait();
                    }
        });
    for (auto& thread : threads) thread.join();
    std::rewind(file);
    for (size_t i = 0; i < buffers.size(); ++i)
        if (std::fwrite(buffers[i], 1, sizes[i], file) != (size_t)sizes[i]) return 1;
    return std::fclose(file);
}
"""


def pack(dtype, values):
    if dtype == "bfloat16":
        words = [int.from_bytes(array.array("f", [value]).tobytes(), "little") for value in values]
        return array.array("H", [(word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words]).tobytes()
    return array.array({"float32": "f", "uint32": "I", "int32": "i"}[dtype], values).tobytes()


def unpack(dtype, data):
    if dtype == "bfloat16":
        return list(array.array("f", b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))))
    return list(array.array({"float32": "f", "uint32": "I", "int32": "i"}[dtype], data))


def run(kernel, values):
    """The kernel's example with the given inputs: name to numbers, as rounded to their type and as they are afterwards."""
    text = (GENERATED / f"{kernel}.hip").read_text()
    description = json.loads((GENERATED / f"{kernel}.json").read_text())
    example, arguments = description["example"], description["arguments"][:-1]
    width = {"bfloat16": 2}
    buffers = []
    for argument in arguments:
        size = example["elements"][argument["name"]]
        given = values.get(argument["name"])
        nan = b"\xff" * size * width.get(argument["dtype"], 4)  # what isn't written shows
        buffers.append(nan if given is None else pack(argument["dtype"], given))
    rounded = {a["name"]: unpack(a["dtype"], data) for a, data in zip(arguments, buffers)}
    buffers.append(b"".join(int(word, 16).to_bytes(8, "little") for word in example["info_words"]))
    lds = text.split("extern __shared__ __align__(")[1].split("char ")[1].split("[")[0]
    signature = text.split(f"{description['entry']}(")[1].split(")")[0].split(", ")
    pointers = [f"({parameter.rsplit('const __restrict__', 1)[0]})buffers[{i}]" for i, parameter in enumerate(signature)]
    main = MAIN % {
        "lds": lds, "sizes": ", ".join(str(len(data)) for data in buffers), "grid": ", ".join(map(str, example["grid"])),
        "block": description["block"][0], "entry": description["entry"], "pointers": ", ".join(pointers),
    }
    with tempfile.TemporaryDirectory() as folder:
        source, program, file = (Path(folder) / name for name in ("kernel.cpp", "kernel", "buffers"))
        source.write_text(PRELUDE + "namespace kernel {  // whose types are called like the standard library's\n" + text + main)
        subprocess.run(["c++", "-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-pthread", "-D__restrict__=__restrict",
                        "-I", ROOT / "tests/amd/include", "-o", program, source], check=True)
        file.write_bytes(b"".join(buffers))
        subprocess.run([program, file], check=True, timeout=600)
        data, results = file.read_bytes(), {}
        for argument, buffer in zip(arguments, buffers):
            results[argument["name"]], data = unpack(argument["dtype"], data[:len(buffer)]), data[len(buffer):]
    return example, rounded, results


def close(what, found, expected, tolerance):
    scale = max(abs(x) for x in expected)
    error = max(abs(x - y) if x == x else math.inf for x, y in zip(found, expected)) / scale
    print(f"{what}: off by at most {error:.1e} of the largest value")
    if len(found) != len(expected) or not error <= tolerance:
        sys.exit(f"{what}: {tolerance:.0e} is allowed")


def rms_norm(kernel, tolerance):
    example = json.loads((GENERATED / f"{kernel}.json").read_text())["example"]
    rows, cols = example["sizes"]["rows"], example["sizes"]["cols"]
    x = [random.uniform(-2, 2) for _ in range(rows * cols)]
    example, given, results = run(kernel, {"x": x, "scale": [random.uniform(0.5, 1.5) for _ in range(cols)]})
    expected = []
    for row in range(rows):
        values = given["x"][row * cols:(row + 1) * cols]
        r = 1 / math.sqrt(sum(v * v for v in values) / cols + example["scalars"]["eps"])
        expected += [v * r * s for v, s in zip(values, given["scale"])]
    close(kernel, results["y"], expected, tolerance)


def attention(kernel, rows, tolerance):
    """Documents of 150 and 50 tokens, as in the example."""
    sizes = json.loads((GENERATED / f"{kernel}.json").read_text())["example"]["sizes"]
    tokens, heads, kv_heads, dim = (sizes[name] for name in ("tokens", "heads", "kv_heads", "head_dim"))
    blocks = [(start, length, first, 0) for start, length in ((0, 150), (150, 50)) for first in range(0, length, rows)]
    draw = lambda heads, scale: [random.uniform(-scale, scale) for _ in range(tokens * heads * dim)]
    inputs = {"q": draw(heads, 4 / math.sqrt(dim)), "k": draw(kv_heads, 1), "v": draw(kv_heads, 1),
              "tokens": range(tokens), "blocks": [word for block in blocks for word in block]}
    _, given, results = run(kernel, inputs)
    out, lse = [], []
    for token in range(tokens):
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            q = given["q"][(token * heads + head) * dim:][:dim]
            row = lambda name, key: given[name][(key * kv_heads + kv_head) * dim:][:dim]
            keys = range(150 if token >= 150 else 0, token + 1)
            scores = [math.fsum(a * b for a, b in zip(q, row("k", key))) for key in keys]
            most = max(scores)
            lse.append(most + math.log(sum(math.exp(s - most) for s in scores)))
            weights = [math.exp(s - lse[-1]) for s in scores]
            values = [row("v", key) for key in keys]
            out += [sum(w * v[d] for w, v in zip(weights, values)) for d in range(dim)]
    close(f"{kernel} lse", results["lse"], lse, 1e-5)
    close(f"{kernel} out", results["out"], out, tolerance)


def main():
    if shutil.which("c++") is None:
        print("skipped: there is no c++ to compile the kernels with")
        return
    random.seed(1)
    rms_norm("rms_norm_forward_f32_f32", 1e-5)
    rms_norm("rms_norm_forward_bf16_f32", 1e-2)
    attention("attention_forward_64_f32", 64, 1e-5)


main()
