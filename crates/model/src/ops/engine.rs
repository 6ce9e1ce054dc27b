//! Where a tensor lives, and a CPU tensor's values as slices, without copies.
//!
//! An operation asks `placed` where its operands are and runs `cpu.rs`, `cube.rs` or `plain.rs` accordingly.

use std::borrow::Cow;

use burn::backend::{BackendTensor, DispatchTensorKind};
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_flex::{FlexTensor, Layout};
use rayon::prelude::*;

use super::gemm::Elements;
use super::memory::Buffer;
use super::real::Real;
use super::vector::vectorized;

/// Elements that one task takes where each is handled on its own.
pub(crate) const BLOCK: usize = 1 << 14;

/// A float32 or bfloat16 matrix in main memory, contiguous by rows, alone in its storage.
pub(crate) struct Host {
    tensor: FlexTensor,
}

/// Operands, by where all of them live.
pub(crate) enum Placed<const N: usize> {
    /// In main memory.
    Host([Host; N]),
    /// On one GPU.
    #[cfg(feature = "gpu")]
    Cube([burn_cubecl::tensor::CubeTensor; N]),
    /// Elsewhere: on several devices, under autodiff, of another element type.
    Other([Tensor<2>; N]),
}

/// Takes the tensors as what the implementation for their device works on.
pub(crate) fn placed<const N: usize>(tensors: [Tensor<2>; N]) -> Placed<N> {
    let tensors = match hosts(tensors) {
        Ok(hosts) => return Placed::Host(hosts),
        Err(tensors) => tensors,
    };
    #[cfg(feature = "gpu")]
    let tensors = match super::cube::cubes(tensors) {
        Ok(cubes) => return Placed::Cube(cubes),
        Err(tensors) => tensors,
    };
    Placed::Other(tensors)
}

/// Takes the tensors as CPU matrices when all of them are; hands them back unchanged when one is on another device, under
/// autodiff or of another element type: then the plain composition runs.
pub(crate) fn hosts<const N: usize>(tensors: [Tensor<2>; N]) -> Result<[Host; N], [Tensor<2>; N]> {
    match tensors.iter().all(is_host) {
        true => Ok(tensors.map(Host::take)),
        false => Err(tensors),
    }
}

fn is_host(tensor: &Tensor<2>) -> bool {
    let kind = tensor.clone().into_dispatch().kind;
    matches!(kind, DispatchTensorKind::Flex(BackendTensor::Float(t)) if matches!(t.dtype(), DType::F32 | DType::BF16))
}

/// Runs `$body` with the type alias `$E` standing for the element type that `$dtype` names.
macro_rules! by_dtype {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            burn::tensor::DType::BF16 => {
                type $E = half::bf16;
                $body
            }
            _ => {
                type $E = f32;
                $body
            }
        }
    };
}
pub(crate) use by_dtype;

impl Host {
    fn take(tensor: Tensor<2>) -> Self {
        let DispatchTensorKind::Flex(BackendTensor::Float(tensor)) = tensor.into_dispatch().kind else {
            unreachable!("checked by is_host");
        };
        let size = tensor.dtype().size();
        match tensor.layout().contiguous_offsets() {
            Some((0, end)) if end * size == tensor.bytes().len() => Self { tensor },
            // Rows of a larger tensor: cut out, so that storage and matrix coincide.
            Some((start, end)) => by_dtype!(tensor.dtype(), E => {
                let shape = tensor.layout().shape();
                let values: &[E] = &tensor.storage::<E>()[start..end];
                Self::new(values.to_vec(), [shape[0], shape[1]])
            }),
            None => Self { tensor: tensor.to_contiguous() },
        }
    }

    /// A matrix that owns `values`.
    pub(crate) fn new<E: Real>(values: impl Into<Buffer<E>>, [rows, cols]: [usize; 2]) -> Self {
        let values = values.into();
        assert_eq!(values.len(), rows * cols, "values of a [{rows}, {cols}] matrix");
        let layout = Layout::contiguous(Shape::new([rows, cols]));
        Self { tensor: FlexTensor::new(values.into_bytes(), layout, E::DTYPE) }
    }

    pub(crate) fn into_tensor(self) -> Tensor<2> {
        Tensor::from_primitive::<burn::backend::Flex>(self.tensor)
    }

    pub(crate) fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Rows and columns.
    pub(crate) fn dims(&self) -> [usize; 2] {
        let shape = self.tensor.layout().shape();
        [shape[0], shape[1]]
    }

    /// The values when they are stored as `E`.
    fn stored<E: Real>(&self) -> &[E] {
        self.tensor.as_slice().expect("contiguous, and asked for as the type that it is")
    }

    /// The values, borrowed when stored as `E`, converted otherwise.
    pub(crate) fn values<E: Real>(&self) -> Cow<'_, [E]> {
        match self.dtype() == E::DTYPE {
            true => Cow::Borrowed(self.stored()),
            false => Cow::Owned(self.converted::<E>().to_vec()),
        }
    }

    /// The values for writing; copied first when another tensor shares them or they are stored in another type.
    pub(crate) fn values_mut<E: Real>(&mut self) -> &mut [E] {
        if self.dtype() != E::DTYPE || !self.tensor.is_unique() {
            *self = Self::new(self.converted::<E>(), self.dims());
        }
        self.tensor.storage_mut()
    }

    /// The same values stored as `E`.
    pub(crate) fn cast<E: Real>(self) -> Self {
        match self.dtype() == E::DTYPE {
            true => self,
            false => Self::new(self.converted::<E>(), self.dims()),
        }
    }

    /// A copy stored as `E`.
    fn converted<E: Real>(&self) -> Buffer<E> {
        by_dtype!(self.dtype(), S => {
            let from = self.stored::<S>();
            let mut to = Buffer::new(from.len());
            to.par_chunks_mut(BLOCK).zip(from.par_chunks(BLOCK)).for_each(|(to, from)| convert(to, from));
            to
        })
    }

    /// The values as an operand of a product.
    pub(crate) fn elements(&self) -> Elements<'_> {
        by_dtype!(self.dtype(), E => Elements::of::<E>(self.stored()))
    }

    /// The values as an operand of a product in `dtype`: rounded to it when it is the narrower type.
    pub(crate) fn elements_as(&self, dtype: DType) -> Elements<'_> {
        match (self.elements(), dtype) {
            (Elements::F32(values), DType::BF16) => Elements::Rounded(values),
            (elements, _) => elements,
        }
    }

    /// Values of a parameter of few elements (a norm's scale, a bias), rounded to the compute type `E`, then widened.
    pub(crate) fn rounded<E: Real>(&self) -> Vec<f32> {
        self.values::<E>().iter().map(|v| v.to_f32()).collect()
    }
}

vectorized! {
    /// Rounds (or widens) element by element.
    pub(crate) fn convert<E: Real, S: Real>(to: &mut [E], from: &[S]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = E::from_f32(from.to_f32());
        }
    }
}

/// Ids, positions or targets as integers in main memory, whichever integer type the tensor carries.
pub(crate) fn integers(tensor: &Tensor<1, Int>) -> Vec<i64> {
    tensor.to_data().iter::<i64>().collect()
}
