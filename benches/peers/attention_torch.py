"""PyTorch's fused attention on the CPU: the peer of `cargo bench -p benches --bench attention`.

Reads one JSON object per line from stdin and answers each with one JSON line:
  {"heads": 8, "kv_heads": 4, "head_dim": 64, "lengths": [512, 512], "backward": true, "dtype": "float32"}
  -> {"seconds": ...}   time of one call; with "backward", of forward and backward together.
`lengths` are the documents of one row. Equal lengths run as a batch, which is the best case for PyTorch: it needs no mask.
"""

import json
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def tensors(case):
    documents, length = len(case["lengths"]), case["lengths"][0]
    assert all(other == length for other in case["lengths"]), "unequal documents need a mask"
    dtype, grad = getattr(torch, case["dtype"]), case["backward"]

    def make(heads):
        x = torch.randn(documents, length, heads, case["head_dim"]).to(dtype)
        return x.transpose(1, 2).requires_grad_(grad)

    return make(case["heads"]), make(case["kv_heads"]), make(case["kv_heads"]), torch.randn_like(make(case["heads"]))


def call(case, q, k, v, dout):
    start = time.perf_counter()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0, enable_gqa=case["heads"] != case["kv_heads"])
    if case["backward"]:
        torch.autograd.grad(out, (q, k, v), dout)
    return time.perf_counter() - start


def main():
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
    made = {}
    for line in sys.stdin:
        if line not in made:
            made = {line: tensors(json.loads(line))}
            call(json.loads(line), *made[line])
        print(json.dumps({"seconds": call(json.loads(line), *made[line])}), flush=True)


if __name__ == "__main__":
    main()
