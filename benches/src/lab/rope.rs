//! Rotary embedding of packed rows, half-split, in place. Bytes: x is read and written; sines and cosines are small beside it, since all
//! heads share them.

use burn::tensor::{DType, Int, Tensor};
use mt_config::Rope as Angles;
use mt_model::ops::lab::Implementation;
use mt_model::ops::lab::rope::{self, Rope as Functions};
use mt_model::ops::rope::{Direction, Table};

use super::matrix::{Matrix, Operand};
use super::rms_norm::by_types;
use super::{Grid, Operation, Pass, Results, Work, take};

const ANGLES: Angles = Angles {
    interleaved: false,
    llama31_scaling: false,
    min_timescale: 1.0,
    max_timescale: 10_000.0,
    linear_scaling_factor: 1.0,
};

/// Tokens by heads; two documents, the second starts at the middle.
#[derive(Debug, Clone, Copy)]
pub struct Rope {
    tokens: usize,
    heads: usize,
    head_dim: usize,
}

impl Rope {
    fn position(&self, token: usize) -> usize {
        token % self.tokens.div_ceil(2)
    }

    /// Rotates every pair by `sign` times its angle.
    fn rotated(&self, x: &Matrix, sign: f64) -> Matrix {
        let half = self.head_dim / 2;
        Matrix::new(x.dims, |t, column| {
            let (first, i) = (column / self.head_dim * self.head_dim, column % half);
            let timescale = ANGLES.max_timescale.powf(2.0 * i as f64 / self.head_dim as f64);
            let (sin, cos) = (sign * self.position(t) as f64 / timescale).sin_cos();
            let (a, b) = (x.at(t, first + i), x.at(t, first + half + i));
            if column % self.head_dim < half { a * cos - b * sin } else { b * cos + a * sin }
        })
    }

    fn tables(&self, like: &Tensor<2>) -> (Table, Tensor<1, Int>) {
        let positions: Vec<i32> = (0..self.tokens).map(|token| self.position(token) as i32).collect();
        let table = Table::new(&ANGLES, self.head_dim, self.tokens.div_ceil(2), &like.device());
        (table, Tensor::from_ints(positions.as_slice(), &like.device()))
    }
}

impl Operation for Rope {
    type Functions = Functions;
    const NAME: &'static str = "rope";
    const LOSS: Option<(&'static str, Option<&'static str>)> = Some(("y", Some("dy")));

    fn implementations() -> Vec<Implementation<Functions>> {
        rope::implementations()
    }

    fn checked() -> Vec<Self> {
        [(1, 1, 2), (9, 2, 6), (65, 3, 16), (40, 1, 128)]
            .map(|(tokens, heads, head_dim)| Self { tokens, heads, head_dim })
            .into()
    }

    fn measured(grid: Grid) -> Vec<(Self, DType)> {
        let shapes: &[(usize, usize, usize)] = match grid {
            Grid::Tiny => &[(256, 4, 64)],
            Grid::Small => &[(4096, 32, 64)],
            Grid::Full => &[(4096, 8, 64), (4096, 32, 64), (4096, 32, 128), (8192, 64, 128)],
        };
        by_types(grid, shapes)
            .map(|((tokens, heads, head_dim), dtype)| (Self { tokens, heads, head_dim }, dtype))
            .collect()
    }

    fn label(&self) -> String {
        format!("{}x{}x{}", self.tokens, self.heads, self.head_dim)
    }

    fn operands(&self) -> Vec<Operand> {
        ["x", "dy"].map(|name| Operand::new(name, [self.tokens, self.heads * self.head_dim])).into()
    }

    fn passes(_functions: &Functions) -> Vec<Pass> {
        vec![Pass::Forward, Pass::Backward]
    }

    fn run(&self, pass: Pass, functions: &Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>> {
        let [x, dy] = take(operands);
        let (table, positions) = self.tables(&x);
        match pass {
            Pass::Forward => {
                vec![("y", functions(x, &positions, &table, self.head_dim, Direction::Forward))]
            }
            _ => vec![("dx", functions(dy, &positions, &table, self.head_dim, Direction::Inverse))],
        }
    }

    fn prepare(self, pass: Pass, functions: Functions, operands: Vec<Tensor<2>>) -> Box<dyn FnMut()> {
        let [x, _] = take(operands);
        let (table, positions) = self.tables(&x);
        let direction = if pass == Pass::Forward { Direction::Forward } else { Direction::Inverse };
        let mut held = Some(x);
        Box::new(move || {
            let x = held.take().expect("put back by every call");
            held = Some(functions(x, &positions, &table, self.head_dim, direction));
        })
    }

    fn reference(&self, operands: &[Matrix]) -> Results<Matrix> {
        vec![("y", self.rotated(&operands[0], 1.0)), ("dx", self.rotated(&operands[1], -1.0))]
    }

    fn work(&self, _pass: Pass, dtype: DType) -> Work {
        let elements = (self.tokens * self.heads * self.head_dim) as f64;
        Work { flops: 3.0 * elements, bytes: 2.0 * elements * dtype.size() as f64 }
    }
}
