//! Packed causal attention.
//!
//! FLOPs, causal halved: with P the (query, key) pairs that the mask lets through, `S (S + 1) / 2` for a document of S tokens,
//! `4 P Hq D` forward (two products) and `10 P Hq D` backward (five): 14 both. Bytes: q, k, v read, out and lse written; backward also reads
//! q, k, v, out, lse and dout, and writes dq, dk and dv.

use burn::tensor::{DType, Tensor};
use mt_config::AttentionKernel;
use mt_model::ops::attention::{Layout, Spec};
use mt_model::ops::lab::Implementation;
use mt_model::ops::lab::attention::{self, Attention as Functions};

use super::matrix::{Matrix, Operand, dot};
use super::{Grid, Operation, Pass, Results, Work, take};

/// A batch of rows with the same documents.
#[derive(Debug, Clone)]
pub struct Attention {
    /// Heads and options.
    pub spec: Spec,
    /// Rows.
    pub batch: usize,
    /// Lengths of a row's documents.
    pub lengths: Vec<usize>,
    layout: Layout,
}

impl Attention {
    /// Without window and cap.
    pub fn new([heads, kv_heads, head_dim]: [usize; 3], batch: usize, lengths: &[usize]) -> Self {
        let spec = Spec {
            num_query_heads: heads,
            num_kv_heads: kv_heads,
            head_dim,
            soft_cap: None,
            window: None,
            kernel: AttentionKernel::Flash,
            float32_logits: true,
            float32_qk_product: true,
        };
        let seq = lengths.iter().sum();
        let row: Vec<(i32, i32)> =
            (1..).zip(lengths).flat_map(|(id, &len)| (0..len as i32).map(move |at| (id, at))).collect();
        let (ids, positions): (Vec<i32>, Vec<i32>) = row.repeat(batch).into_iter().unzip();
        let layout = Layout::new(&ids, &positions, batch, seq);
        Self { spec, batch, lengths: lengths.to_vec(), layout }
    }

    fn with(self, window: Option<usize>, soft_cap: Option<f64>) -> Self {
        Self { spec: Spec { window, soft_cap, ..self.spec }, ..self }
    }

    /// Lengths of queries and keys in elements.
    fn elements(&self) -> [f64; 2] {
        let Spec { num_query_heads, num_kv_heads, head_dim, .. } = self.spec;
        [num_query_heads, num_kv_heads].map(|heads| (self.layout.num_tokens() * heads * head_dim) as f64)
    }
}

