//! Attention of one new token over a cache. FLOPs: `4 L Hq D` over L visible positions. Bytes: the stored keys and values, with their
//! scales, once; query and output are small beside them.

use burn::tensor::{DType, Tensor};
use mt_model::ops::attention::Spec;
use mt_model::ops::decode_attention::{Shape, Slot, Storage};
use mt_model::ops::lab::Implementation;
use mt_model::ops::lab::decode_attention::{self, Attend, DecodeAttention as Functions};

use super::attention::Attention;
use super::matrix::{Matrix, Operand};
use super::{Grid, Operation, Pass, Results, Work, take};

/// The last position of a sequence attends to all.
#[derive(Debug, Clone, Copy)]
pub struct DecodeAttention {
    heads: [usize; 3],
    length: usize,
    /// int8 with a scale per head (`true`) or position; the compute type otherwise.
    int8: Option<bool>,
}

impl DecodeAttention {
    fn spec(&self) -> Spec {
        Attention::new(self.heads, 1, &[1]).spec
    }

    fn attend(&self, functions: Functions, k: Tensor<2>, v: Tensor<2>, dtype: DType) -> Attend {
        let [_, num_kv_heads, head_dim] = self.heads;
        let shape = Shape { sequences: 1, capacity: self.length, num_kv_heads, head_dim };
        let storage = self.int8.map_or(Storage::Float(dtype), |per_head| Storage::Int8 { per_head });
        functions(shape, storage, [k, v], &self.slots())
    }

    fn slots(&self) -> Vec<Slot> {
        (0..self.length).map(|position| Slot { sequence: 0, position }).collect()
    }

    /// What a cache in int8 gives back for `x`.
    fn stored(&self, x: &Matrix) -> Matrix {
        let Some(per_head) = self.int8 else { return x.clone() };
        let width = if per_head { self.heads[2] } else { x.dims[1] };
        Matrix::new(x.dims, |t, i| {
            let group = &x.row(t)[i / width * width..][..width];
            let scale = group.iter().fold(0.0f64, |scale, x| scale.max(x.abs()));
            let quantized = (x.at(t, i) * 127.5 / scale).round_ties_even().clamp(-128.0, 127.0);
            quantized * scale / 127.5
        })
    }
}

impl Operation for DecodeAttention {
    type Functions = Functions;
    const NAME: &'static str = "decode_attention";
    const LOSS: Option<(&'static str, Option<&'static str>)> = None;

    fn implementations() -> Vec<Implementation<Functions>> {
        decode_attention::implementations()
    }

    fn checked() -> Vec<Self> {
        let cases = [([1, 1, 16], 1), ([4, 2, 32], 65), ([8, 2, 64], 300), ([3, 1, 18], 40)];
        let stored = [None, Some(true), Some(false)];
        cases
            .into_iter()
            .flat_map(|(heads, length)| stored.map(|int8| Self { heads, length, int8 }))
            .collect()
    }

    fn measured(grid: Grid) -> Vec<(Self, DType)> {
        let lengths: &[usize] = match grid {
            Grid::Tiny => &[256],
            Grid::Small => &[16_384],
            Grid::Full => &[2048, 16_384, 131_072],
        };
        let stored =
            [(None, DType::F32), (None, DType::BF16), (Some(true), DType::BF16), (Some(false), DType::BF16)];
        let case = |length| move |(int8, dtype)| (Self { heads: [32, 8, 128], length, int8 }, dtype);
        lengths.iter().flat_map(|&length| stored.map(case(length))).collect()
    }

    fn label(&self) -> String {
        let [heads, kv_heads, head_dim] = self.heads;
        let stored = match self.int8 {
            None => "float",
            Some(true) => "int8-dkv",
            Some(false) => "int8-heads_and_dkv",
        };
        format!("h{heads}-{kv_heads}_d{head_dim}_{}_{stored}", self.length)
    }

    fn operands(&self) -> Vec<Operand> {
        let [heads, kv_heads, head_dim] = self.heads;
        let q = Operand::new("q", [1, heads * head_dim]);
        let of = |name| Operand::new(name, [self.length, kv_heads * head_dim]);
        vec![Operand { scale: 4.0 / (head_dim as f64).sqrt(), ..q }, of("k"), of("v")]
    }

    fn passes(_functions: &Functions) -> Vec<Pass> {
        vec![Pass::Forward]
    }

    fn run(&self, _pass: Pass, functions: &Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>> {
        let [q, k, v] = take(operands);
        let dtype = q.dtype();
        let attend = self.attend(*functions, k, v, dtype);
        vec![("out", attend(q, &self.slots()[self.length - 1..], &self.spec()))]
    }

    fn prepare(self, _pass: Pass, functions: Functions, operands: Vec<Tensor<2>>) -> Box<dyn FnMut()> {
        let [q, k, v] = take(operands);
        let dtype = q.dtype();
        let attend = self.attend(functions, k, v, dtype);
        let (slots, spec) = (self.slots(), self.spec());
        Box::new(move || drop(std::hint::black_box(attend(q.clone(), &slots[self.length - 1..], &spec))))
    }

    /// The last row of attention over all positions.
    fn reference(&self, operands: &[Matrix]) -> Results<Matrix> {
        let [q, k, v] = operands else { panic!("three operands") };
        let whole = Attention::new(self.heads, 1, &[self.length]);
        let queries = Matrix::new([self.length, q.dims[1]], |_, i| q.at(0, i));
        let dout = Matrix::zeros(queries.dims);
        let results = whole.reference(&[queries, self.stored(k), self.stored(v), dout]);
        let out = &results[0].1;
        vec![("out", Matrix::new(q.dims, |_, i| out.at(self.length - 1, i)))]
    }

    fn tolerance(&self, dtype: DType) -> f64 {
        match (self.int8, dtype) {
            (None, DType::F32) => 1e-5,
            // The scale is rounded to bfloat16.
            (Some(_), DType::F32) => 2.0f64.powi(-7),
            (None, _) => 2.0f64.powi(-7),
            // So is the quotient, which may then be a step of int8 away.
            (Some(_), _) => 2.0f64.powi(-6),
        }
    }

    fn work(&self, _pass: Pass, dtype: DType) -> Work {
        let [heads, kv_heads, head_dim] = self.heads;
        let values = (2 * self.length * kv_heads * head_dim) as f64;
        let scales = |per_head: bool| 2 * 2 * self.length * if per_head { kv_heads } else { 1 };
        let bytes = match self.int8 {
            Some(per_head) => values + scales(per_head) as f64,
            None => values * dtype.size() as f64,
        };
        Work { flops: (4 * self.length * heads * head_dim) as f64, bytes }
    }
}
