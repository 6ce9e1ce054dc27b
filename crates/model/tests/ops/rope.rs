use burn::tensor::{Int, Tensor};
use mt_config::Rope;
use mt_model::ops::rope::{self, Direction, Table};

use crate::common::*;

const SPLIT: Rope = Rope {
    interleaved: false,
    llama31_scaling: false,
    min_timescale: 1.0,
    max_timescale: 500_000.0,
    linear_scaling_factor: 1.0,
};
const LLAMA31: Rope = Rope { interleaved: true, llama31_scaling: true, ..SPLIT };

/// As the formulas of Llama 3.1 are usually written, over wavelengths.
fn frequency(rope: &Rope, i: usize, head_dim: usize) -> f64 {
    let share = 2.0 * i as f64 / head_dim as f64;
    let timescale = rope.min_timescale
        * (rope.max_timescale / rope.min_timescale).powf(share)
        * rope.linear_scaling_factor;
    let frequency = 1.0 / timescale;
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    if !rope.llama31_scaling || wavelength < 8192.0 / 4.0 {
        frequency
    } else if wavelength > 8192.0 {
        frequency / 8.0
    } else {
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        (1.0 - smooth) * frequency / 8.0 + smooth * frequency
    }
}

fn reference(x: &Matrix, positions: &[i64], rope: &Rope, d: usize) -> Matrix {
    let pair = |j: usize| match rope.interleaved {
        true => (j / 2, j ^ 1, j % 2 == 1),
        false => (j % (d / 2), (j + d / 2) % d, j >= d / 2),
    };
    Matrix::new(x.rows, x.cols, |t, f| {
        let (head, j) = (f / d, f % d);
        let (i, partner, second) = pair(j);
        let angle = positions[t] as f64 * frequency(rope, i, d);
        let sign = if second { 1.0 } else { -1.0 };
        x.at(t, f) * angle.cos() + sign * x.at(t, head * d + partner) * angle.sin()
    })
}

fn tensor(positions: &[i64]) -> Tensor<1, Int> {
    let positions: Vec<i32> = positions.iter().map(|&p| p as i32).collect();
    Tensor::from_ints(positions.as_slice(), &device())
}

fn apply(x: &Matrix, positions: &[i64], rope: &Rope, d: usize, direction: Direction) -> Matrix {
    let table = Table::new(rope, d, 4096, &device());
    Matrix::of(rope::apply(x.f32(), &tensor(positions), &table, d, direction))
}

#[test]
fn matches_float64_and_the_plain_composition() {
    let mut random = Random::new(1);
    let stretched = Rope { linear_scaling_factor: 4.0, ..SPLIT };
    for rope in [SPLIT, LLAMA31, stretched] {
        for (tokens, heads, d) in [(1, 1, 2), (9, 3, 6), (70, 2, 64)] {
            let x = random.matrix(tokens, heads * d);
            let positions: Vec<i64> = (0..tokens).map(|_| random.below(4096) as i64).collect();
            let y = apply(&x, &positions, &rope, d, Direction::Forward);
            assert_close("y", &y, &reference(&x, &positions, &rope, d), 2e-6);

            let table = Table::new(&rope, d, 4096, &device());
            for direction in [Direction::Forward, Direction::Inverse] {
                let plain = rope::apply(x.tracked(), &tensor(&positions), &table, d, direction);
                assert_close(
                    "plain",
                    &apply(&x, &positions, &rope, d, direction),
                    &Matrix::of(plain.inner()),
                    1e-6,
                );
            }
        }
    }
}

#[test]
fn inverse_is_the_gradient() {
    let mut random = Random::new(2);
    for rope in [SPLIT, LLAMA31] {
        let (x, dy) = (random.matrix(8, 32), random.matrix(8, 32));
        let positions: Vec<i64> = (0..8).map(|_| random.below(300) as i64).collect();
        let dx = apply(&dy, &positions, &rope, 16, Direction::Inverse);
        assert_gradient("dx", &x, &dx, 1e-5, |x| reference(x, &positions, &rope, 16).dot(&dy));

        let table = Table::new(&rope, 16, 4096, &device());
        let tx = x.tracked();
        let y = rope::apply(tx.clone(), &tensor(&positions), &table, 16, Direction::Forward);
        let grads = (y * dy.tracked()).sum().backward();
        assert_close("dx", &dx, &Matrix::of(tx.grad(&grads).unwrap()), 1e-5);

        let back = apply(
            &apply(&x, &positions, &rope, 16, Direction::Forward),
            &positions,
            &rope,
            16,
            Direction::Inverse,
        );
        assert_close("there and back", &back, &x, 1e-6);
    }
}

/// One rounding of the result: angles and arithmetic are float32.
#[test]
fn bfloat16_rounds_once() {
    if !bfloat16() {
        return;
    }
    let mut random = Random::new(3);
    let x = random.matrix_bf16(20, 64);
    let positions: Vec<i64> = (0..20).map(|t| t * 31).collect();
    for rope in [SPLIT, LLAMA31] {
        let table = Table::new(&rope, 32, 1024, &device());
        let y = rope::apply(x.bf16(), &tensor(&positions), &table, 32, Direction::Forward);
        assert_close("y", &Matrix::of(y), &reference(&x, &positions, &rope, 32), BF16 + 1e-5);
    }
}

#[test]
fn threads_do_not_change_results_and_bad_positions_are_loud() {
    let mut random = Random::new(4);
    let x = random.matrix(333, 48);
    let positions: Vec<i64> = (0..333).collect();
    let table = Table::new(&SPLIT, 16, 333, &device());
    assert_thread_independent("rope", || {
        vec![rope::apply(x.f32(), &tensor(&positions), &table, 16, Direction::Forward)]
    });
    let x = random.matrix(3, 16);
    let y = Matrix::of(rope::apply(x.f32(), &tensor(&[1, 333, -1]), &table, 16, Direction::Forward));
    assert!(y.row(0).iter().all(|v| v.is_finite()));
    assert!(y.data[16..].iter().all(|v| v.is_nan()));
}
