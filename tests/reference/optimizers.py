"""Writes crates/train/golden/optimizers.json: three updates of a tiny tree of parameters by optax, as MaxText calls it.

Needs jax, numpy, optax. adam_pax and skip_step_on_spikes, which are MaxText's own, are written out in numpy here.
"""
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers, muon

f32 = np.float32

E, HEADS, KV, M, V = 4, 4, 2, 6, 6
SHAPES = {
    "token_embedder/embedding": (V, E),
    "decoder/layers_0/pre_self_attention_layer_norm/scale": (1, E),
    "decoder/layers_0/self_attention/query/kernel": (E, HEADS),
    "decoder/layers_0/self_attention/key/kernel": (E, KV),
    "decoder/layers_0/self_attention/value/kernel": (E, KV),
    "decoder/layers_0/self_attention/out/kernel": (HEADS, E),
    "decoder/layers_0/post_self_attention_layer_norm/scale": (1, E),
    "decoder/layers_0/mlp/wi_0/kernel": (E, M),
    "decoder/layers_0/mlp/wi_1/kernel": (E, M),
    "decoder/layers_0/mlp/wo/kernel": (M, E),
    "decoder/decoder_norm/scale": (1, E),
    "decoder/logits_dense/kernel": (E, V),
}
RATES = [0.0, 0.01, 0.005, 0.02]


def values(leaf, step):
    """Parameters (step -1) and gradients: the same formula as in the Rust test."""
    i = np.arange(int(np.prod(SHAPES[leaf])), dtype=np.float64)
    k = list(SHAPES).index(leaf)
    flat = 0.5 * np.sin(0.7 * i + k) if step < 0 else (0.3 + step) * np.cos(0.3 * i + k + 1.7 * step)
    return flat.astype(f32).reshape(SHAPES[leaf])


def path_mask(patterns, found):
    return lambda tree: {path: any(re.search(p, path) for p in patterns) == found for path in tree}


def optimizer(c, schedule):
    mask = path_mask(c["adamw_mask"], False) if c.get("adamw_mask") else None
    adam = dict(b1=c.get("adam_b1", 0.9), b2=c.get("adam_b2", 0.95), eps=1e-8, eps_root=c.get("adam_eps_root", 0.0))
    if c["opt_type"] == "adamw":
        opt = optax.adamw(schedule, **adam, weight_decay=0.1, mask=mask)
    elif c["opt_type"] == "adam_pax":
        opt = adam_pax(schedule, weight_decay=0.1, **adam)
    elif c["opt_type"] == "sgd":
        opt = optax.sgd(schedule)
    elif c["opt_type"] == "muon":
        matrices = {path: None if re.search("scale|embedding|logits_dense", path) else MuonDimensionNumbers((0,), (1,))
                    for path in SHAPES}
        opt = muon(schedule, ns_coeffs=(3.4445, -4.7750, 2.0315), ns_steps=5, eps=1e-8,
                   beta=c.get("muon_beta", 0.95), weight_decay=c.get("muon_weight_decay", 0.0),
                   consistent_rms=c.get("muon_consistent_rms"), muon_weight_dimension_numbers=matrices,
                   adam_b1=adam["b1"], adam_b2=adam["b2"], adam_eps_root=adam["eps_root"], adam_weight_decay=0.1)
    if c.get("trainable_parameters_mask"):
        trains = path_mask(c["trainable_parameters_mask"], True)
        label = lambda tree: {path: "train" if on else "freeze" for path, on in trains(tree).items()}
        opt = optax.multi_transform({"train": opt, "freeze": optax.set_to_zero()}, label)
    return opt


def adam_pax(schedule, b1, b2, eps, eps_root, weight_decay):
    """The decay of the moments is corrected instead of the moments (arXiv:1804.04235, section 7.1)."""
    def corrected(b, t):
        return f32(b) * (f32(1) - f32(b) ** f32(t - 1)) / (f32(1) - f32(b) ** f32(t))

    def init(params):
        zeros = {path: np.zeros(p.shape, f32) for path, p in params.items()}
        return 0, zeros, dict(zeros)

    def update(grads, state, params):
        count, mu, nu = state
        d1, d2 = corrected(b1, count + 1), corrected(b2, count + 1)
        mu = {k: (f32(1) - d1) * np.asarray(g) + d1 * mu[k] for k, g in grads.items()}
        nu = {k: (f32(1) - d2) * np.asarray(g) ** 2 + d2 * nu[k] for k, g in grads.items()}
        step = lambda k: mu[k] / (np.sqrt(nu[k] + f32(eps_root)) + f32(eps)) + f32(weight_decay) * params[k]
        return {k: -f32(schedule(count)) * step(k) for k in grads}, (count + 1, mu, nu)

    return optax.GradientTransformation(init, update)


