//! RMSNorm. Bytes: forward reads x and writes y, backward reads x and dy and writes dx; the scale is small beside them.

use burn::tensor::{DType, Tensor};
use mt_model::ops::lab::Implementation;
use mt_model::ops::lab::rms_norm::{self, RmsNorm as Functions};

use super::matrix::{Matrix, Operand, dot};
use super::{Grid, Operation, Pass, Results, Work, take};

const EPS: f64 = 1e-5;

/// Rows of features.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm {
    rows: usize,
    cols: usize,
}

impl Operation for RmsNorm {
    type Functions = Functions;
    const NAME: &'static str = "rms_norm";
    const LOSS: Option<(&'static str, Option<&'static str>)> = Some(("y", Some("dy")));
    const FLOAT32: &'static [&'static str] = &["dscale"];

    fn implementations() -> Vec<Implementation<Functions>> {
        rms_norm::implementations()
    }

    fn checked() -> Vec<Self> {
        [(3, 7), (1, 1), (65, 33), (200, 64), (130, 300)].map(|(rows, cols)| Self { rows, cols }).into()
    }

    fn measured(grid: Grid) -> Vec<(Self, DType)> {
        let shapes: &[(usize, usize)] = match grid {
            Grid::Tiny => &[(256, 512)],
            Grid::Small => &[(4096, 2048)],
            Grid::Full => &[(4096, 512), (4096, 2048), (4096, 4096), (8192, 8192), (131_072, 128)],
        };
        by_types(grid, shapes).map(|((rows, cols), dtype)| (Self { rows, cols }, dtype)).collect()
    }

    fn label(&self) -> String {
        format!("{}x{}", self.rows, self.cols)
    }

    fn operands(&self) -> Vec<Operand> {
        let Self { rows, cols } = *self;
        vec![
            Operand::new("x", [rows, cols]),
            Operand::new("scale", [1, cols]),
            Operand::new("dy", [rows, cols]),
        ]
    }

    fn passes(_functions: &Functions) -> Vec<Pass> {
        vec![Pass::Forward, Pass::Backward]
    }

    fn run(&self, pass: Pass, functions: &Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>> {
        let [x, scale, dy] = take(operands);
        if pass == Pass::Forward {
            return vec![("y", (functions.forward)(x, scale, EPS))];
        }
        let (dx, dscale) = (functions.backward)(x, scale, EPS, dy);
        vec![("dx", dx), ("dscale", dscale)]
    }

    fn reference(&self, operands: &[Matrix]) -> Results<Matrix> {
        let [x, scale, dy] = operands else { panic!("three operands") };
        let n = Matrix::new(x.dims, |i, j| {
            x.at(i, j) / (dot(x.row(i), x.row(i)) / self.cols as f64 + EPS).sqrt()
        });
        let g = Matrix::new(x.dims, |i, j| dy.at(i, j) * scale.at(0, j));
        let dx = Matrix::new(x.dims, |i, j| {
            let r = 1.0 / (dot(x.row(i), x.row(i)) / self.cols as f64 + EPS).sqrt();
            (g.at(i, j) - n.at(i, j) * dot(g.row(i), n.row(i)) / self.cols as f64) * r
        });
        let dscale =
            Matrix::new([1, self.cols], |_, j| (0..self.rows).map(|i| dy.at(i, j) * n.at(i, j)).sum());
        vec![("y", Matrix::new(x.dims, |i, j| n.at(i, j) * scale.at(0, j))), ("dx", dx), ("dscale", dscale)]
    }

    fn work(&self, pass: Pass, dtype: DType) -> Work {
        let elements = (self.rows * self.cols) as f64;
        let (flops, passes) = if pass == Pass::Forward { (4.0, 2.0) } else { (11.0, 3.0) };
        Work { flops: flops * elements, bytes: passes * elements * dtype.size() as f64 }
    }
}

/// Every shape in float32 and, beyond the tiny grid, in bfloat16.
pub(super) fn by_types<S: Copy>(grid: Grid, shapes: &[S]) -> impl Iterator<Item = (S, DType)> {
    let types: &[DType] = if grid == Grid::Tiny { &[DType::F32] } else { &[DType::F32, DType::BF16] };
    shapes.iter().flat_map(move |&shape| types.iter().map(move |&dtype| (shape, dtype)))
}
