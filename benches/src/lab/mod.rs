//! The lab: every implementation of an operation (`mt_model::ops::lab`) is checked against float64 by `tests/kernels.rs` and
//! measured by `benches/kernels.rs`, on every device of the machine.
//!
//! What an operation is, is stated once, as an [`Operation`] in a file of its own: shapes, a reference in float64, the FLOPs and bytes
//! that its definition needs. docs/kernels.md, "Adding a kernel", is the way in.

pub mod adamw;
pub mod attention;
pub mod check;
pub mod cross_entropy;
pub mod decode_attention;
pub mod glu;
pub mod matrix;
pub mod rms_norm;
pub mod rope;

use burn::tensor::{DType, Tensor};
use mt_model::ops::lab::Implementation;

use self::matrix::{Matrix, Operand};

/// What is run, checked or timed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The forward pass, or the operation where it has but one.
    Forward,
    /// The backward pass alone.
    Backward,
    /// Forward and backward.
    Both,
}

impl Pass {
    /// In names of cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Both => "both",
        }
    }
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grid {
    /// For devices that are emulated on the CPU: that it runs.
    Tiny,
    /// What is worth watching; minutes on two cores.
    Small,
    /// Everything.
    Full,
}

/// The least that a pass has to do by its definition, whoever computes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Additions, multiplications, and one for each exponential, root or division.
    pub flops: f64,
    /// Every operand read once, every result written once.
    pub bytes: f64,
}

/// Results by name: `y`, and `dx` for the gradient of the operand `x`.
pub type Results<T> = Vec<(&'static str, T)>;

/// An operation on one shape.
pub trait Operation: Sized + Send + Sync {
    /// What an implementation consists of.
    type Functions: Copy + Send + Sync + 'static;
    /// As in `ops/`.
    const NAME: &'static str;
    /// The result whose gradient is known, and the operand that is this gradient (none for a loss). `None` without a backward pass.
    const LOSS: Option<(&'static str, Option<&'static str>)>;
    /// Results that are float32 whatever the operands are.
    const FLOAT32: &'static [&'static str] = &[];

    /// All that there are.
    fn implementations() -> Vec<Implementation<Self::Functions>>;

    /// Small shapes with odd edges, for checks.
    fn checked() -> Vec<Self>;

    /// Shapes and types to measure.
    fn measured(grid: Grid) -> Vec<(Self, DType)>;

    /// The shape in a few letters, digits and `-`, `_`.
    fn label(&self) -> String;

    /// Float operands.
    fn operands(&self) -> Vec<Operand>;

    /// The definition in float64: all results of all passes.
    fn reference(&self, operands: &[Matrix]) -> Results<Matrix>;

    /// What these functions can do.
    fn passes(functions: &Self::Functions) -> Vec<Pass>;

    /// One pass by an implementation.
    fn run(&self, pass: Pass, functions: &Self::Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>>;

    /// Bound on a result's error, relative to the result's largest value (or to 1, if that is more).
    fn tolerance(&self, dtype: DType) -> f64 {
        match dtype {
            DType::BF16 => 2.0f64.powi(-7),
            DType::F16 => 2.0f64.powi(-10),
            _ => 1e-5,
        }
    }

    /// What must hold beside the values; `run` gives the results of some operands.
    fn invariants(
        &self,
        _operands: &[Matrix],
        _run: &dyn Fn(&[Matrix]) -> Results<Matrix>,
    ) -> Result<(), String> {
        Ok(())
    }

    /// The call that is timed. Operations that work in place keep what they were given.
    fn prepare(self, pass: Pass, functions: Self::Functions, operands: Vec<Tensor<2>>) -> Box<dyn FnMut()>
    where
        Self: 'static,
    {
        Box::new(move || drop(std::hint::black_box(self.run(pass, &functions, operands.clone()))))
    }

    /// What a pass has to do.
    fn work(&self, pass: Pass, dtype: DType) -> Work;
}

/// Takes apart operands that were made from [`Operation::operands`].
fn take<T, const N: usize>(operands: Vec<T>) -> [T; N] {
    operands.try_into().unwrap_or_else(|wrong: Vec<T>| panic!("{} operands, expected {N}", wrong.len()))
}