def spike(losses, norms, interval, factor):
    """Whether the last of the losses or norms stands out of those before it."""
    if len(losses) < max(2, interval // 2):
        return False
    def stands_out(record):
        *before, last = record
        before = np.array(before[-interval:], f32)
        deviation = np.sqrt(((before - before.mean()) ** 2).sum() / max(1, len(before) - 1))
        return not last - before.mean() <= factor * deviation
    return stands_out(losses) or stands_out(norms)


def rounded(path, leaf):
    """Rounds what is a first moment to bfloat16 and keeps it in float32.

    optax's own mu_dtype multiplies the stored moment by b1 *in bfloat16*, where 0.9 is 0.8984375. Here, moments are rounded when
    they are stored and nothing else is.
    """
    is_mu = any(getattr(key, "name", None) == "mu" for key in path)
    return leaf.astype(jnp.bfloat16).astype(jnp.float32) if is_mu else leaf


def run(c):
    schedule = lambda count: jnp.asarray(RATES, jnp.float32)[count]
    opt = optimizer(c, schedule)
    threshold = c.get("gradient_clipping_threshold", 1.0)
    clip = optax.clip_by_global_norm(threshold) if threshold > 0 else optax.identity()
    # Compiled, as in MaxText: one by one, XLA would round every product with a bfloat16 moment.
    update = opt.update if c["opt_type"] == "adam_pax" else jax.jit(opt.update)
    params = {path: jnp.asarray(values(path, -1)) for path in SHAPES}
    state = opt.init(params)
    log, losses, norms = [], [], []
    for step in range(c.get("steps", 3)):
        factor = c.get("gradient_factors", [1] * 9)[step]
        raw = {path: jnp.asarray(values(path, step) * f32(factor)) for path in SHAPES}
        grads, _ = clip.update(raw, None)
        norm = lambda tree: float(optax.tree.norm(tree))
        losses.append(f32(c.get("losses", [0] * 9)[step]))
        norms.append(f32(norm(grads)))
        skipped = "skip_step_interval" in c and spike(losses, norms, c["skip_step_interval"], c["skip_step_scaling_factor"])
        if not skipped:
            updates, state = update(grads, state, params)
            if c.get("mu_dtype") == "bfloat16":
                state = jax.tree_util.tree_map_with_path(rounded, state)
            params = {k: jnp.asarray(v) for k, v in optax.apply_updates(params, updates).items()}
        log.append({"raw_grad_norm": norm(raw), "grad_norm": norm(grads), "param_norm": norm(params), "skipped": bool(skipped)})
    short = lambda x: float(np.format_float_scientific(f32(x), unique=True))
    return {"config": c, "log": log, "params": {k: [short(x) for x in np.asarray(v).ravel()] for k, v in params.items()}}


CASES = {
    "adamw": {"opt_type": "adamw"},
    "adamw_unclipped": {"opt_type": "adamw", "gradient_clipping_threshold": 0.0, "adam_b1": 0.8, "adam_b2": 0.999,
                        "adam_eps_root": 1e-3},
    "adamw_below_the_threshold": {"opt_type": "adamw", "gradient_clipping_threshold": 100.0},
    "adamw_mask": {"opt_type": "adamw", "adamw_mask": ["scale$", "token_embedder"]},
    "adamw_mu_bfloat16": {"opt_type": "adamw", "mu_dtype": "bfloat16"},
    "adamw_some_trainable": {"opt_type": "adamw", "trainable_parameters_mask": ["mlp/w[io]", "^decoder/logits"]},
    "adam_pax": {"opt_type": "adam_pax"},
    "sgd": {"opt_type": "sgd"},
    "muon": {"opt_type": "muon"},
    "muon_consistent_rms": {"opt_type": "muon", "muon_consistent_rms": 0.2, "muon_weight_decay": 0.1, "muon_beta": 0.9,
                            "mu_dtype": "bfloat16"},
    "adamw_spikes": {"opt_type": "adamw", "skip_step_interval": 4, "skip_step_scaling_factor": 3.0, "steps": 7,
                     "gradient_clipping_threshold": 0.0, "gradient_factors": [1, 0.25, 0.15, 40, 0.1, 0.07, 0.05],
                     "losses": [3.0, 2.9, 2.8, 2.7, 2.9, 9.0, 2.8]},
}


def main():
    jax.config.update("jax_default_matmul_precision", "highest")
    rows = ",\n".join(f' "{name}": {json.dumps(run(case))}' for name, case in CASES.items())
    out = pathlib.Path(__file__).parents[2] / "crates/train/golden/optimizers.json"
    out.write_text("{\n" + rows + "\n}\n")


main()
