"""Our conversions against transformers: random tiny models of each family, theirs to ours and ours to theirs, logits compared.

Usage: huggingface.py FOLDER_OF_BINARIES, with torch and transformers installed. Prints the largest difference per model.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

SHAPE = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=16384, tie_word_embeddings=False, rms_norm_eps=1e-5)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def rope(theta, **scaling):
    """Both spellings: transformers 4 reads rope_theta and rope_scaling, 5 rope_parameters."""
    return dict(rope_theta=theta, rope_scaling=scaling or None, rope_parameters=dict(rope_type="default", rope_theta=theta) | scaling)


MODELS = {
    "llama": LlamaConfig(**SHAPE, head_dim=16, **rope(10000.0)),
    "llama 3.1": LlamaConfig(**SHAPE, head_dim=16, **rope(500000.0, **LLAMA3)),
    "llama tied, all heads, head_dim 12": LlamaConfig(**SHAPE | dict(tie_word_embeddings=True, num_key_value_heads=4), head_dim=12, **rope(10000.0)),
    "llama 3.1 one kv head": LlamaConfig(**SHAPE | dict(num_key_value_heads=1), head_dim=32, **rope(500000.0, **LLAMA3)),
    "llama linear rope": LlamaConfig(**SHAPE, head_dim=16, **rope(10000.0, rope_type="linear", factor=4.0)),
    "mistral": MistralConfig(**SHAPE, head_dim=16, sliding_window=None, **rope(1000000.0)),
    "mistral windowed": MistralConfig(**SHAPE, head_dim=16, sliding_window=7, **rope(10000.0)),
    "qwen2": Qwen2Config(**SHAPE, **rope(1000000.0)),
    "qwen2 tied": Qwen2Config(**SHAPE | dict(tie_word_embeddings=True), **rope(1000000.0)),
    "qwen3": Qwen3Config(**SHAPE, head_dim=16, **rope(1000000.0)),
    "qwen3 tied": Qwen3Config(**SHAPE | dict(tie_word_embeddings=True), head_dim=32, **rope(1000000.0)),
}


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{command}:\n{result.stdout}{result.stderr}")


def main():
    binaries, worst = Path(sys.argv[1]), 0.0
    tokens = torch.randint(0, SHAPE["vocab_size"], (2, 21), generator=torch.Generator().manual_seed(1))
    for name, config in MODELS.items():
        torch.manual_seed(0)
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config).float().eval()
        for parameter in model.parameters():  # norms and biases of ones and zeros would hide mistakes
            torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.2)
        with torch.no_grad():
            expected = model(tokens).logits
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model.save_pretrained(folder / "theirs", max_shard_size="40KB")
            (folder / "tokens.json").write_text(json.dumps(tokens.tolist()))
            run(binaries / "mt-convert", "from-hf", folder / "theirs", folder / "ours", "dtype=float32", "weight_dtype=float32", "max_target_length=64")
            run(binaries / "mt-eval", "--config", folder / "ours/config.yml", "--tokens", folder / "tokens.json", "--logits", folder / "logits.safetensors", "hardware=cpu", "run_name=compare", f"base_output_directory={folder}/out")
            run(binaries / "mt-convert", "to-hf", folder / "ours", folder / "back")
            ours = load_file(folder / "logits.safetensors")["logits"]
            back = AutoModelForCausalLM.from_pretrained(folder / "back", attn_implementation="eager").float().eval()
            with torch.no_grad():
                returned = back(tokens).logits
            before, after = model.state_dict(), back.state_dict()
            same = all(torch.equal(before[key], after[key]) for key in before)
        differences = [(other - expected).abs().max().item() for other in (ours, returned)]
        worst = max(worst, *differences)
        print(f"{name:36} logits up to {expected.abs().max():.1f}: ours off by {differences[0]:.1e}, back by {differences[1]:.1e}, bitwise {same}")
        assert same, name
    assert worst < 1e-4, worst
    print(f"all within {worst:.1e}")


if __name__ == "__main__":
    main()
