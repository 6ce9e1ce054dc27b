//! Head, loss and both gradients. FLOPs: three products, `6 T E V`. Bytes: h and w read, dh and dw written; no logits.

use burn::tensor::{DType, Device, Tensor};
use mt_model::ops::cross_entropy::{Head, Spec};
use mt_model::ops::lab::Implementation;
use mt_model::ops::lab::cross_entropy::{self, CrossEntropy as Functions};

use super::matrix::{Matrix, Operand, dot};
use super::rms_norm::by_types;
use super::{Grid, Operation, Pass, Results, Work, take};

/// Tokens of hidden states before a vocabulary; every fifth token doesn't count.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy {
    tokens: usize,
    emb: usize,
    vocab: usize,
    spec: Spec,
}

impl CrossEntropy {
    fn new((tokens, emb, vocab): (usize, usize, usize)) -> Self {
        let spec = Spec {
            z_loss_multiplier: 1e-3,
            soft_cap: None,
            logits_scale: 1.0,
            dot_in_fp32: false,
            cast_fp32: true,
            tiling: 1,
        };
        Self { tokens, emb, vocab, spec }
    }

    fn target(&self, token: usize) -> usize {
        token * 7919 % self.vocab
    }

    fn weight(token: usize) -> f64 {
        if token % 5 == 4 { 0.0 } else { 1.0 }
    }

    /// The call that a pass is, its targets and weights on the device already.
    fn call(
        &self,
        functions: Functions,
        device: &Device,
    ) -> impl Fn(Tensor<2>, Tensor<2>) -> Results<Tensor<2>> + use<> {
        let targets: Vec<i32> = (0..self.tokens).map(|token| self.target(token) as i32).collect();
        let weights: Vec<f32> = (0..self.tokens).map(|token| Self::weight(token) as f32).collect();
        let targets = Tensor::from_ints(targets.as_slice(), device);
        let weights = Tensor::from_data(weights.as_slice(), (device, DType::F32));
        let (spec, device) = (self.spec, device.clone());
        move |h, w| {
            let got = functions(h, Head::Dense(w), &targets, &weights, 1.0, &spec);
            let loss = Tensor::from_data([[got.xent_sum as f32]], (&device, DType::F32));
            vec![("loss", loss), ("dh", got.dh), ("dw", got.dw)]
        }
    }
}

impl Operation for CrossEntropy {
    type Functions = Functions;
    const NAME: &'static str = "cross_entropy";
    const LOSS: Option<(&'static str, Option<&'static str>)> = Some(("loss", None));
    const FLOAT32: &'static [&'static str] = &["loss", "dw"];

    fn implementations() -> Vec<Implementation<Functions>> {
        cross_entropy::implementations()
    }

    fn checked() -> Vec<Self> {
        let case = |shape| Self::new(shape);
        let capped = |cap, shape| {
            let case = Self::new(shape);
            Self { spec: Spec { soft_cap: Some(cap), tiling: 3, ..case.spec }, ..case }
        };
        let cases =
            [case((3, 4, 5)), capped(3.0, (7, 8, 9)), case((64, 32, 300)), capped(5.0, (45, 17, 1000))];
        // Narrow types: the product of rounded operands in float32, so that the definition holds; MaxText's rounding of the
        // logits is for `tests/ops`.
        cases.map(|case| Self { spec: Spec { dot_in_fp32: true, ..case.spec }, ..case }).into()
    }

    fn measured(grid: Grid) -> Vec<(Self, DType)> {
        let shapes: &[(usize, usize, usize)] = match grid {
            Grid::Tiny => &[(64, 64, 500)],
            Grid::Small => &[(512, 512, 32_000)],
            Grid::Full => &[(2048, 512, 32_000), (2048, 2048, 32_000), (2048, 4096, 128_256)],
        };
        by_types(grid, shapes).map(|(shape, dtype)| (Self::new(shape), dtype)).collect()
    }

    fn label(&self) -> String {
        format!("t{}_e{}_v{}", self.tokens, self.emb, self.vocab)
    }

    fn operands(&self) -> Vec<Operand> {
        let scale = 3.0 / (self.emb as f64).sqrt();
        let w = Operand { scale, ..Operand::new("w", [self.emb, self.vocab]) };
        vec![Operand::new("h", [self.tokens, self.emb]), w]
    }

    fn passes(_functions: &Functions) -> Vec<Pass> {
        vec![Pass::Both]
    }

    fn run(&self, _pass: Pass, functions: &Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>> {
        let [h, w] = take(operands);
        self.call(*functions, &h.device())(h, w)
    }

    fn prepare(self, _pass: Pass, functions: Functions, operands: Vec<Tensor<2>>) -> Box<dyn FnMut()> {
        let [h, w] = take(operands);
        let call = self.call(functions, &h.device());
        Box::new(move || drop(std::hint::black_box(call(h.clone(), w.clone()))))
    }

    fn reference(&self, operands: &[Matrix]) -> Results<Matrix> {
        let [h, w] = operands else { panic!("two operands") };
        let columns = Matrix::new([self.vocab, self.emb], |v, e| w.at(e, v));
        let m = self.spec.z_loss_multiplier;
        let (mut loss, mut da) = (0.0, Matrix::zeros([self.tokens, self.vocab]));
        for t in 0..self.tokens {
            let cap = self.spec.soft_cap;
            let logits: Vec<f64> = (0..self.vocab)
                .map(|v| dot(h.row(t), columns.row(v)))
                .map(|a| cap.map_or(a, |cap| cap * (a / cap).tanh()))
                .collect();
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let z = max + logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln();
            loss += Self::weight(t) * (z - logits[self.target(t)] + m * z * z);
            for (v, l) in logits.iter().enumerate() {
                let target = if v == self.target(t) { 1.0 } else { 0.0 };
                let slope = cap.map_or(1.0, |cap| 1.0 - (l / cap).powi(2));
                let dl = (1.0 + 2.0 * m * z) * (l - z).exp() - target;
                da.data[t * self.vocab + v] = Self::weight(t) * dl * slope;
            }
        }
        let dh = Matrix::new(h.dims, |t, e| dot(da.row(t), w.row(e)));
        let dw = Matrix::new(w.dims, |e, v| (0..self.tokens).map(|t| h.at(t, e) * da.at(t, v)).sum());
        vec![("loss", Matrix::new([1, 1], |_, _| loss)), ("dh", dh), ("dw", dw)]
    }

    fn work(&self, _pass: Pass, dtype: DType) -> Work {
        let [hidden, head] = [self.tokens * self.emb, self.emb * self.vocab].map(|n| n as f64);
        let size = dtype.size() as f64;
        Work { flops: 6.0 * hidden * self.vocab as f64, bytes: 2.0 * size * hidden + (size + 4.0) * head }
    }
}
