"""One training step of a small Llama in plain PyTorch: the peer of `cargo bench -p benches --bench train_step`.

Prints one JSON line: {"tokens_per_s": [...], "peak_rss_mb": ..., "matmul_gflops": ..., "loss": [...]}
Usage: train_step_torch.py [--mode eager|compile] [--dtype float32|bfloat16] [--steps N] [--threads N]
"""

import argparse
import json
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, emb, mlp, heads, kv_heads, head_dim):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.attn_norm = nn.RMSNorm(emb, eps=1e-5)
        self.wq = nn.Linear(emb, heads * head_dim, bias=False)
        self.wk = nn.Linear(emb, kv_heads * head_dim, bias=False)
        self.wv = nn.Linear(emb, kv_heads * head_dim, bias=False)
        self.wo = nn.Linear(heads * head_dim, emb, bias=False)
        self.mlp_norm = nn.RMSNorm(emb, eps=1e-5)
        self.w_gate = nn.Linear(emb, mlp, bias=False)
        self.w_up = nn.Linear(emb, mlp, bias=False)
        self.w_down = nn.Linear(mlp, emb, bias=False)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        h = self.attn_norm(x)
        q = rope(self.wq(h).view(b, s, self.heads, self.head_dim).transpose(1, 2), cos, sin)
        k = rope(self.wk(h).view(b, s, self.kv_heads, self.head_dim).transpose(1, 2), cos, sin)
        v = self.wv(h).view(b, s, self.kv_heads, self.head_dim).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(a.transpose(1, 2).reshape(b, s, -1))
        h = self.mlp_norm(x)
        return x + self.w_down(F.silu(self.w_gate(h)) * self.w_up(h))


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.emb)
        self.blocks = nn.ModuleList(
            Block(a.emb, a.mlp, a.heads, a.kv_heads, a.head_dim) for _ in range(a.layers)
        )
        self.norm = nn.RMSNorm(a.emb, eps=1e-5)
        self.head = nn.Linear(a.emb, a.vocab, bias=False)
        t = torch.arange(a.seq)[:, None] / 10000.0 ** (torch.arange(0, a.head_dim, 2) / a.head_dim)
        self.register_buffer("cos", t.cos())
        self.register_buffer("sin", t.sin())

    def forward(self, ids, targets):
        x = self.embed(ids)
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--mode", default="eager", choices=["eager", "compile"])
    p.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    for name, default in dict(steps=6, threads=2, emb=512, mlp=1408, heads=8, kv_heads=4, head_dim=64,
                              layers=4, vocab=32000, seq=512, batch=4).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=default)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model = Llama(a).to(getattr(torch, a.dtype))
    step_model = torch.compile(model) if a.mode == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids = torch.randint(0, a.vocab, (a.batch, a.seq + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    speeds, losses = [], []
    for _ in range(a.steps):
        start = time.perf_counter()
        loss = step_model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        speeds.append(a.batch * a.seq / (time.perf_counter() - start))

    x, y = torch.randn(1536, 1536), torch.randn(1536, 1536)
    best = min(timed(lambda: x @ y) for _ in range(8))
    print(json.dumps({
        "tokens_per_s": speeds,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "matmul_gflops": 2 * 1536**3 / best / 1e9,
        "loss": losses,
        "torch": torch.__version__,
    }))


def timed(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
