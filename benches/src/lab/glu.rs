//! The gated unit with SiLU. Bytes: forward reads gate and up and writes h; backward reads gate, up and dh and writes dgate and dup.

use burn::tensor::{DType, Tensor};
use mt_config::Activation;
use mt_model::ops::lab::Implementation;
use mt_model::ops::lab::glu::{self, Glu as Functions};

use super::matrix::{Matrix, Operand};
use super::rms_norm::by_types;
use super::{Grid, Operation, Pass, Results, Work, take};

/// Rows of features.
#[derive(Debug, Clone, Copy)]
pub struct Glu {
    rows: usize,
    cols: usize,
}

impl Operation for Glu {
    type Functions = Functions;
    const NAME: &'static str = "glu";
    const LOSS: Option<(&'static str, Option<&'static str>)> = Some(("h", Some("dh")));

    fn implementations() -> Vec<Implementation<Functions>> {
        glu::implementations()
    }

    fn checked() -> Vec<Self> {
        [(3, 7), (1, 1), (65, 33), (200, 64), (7, 3000)].map(|(rows, cols)| Self { rows, cols }).into()
    }

    fn measured(grid: Grid) -> Vec<(Self, DType)> {
        let shapes: &[(usize, usize)] = match grid {
            Grid::Tiny => &[(256, 512)],
            Grid::Small => &[(2048, 5632)],
            Grid::Full => &[(2048, 1408), (2048, 5632), (4096, 14_336)],
        };
        by_types(grid, shapes).map(|((rows, cols), dtype)| (Self { rows, cols }, dtype)).collect()
    }

    fn label(&self) -> String {
        format!("{}x{}", self.rows, self.cols)
    }

    fn operands(&self) -> Vec<Operand> {
        // Beyond the middle of the sigmoid.
        let gate = Operand { scale: 6.0, ..Operand::new("gate", [self.rows, self.cols]) };
        let of = |name| Operand::new(name, [self.rows, self.cols]);
        vec![gate, of("up"), of("dh")]
    }

    fn passes(_functions: &Functions) -> Vec<Pass> {
        vec![Pass::Forward, Pass::Backward]
    }

    fn run(&self, pass: Pass, functions: &Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>> {
        let [gate, up, dh] = take(operands);
        if pass == Pass::Forward {
            return vec![("h", (functions.forward)(gate, up, Activation::Silu))];
        }
        let (dgate, dup) = (functions.backward)(gate, up, Activation::Silu, dh);
        vec![("dgate", dgate), ("dup", dup)]
    }

    fn reference(&self, operands: &[Matrix]) -> Results<Matrix> {
        let [gate, up, dh] = operands else { panic!("three operands") };
        let s = |x: f64| 1.0 / (1.0 + (-x).exp());
        let each = |f: &dyn Fn(f64, f64, f64) -> f64| {
            Matrix::new(gate.dims, |i, j| f(gate.at(i, j), up.at(i, j), dh.at(i, j)))
        };
        vec![
            ("h", each(&|x, up, _| x * s(x) * up)),
            ("dgate", each(&|x, up, dh| dh * up * s(x) * (1.0 + x * (1.0 - s(x))))),
            ("dup", each(&|x, _, dh| dh * x * s(x))),
        ]
    }

    fn work(&self, pass: Pass, dtype: DType) -> Work {
        let elements = (self.rows * self.cols) as f64;
        let (flops, passes) = if pass == Pass::Forward { (6.0, 3.0) } else { (12.0, 5.0) };
        Work { flops: flops * elements, bytes: passes * elements * dtype.size() as f64 }
    }
}
