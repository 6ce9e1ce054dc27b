"""Writes crates/train/golden/lr_schedules.json: learning rates by MaxText's schedule formulas, in numpy.

Needs numpy. With a MaxText vector file as argument (an npz of lr_NN arrays), every value is compared with it first.
"""
import json
import math
import pathlib
import sys

import numpy as np

f32 = np.float32

CASES = {
    "lr_00": {"steps": 100},
    "lr_01": {"steps": 100, "warmup_steps_fraction": 0.0},
    "lr_02": {"steps": 120, "learning_rate_schedule_steps": 100},
    "lr_03": {"steps": 50, "learning_rate_schedule_steps": 100},
    "lr_04": {"steps": 100, "learning_rate_final_fraction": 0.0, "warmup_steps_fraction": 0.05},
    "lr_05": {"steps": 37, "warmup_steps_fraction": 0.33, "learning_rate": 0.001, "learning_rate_final_fraction": 0.2},
    "lr_06": {"steps": 10, "warmup_steps_fraction": 1.0},
    "lr_07": {"steps": 1},
    "lr_08": {"steps": 2, "warmup_steps_fraction": 0.5},
    "lr_09": {"steps": 100, "lr_schedule_type": "wsd"},
    "lr_10": {"steps": 100, "lr_schedule_type": "wsd", "wsd_decay_style": "cosine", "wsd_decay_steps_fraction": 0.3},
    "lr_11": {"steps": -1, "learning_rate_schedule_steps": 40},
    "lr_12": {"steps": 100, "learning_rate_schedule_steps": 80, "lr_schedule_type": "wsd",
              "warmup_steps_fraction": 0.0, "wsd_decay_steps_fraction": 0.25},
}


def linear(init, end, transition_steps):
    def rate(t):
        if transition_steps <= 0:
            return f32(init)
        left = f32(1) - f32(min(t, transition_steps)) / f32(transition_steps)
        return f32(init - end) * left + f32(end)
    return rate


def cosine(init, end, length):
    def rate(t):
        angle = f32(math.pi * (t / (length - 1) if length > 1 else 1.0))
        share = f32(0.5) * (f32(math.cos(float(angle))) + f32(1))
        return f32(init) * share + f32(end) * (f32(1) - share)
    return rate


def schedule(c):
    peak = c.get("learning_rate", 3e-5)
    end = peak * c.get("learning_rate_final_fraction", 0.1)
    total, steps = c.get("learning_rate_schedule_steps", -1), c["steps"]
    total, steps = (steps if total == -1 else total), (total if steps == -1 else steps)
    warmup = int(total * c.get("warmup_steps_fraction", 0.1))
    pieces = [(0, linear(0.0, peak, warmup))] if warmup else []
    if c.get("lr_schedule_type", "cosine") == "cosine":
        if total > warmup:
            pieces.append((warmup, cosine(peak, end, total - warmup)))
    else:
        decay = int(total * c.get("wsd_decay_steps_fraction", 0.1))
        if total - warmup - decay > 0:
            pieces.append((warmup, lambda t: f32(peak)))
        if decay:
            style = c.get("wsd_decay_style", "linear")
            pieces.append((total - decay, linear(peak, end, decay - 1) if style == "linear" else cosine(peak, end, decay)))
    if steps > total:
        pieces.append((total, lambda t: f32(0)))
    rates = []
    for t in range(steps + 5):
        start, piece = [p for p in pieces if p[0] <= t][-1] if pieces[0][0] <= t else pieces[0]
        rates.append(piece(t - start))
    return np.array(rates, f32)


def main():
    table = {}
    reference = np.load(sys.argv[1]) if len(sys.argv) > 1 else None
    for name, case in CASES.items():
        rates = schedule(case)
        if reference is not None:
            np.testing.assert_array_equal(rates, reference[name], err_msg=name)
        table[name] = {"config": case, "rates": [float(np.format_float_scientific(r, unique=True)) for r in rates]}
    out = pathlib.Path(__file__).parents[2] / "crates/train/golden/lr_schedules.json"
    lines = ",\n".join(f' "{name}": {json.dumps(row)}' for name, row in table.items())
    out.write_text("{\n" + lines + "\n}\n")


main()