impl Operation for Attention {
    type Functions = Functions;
    const NAME: &'static str = "attention";
    const LOSS: Option<(&'static str, Option<&'static str>)> = Some(("out", Some("dout")));
    const FLOAT32: &'static [&'static str] = &["lse"];

    fn implementations() -> Vec<Implementation<Functions>> {
        attention::implementations()
    }

    fn checked() -> Vec<Self> {
        let mut cases = vec![
            Self::new([1, 1, 6], 1, &[4, 3]),
            Self::new([2, 1, 16], 1, &[1]),
            Self::new([6, 2, 18], 2, &[30, 1, 14]),
            Self::new([4, 1, 32], 1, &[70, 29]).with(Some(9), None),
            Self::new([2, 1, 32], 1, &[40, 25]).with(None, Some(2.0)),
            Self::new([3, 1, 20], 2, &[65]).with(Some(33), Some(5.0)),
        ];
        cases.extend([64, 80, 96, 128, 256].map(|head_dim| Self::new([2, 1, head_dim], 1, &[77])));
        cases
    }

    fn measured(grid: Grid) -> Vec<(Self, DType)> {
        let case = |head_dim, lengths: &[usize]| Self::new([8, 4, head_dim], 1, lengths);
        let f32 = |cases: Vec<Self>| cases.into_iter().map(|case| (case, DType::F32));
        match grid {
            Grid::Tiny => f32(vec![case(64, &[256]), case(64, &[64; 4])]).collect(),
            Grid::Small => {
                let cases = vec![
                    case(64, &[1024]),
                    case(64, &[4096]),
                    case(64, &[512; 8]),
                    case(64, &[8192]),
                    case(128, &[2048]),
                ];
                f32(cases).chain([(case(64, &[2048]), DType::BF16)]).collect()
            }
            Grid::Full => {
                let mut cases = Vec::new();
                for heads in [[8, 8], [8, 4], [32, 8]] {
                    for (batch, lengths) in [
                        (1, vec![1024]),
                        (4, vec![1024]),
                        (1, vec![4096]),
                        (1, vec![512; 8]),
                        (1, vec![8192]),
                        (1, vec![1024; 8]),
                    ] {
                        for head_dim in [64, 80, 96, 128, 256] {
                            for dtype in [DType::F32, DType::BF16, DType::F16] {
                                let case = Self::new([heads[0], heads[1], head_dim], batch, &lengths);
                                cases.push((case, dtype));
                            }
                        }
                    }
                }
                cases
            }
        }
    }

    fn label(&self) -> String {
        let Spec { num_query_heads, num_kv_heads, head_dim, .. } = self.spec;
        let [documents, length] = [self.lengths.len(), self.lengths[0]];
        format!("b{}_h{num_query_heads}-{num_kv_heads}_d{head_dim}_{documents}x{length}", self.batch)
    }

    fn operands(&self) -> Vec<Operand> {
        let Spec { num_query_heads, num_kv_heads, head_dim, .. } = self.spec;
        let tokens = self.layout.num_tokens();
        let of = |name, heads| Operand::new(name, [tokens, heads * head_dim]);
        // Scores of a few units, as in training.
        let q = Operand { scale: 4.0 / (head_dim as f64).sqrt(), ..of("q", num_query_heads) };
        vec![q, of("k", num_kv_heads), of("v", num_kv_heads), of("dout", num_query_heads)]
    }

    fn passes(functions: &Functions) -> Vec<Pass> {
        match functions.backward {
            Some(_) => vec![Pass::Forward, Pass::Both],
            None => vec![Pass::Forward],
        }
    }

    fn run(&self, pass: Pass, functions: &Functions, operands: Vec<Tensor<2>>) -> Results<Tensor<2>> {
        let [q, k, v, dout] = take(operands);
        let (out, lse) = (functions.forward)(q.clone(), k.clone(), v.clone(), &self.layout, &self.spec);
        let mut results = vec![("out", out.clone()), ("lse", lse.clone())];
        if let (Pass::Both, Some(backward)) = (pass, functions.backward) {
            let gradients = backward([q, k, v, out, lse, dout], &self.layout, &self.spec);
            results.extend(["dq", "dk", "dv"].into_iter().zip(gradients));
        }
        results
    }

    fn reference(&self, operands: &[Matrix]) -> Results<Matrix> {
        let Spec { num_query_heads, num_kv_heads, head_dim: d, window, soft_cap, .. } = self.spec;
        let [q, k, v, dout] = operands else { panic!("four operands") };
        let (seq, ids) = (self.layout.seq(), self.layout.segment_ids());
        let mut lse = Matrix::zeros([self.layout.num_tokens(), num_query_heads]);
        let [mut out, mut dq, mut dk, mut dv] = [q, q, k, v].map(|like| Matrix::zeros(like.dims));
        for t in 0..self.layout.num_tokens() {
            let visible: Vec<usize> = (t / seq * seq..=t)
                .filter(|&j| ids[j] == ids[t] && window.is_none_or(|window| t - j < window))
                .collect();
            for h in 0..num_query_heads {
                let query = (t * num_query_heads + h) * d..(t * num_query_heads + h + 1) * d;
                let kv_head = h / (num_query_heads / num_kv_heads);
                let key = |j: usize| (j * num_kv_heads + kv_head) * d..(j * num_kv_heads + kv_head + 1) * d;
                let scores = visible.iter().map(|&j| dot(&q.data[query.clone()], &k.data[key(j)]));
                let scores: Vec<f64> =
                    scores.map(|s| soft_cap.map_or(s, |cap| cap * (s / cap).tanh())).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
                lse.data[t * num_query_heads + h] = sum;
                let weights: Vec<f64> = scores.iter().map(|s| (s - sum).exp()).collect();
                for (&j, p) in visible.iter().zip(&weights) {
                    add(&mut out.data[query.clone()], *p, &v.data[key(j)]);
                }
                let dout = &dout.data[query.clone()];
                let delta = dot(&out.data[query.clone()], dout);
                for ((&j, p), s) in visible.iter().zip(&weights).zip(&scores) {
                    let slope = soft_cap.map_or(1.0, |cap| 1.0 - (s / cap).powi(2));
                    let ds = p * (dot(dout, &v.data[key(j)]) - delta) * slope;
                    add(&mut dv.data[key(j)], *p, dout);
                    add(&mut dk.data[key(j)], ds, &q.data[query.clone()]);
                    add(&mut dq.data[query.clone()], ds, &k.data[key(j)]);
                }
            }
        }
        vec![("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv)]
    }

    /// Another last document doesn't change a bit of the others.
    fn invariants(
        &self,
        operands: &[Matrix],
        run: &dyn Fn(&[Matrix]) -> Results<Matrix>,
    ) -> Result<(), String> {
        let ids = self.layout.segment_ids();
        let last = self.lengths.len() as i32;
        if last < 2 {
            return Ok(());
        }
        let replaced: Vec<Matrix> = operands
            .iter()
            .map(|x| Matrix::new(x.dims, |t, i| if ids[t] == last { 0.5 - x.at(t, i) } else { x.at(t, i) }))
            .collect();
        for ((name, before), (_, after)) in run(operands).iter().zip(run(&replaced)) {
            let changed = (0..ids.len()).find(|&t| ids[t] != last && before.row(t) != after.row(t));
            if let Some(t) = changed {
                return Err(format!("{name} of token {t} changes with another document"));
            }
        }
        Ok(())
    }

    fn work(&self, pass: Pass, dtype: DType) -> Work {
        let Spec { num_query_heads, head_dim, window, .. } = self.spec;
        let pairs = self.layout.visible_pairs(window) as f64 * (num_query_heads * head_dim) as f64;
        let [q, k] = self.elements();
        let (size, lse) = (dtype.size() as f64, 4.0 * (self.layout.num_tokens() * num_query_heads) as f64);
        let forward = Work { flops: 4.0 * pairs, bytes: size * (2.0 * q + 2.0 * k) + lse };
        match pass {
            Pass::Both => Work {
                flops: forward.flops + 10.0 * pairs,
                bytes: forward.bytes + size * (4.0 * q + 4.0 * k) + lse,
            },
            _ => forward,
        }
    }
}

/// `to += factor x`.
fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += factor * x;
    }
}
