"""Logits by transformers of the tiny models that tests/convert.rs writes: prints tests/reference/huggingface_logits.json.

Usage: huggingface_logits.py > huggingface_logits.json, with torch and transformers installed.
"""

import json

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SHAPE = dict(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=512, rms_norm_eps=1e-5, hidden_act="silu")
DEFAULT = dict(rope_type="default", rope_theta=10000.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
MODELS = {
    "llama": LlamaConfig(**SHAPE, head_dim=8, tie_word_embeddings=False, rope_theta=10000.0, rope_parameters=DEFAULT),
    "llama3.1": LlamaConfig(**SHAPE, head_dim=16, tie_word_embeddings=False, rope_theta=10000.0, rope_parameters=DEFAULT | LLAMA3),
    "mistral": MistralConfig(**SHAPE, head_dim=16, tie_word_embeddings=False, sliding_window=5, rope_theta=10000.0, rope_parameters=DEFAULT),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True, rope_theta=10000.0, rope_parameters=DEFAULT),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=True, rope_theta=10000.0, rope_parameters=DEFAULT),
}
TOKENS = [[7, 3, 291, 44, 44, 105, 8, 250, 17], [1, 2, 299, 4, 5, 6, 0, 8, 9]]
SHOWN = [0, 1, 2, 150, 297, 298, 299]  # columns


def numbers(seed, shape):
    """`bytes` of tests/convert.rs."""
    mixed = (np.arange(np.prod(shape), dtype=np.uint64) ^ np.uint64(seed << 20 & 0xffffffff)).astype(np.uint32)
    mixed = mixed * np.uint32(2654435761)
    mixed = (mixed << np.uint32(15) | mixed >> np.uint32(17)) * np.uint32(2246822519)
    values = np.float32(0.3) * ((mixed >> np.uint32(8)).astype(np.float32) / np.float32(1 << 23) - np.float32(1))
    return torch.tensor(values.reshape(shape))


def names(kind, layers):
    yield "model.embed_tokens.weight"
    layer = ["input_layernorm.weight", *(f"self_attn.{x}_proj.weight" for x in "qkvo"), "post_attention_layernorm.weight",
             *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down"))]
    layer += [f"self_attn.{x}_proj.bias" for x in "qkv"] if kind == "qwen2" else []
    layer += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"] if kind == "qwen3" else []
    for i in range(layers):
        yield from (f"model.layers.{i}.{name}" for name in layer)
    yield "model.norm.weight"
    yield "lm_head.weight"


def main():
    result = {"tokens": TOKENS, "columns": SHOWN}
    for kind, config in MODELS.items():
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config).float().eval()
        state, tied = model.state_dict(), config.tie_word_embeddings
        for seed, name in enumerate(name for name in names(kind, 3) if not (tied and name == "lm_head.weight")):
            state[name].copy_(numbers(seed, state[name].shape))
        with torch.no_grad():
            logits = model(torch.tensor(TOKENS)).logits[..., SHOWN]
        result[kind] = [round(x, 6) for x in logits.flatten().tolist()]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
