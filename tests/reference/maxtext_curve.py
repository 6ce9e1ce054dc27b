"""MaxText 0.2.5's own loss curve over twenty steps, from the golden parameters and batch: the numbers of tests/golden_curve.rs.

They equal those of the same steps in float64 PyTorch within 1e-6. Usage: maxtext_curve.py PATH/model_scan_axis1.npz, with Python >= 3.12, maxtext 0.2.5, jax 0.11.1, flax 0.12.9 and optax 0.2.8.
"""

import sys

import jax
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.common.goodput import create_goodput_recorder
from maxtext.configs import pyconfig
from maxtext.trainers.pre_train import train
from maxtext.utils import sharding, train_utils

KEYS = """run_name=curve base_output_directory=/tmp/curve hardware=cpu skip_jax_distributed_system=true dataset_type=synthetic
enable_checkpointing=false decoder_block=llama2 base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=2 head_dim=16 base_mlp_dim=128
base_num_decoder_layers=2 vocab_size=256 rope_max_timescale=500000 normalization_layer_epsilon=1e-5 max_target_length=32
per_device_batch_size=2 dtype=float32 weight_dtype=float32 matmul_precision=highest attention=dot_product adam_b2=0.95 adam_weight_decay=0.1
gradient_clipping_threshold=1.0 learning_rate=1e-2 steps=20 warmup_steps_fraction=0.1 log_config=false enable_goodput_recording=false"""


def name(path):
    """The golden name of a parameter of the nnx state."""
    return "/".join(str(getattr(part, "key", getattr(part, "name", part))) for part in path)


def main():
    vectors = np.load(sys.argv[1])
    config = pyconfig.initialize(["train", *KEYS.split()])
    (_, _, shardings, _, mesh, *_, state) = train_utils.setup_train_loop(config, create_goodput_recorder(config))
    graph, state = nnx.split(state)
    golden = {key[7:]: vectors[key] for key in vectors.files if key.startswith("param0/")}
    seen = []

    def replaced(path, leaf):
        for key, value in golden.items():
            if name(path).removeprefix("model/").removesuffix("/value") == key:
                assert leaf.shape == value.shape, (key, leaf.shape, value.shape)
                seen.append(key)
                return jax.device_put(value, leaf.sharding)
        return leaf

    state = jax.tree_util.tree_map_with_path(replaced, state)
    assert sorted(seen) == sorted(golden), set(golden) - set(seen)

    params_shardings, shardings = sharding.maybe_update_params_sharding_with_opt(config, shardings)
    step, _ = train_utils.jit_train_and_eval_step(
        config, graph, mesh, state, shardings, train.train_step, train.eval_step, None, params_shardings)
    batch = {key[5:]: vectors[key] for key in vectors.files if key.startswith("data/")}
    losses = []
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        for _ in range(20):
            state, metrics = step(state, batch)
            losses.append(float(metrics["scalar"]["learning/loss"]))
    print(", ".join(f"{loss:.6f}" for loss in losses))


if __name__ == "__main__":
    main()
