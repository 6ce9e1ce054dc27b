"""Twenty steps of AdamW from MaxText's golden parameters, in float64 PyTorch: the numbers of tests/golden_curve.rs.

The first three losses are MaxText's own (golden_curve.rs compares them); this carries the curve on.
Usage: golden_curve.py PATH/model_scan_axis1.npz
"""

import math
import sys

import numpy as np
import torch
import torch.nn.functional as F

STEPS, PEAK, FINAL, WARM_UP = 20, 1e-2, 0.1, 2
LAYERS, HEADS, KV_HEADS, HEAD_DIM, EPS = 2, 4, 2, 16, 1e-5


def learning_rate(step):
    if step < WARM_UP:
        return PEAK * step / WARM_UP
    progress = (step - WARM_UP) / (STEPS - WARM_UP - 1)  # as MaxText: the final rate at the last step
    return PEAK * (FINAL + (1 - FINAL) * 0.5 * (1 + math.cos(math.pi * progress)))


def norm(x, scale):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * scale


def rope(x, positions):  # [B, S, H, D], two halves
    half = HEAD_DIM // 2
    angles = positions[..., None, None] / 500000.0 ** (torch.arange(half, dtype=torch.float64) * 2 / HEAD_DIM)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


def loss(p, d):
    segments, positions = d["inputs_segmentation"], d["inputs_position"].double()
    x = p["token_embedder/embedding"][d["inputs"]]
    visible = (segments[:, :, None] == segments[:, None, :]) & torch.ones(32, 32, dtype=torch.bool).tril()
    for i in range(LAYERS):
        at = lambda name: p["decoder/layers/" + name].select(1, i)
        h = norm(x, at("pre_self_attention_layer_norm/scale"))
        q, k, v = (torch.einsum("bse,ehd->bshd", h, at(f"self_attention/{n}/kernel")) for n in ("query", "key", "value"))
        q, k = rope(q, positions), rope(k, positions)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=2) for t in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k).masked_fill(~visible[:, None], -1e30)
        a = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        x = x + torch.einsum("bshd,hde->bse", a, at("self_attention/out/kernel"))
        h = norm(x, at("post_self_attention_layer_norm/scale"))
        x = x + (F.silu(h @ at("mlp/wi_0/kernel")) * (h @ at("mlp/wi_1/kernel"))) @ at("mlp/wo/kernel")
    logits = norm(x, p["decoder/decoder_norm/scale"]) @ p["decoder/logits_dense/kernel"]
    weights = (d["targets_segmentation"] != 0).double()
    xent = F.cross_entropy(logits.flatten(0, 1), d["targets"].flatten(), reduction="none")
    return (xent * weights.flatten()).sum() / (weights.sum() + 1e-8)


def main():
    torch.set_default_dtype(torch.float64)
    vectors = np.load(sys.argv[1])
    d = {k[5:]: torch.tensor(vectors[k]).long() for k in vectors.files if k.startswith("data/")}
    p = {k[7:]: torch.tensor(vectors[k]).double().requires_grad_() for k in vectors.files if k.startswith("param0/")}
    mu, nu = ({k: torch.zeros_like(v) for k, v in p.items()} for _ in range(2))
    losses = []
    for step in range(STEPS):
        value = loss(p, d)
        losses.append(value.item())
        grads = dict(zip(p, torch.autograd.grad(value, list(p.values()))))
        clip = 1.0 / max(1.0, math.sqrt(sum((g * g).sum().item() for g in grads.values())))
        with torch.no_grad():
            for k in p:
                g = grads[k] * clip
                mu[k], nu[k] = 0.9 * mu[k] + 0.1 * g, 0.95 * nu[k] + 0.05 * g * g
                direction = mu[k] / (1 - 0.9 ** (step + 1)) / ((nu[k] / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8)
                p[k] -= learning_rate(step) * (direction + 0.1 * p[k])
    print(", ".join(f"{x:.6f}" for x in losses))


if __name__ == "__main__":
    main()
