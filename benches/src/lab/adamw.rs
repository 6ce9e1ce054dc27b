//! AdamW, in place. Bytes: parameter, gradient and both moments are read, all but the gradient written.

use burn::tensor::{DType, Tensor};
use mt_model::ops::adamw::Hyper;
use mt_model::ops::lab::Implementation;
use mt_model::ops::lab::adamw::{self, AdamW as Functions};

use super::matrix::{Matrix, Operand};
use super::rms_norm::by_types;
use super::{Grid, Operation, Pass, Results, Work, take};

/// The third step.
const HYPER: Hyper = Hyper {
    learning_rate: 3e-3,
    b1: 0.9,
    b2: 0.95,
    bias_correction1: 1.0 - 0.9 * 0.9 * 0.9,
    bias_correction2: 1.0 - 0.95 * 0.95 * 0.95,
    look_ahead: None,
    eps: 1e-8,
    eps_root: 1e-10,
    weight_decay: 0.1,
    grad_scale: 0.37,
    stochastic_rounding: None,
};

/// A parameter.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    rows: usize,
    cols: usize,
}

impl Operation for AdamW {
    type Functions = Functions;
    const NAME: &'static str = "adamw";
    const LOSS: Option<(&'static str, Option<&'static str>)> = None;

    fn implementations() -> Vec<Implementation<Functions>> {
        adamw::implementations()
    }

    fn checked() -> Vec<Self> {
        [(1, 3), (130, 257), (7, 130)].map(|(rows, cols)| Self { rows, cols }).into()
    }

    fn measured(grid: Grid) -> Vec<(Self, DType)> {
        let shapes: &[(usize, usize)] = match grid {
            Grid::Tiny => &[(256, 512)],
            Grid::Small => &[(2048, 2048)],
            Grid::Full => &[(512, 1408), (2048, 2048), (4096, 14_336)],
        };
        by_types(grid, shapes).map(|((rows, cols), dtype)| (Self { rows, cols }, dtype)).collect()
    }

    fn label(&self) -> String {
        format!("{}x{}", self.rows, self.cols)
    }

    fn operands(&self) -> Vec<Operand> {
        let of = |name| Operand::new(name, [self.rows, self.cols]);
        vec![of("param"), of("grad"), of("mu"), Operand { positive: true, ..of("nu") }]
    }

    fn passes(_functions: &Functions) -> Vec<Pass> {
        vec![Pass::Forward]
    }

    fn run(&self, _pass: Pass, functions: &Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>> {
        ["param", "mu", "nu"].into_iter().zip(functions(take(operands), &HYPER)).collect()
    }

    fn prepare(self, _pass: Pass, functions: Functions, operands: Vec<Tensor<2>>) -> Box<dyn FnMut()> {
        let [param, grad, mu, nu] = take(operands);
        let mut held = Some([param, mu, nu]);
        Box::new(move || {
            let [param, mu, nu] = held.take().expect("put back by every call");
            held = Some(functions([param, grad.clone(), mu, nu], &HYPER));
        })
    }

    fn reference(&self, operands: &[Matrix]) -> Results<Matrix> {
        let [param, grad, mu, nu] = operands else { panic!("four operands") };
        let Hyper { b1, b2, .. } = HYPER;
        let each = |f: &dyn Fn(usize) -> f64| Matrix {
            dims: param.dims,
            data: (0..param.data.len()).map(f).collect(),
        };
        let g = |i: usize| grad.data[i] * HYPER.grad_scale;
        let mu = each(&|i| b1 * mu.data[i] + (1.0 - b1) * g(i));
        let nu = each(&|i| b2 * nu.data[i] + (1.0 - b2) * g(i) * g(i));
        let param = each(&|i| {
            let root = (nu.data[i] / HYPER.bias_correction2 + HYPER.eps_root).sqrt();
            let update = mu.data[i] / HYPER.bias_correction1 / (root + HYPER.eps);
            param.data[i] - HYPER.learning_rate * (update + HYPER.weight_decay * param.data[i])
        });
        vec![("param", param), ("mu", mu), ("nu", nu)]
    }

    fn work(&self, _pass: Pass, dtype: DType) -> Work {
        let elements = (self.rows * self.cols) as f64;
        Work { flops: 17.0 * elements, bytes: 7.0 * elements * dtype.size() as f64 }
    }
}
