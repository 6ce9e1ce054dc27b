//! Plain compositions behind the seam's names, until the fused operations are in place.
#![expect(missing_docs, reason = "the operations themselves document these names")]

pub mod linear {
    use burn::tensor::{DType, Tensor};

    pub fn forward(x: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
        let w = w.cast(x.dtype());
        x.matmul(w)
    }
    pub fn backward_input(dy: Tensor<2>, w: Tensor<2>) -> Tensor<2> {
        let w = w.cast(dy.dtype());
        dy.matmul(w.transpose())
    }
    pub fn backward_weight(x: Tensor<2>, dy: Tensor<2>) -> Tensor<2> {
        x.cast(DType::F32).transpose().matmul(dy.cast(DType::F32))
    }
    pub fn add_bias(y: Tensor<2>, bias: Tensor<2>) -> Tensor<2> {
        let bias = bias.cast(y.dtype());
        y + bias
    }
    pub fn backward_bias(dy: Tensor<2>) -> Tensor<2> {
        dy.cast(DType::F32).sum_dim(0)
    }
}

pub mod rms_norm {
    use burn::tensor::{DType, Tensor};

    pub fn forward(x: Tensor<2>, scale: Tensor<2>, eps: f64) -> Tensor<2> {
        let dtype = x.dtype();
        let x = x.cast(DType::F32);
        let r = x.clone().powi_scalar(2).mean_dim(1).add_scalar(eps).sqrt().recip();
        (x * r).cast(dtype) * scale.cast(dtype)
    }
    pub fn backward(x: Tensor<2>, scale: Tensor<2>, eps: f64, dy: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let dtype = x.dtype();
        let (x, dy) = (x.cast(DType::F32), dy.cast(DType::F32));
        let r = x.clone().powi_scalar(2).mean_dim(1).add_scalar(eps).sqrt().recip();
        let n = x * r.clone();
        let dscale = (dy.clone() * n.clone()).sum_dim(0);
        let dn = dy * scale.cast(DType::F32);
        let dx = (dn.clone() - n.clone() * (dn * n).mean_dim(1)) * r;
        (dx.cast(dtype), dscale)
    }
}

pub mod rope {
    use burn::tensor::{Device, Int, Tensor, TensorData};
    use mt_config::Rope;

    #[derive(Debug, Clone)]
    pub struct Table {
        cos: Tensor<2>,
        sin: Tensor<2>,
        interleaved: bool,
    }
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Direction {
        Forward,
        Inverse,
    }
    impl Table {
        pub fn new(rope: &Rope, head_dim: usize, max_position: usize, device: &Device) -> Self {
            let half = head_dim / 2;
            let timescale = |i: usize| {
                let share = 2.0 * i as f64 / head_dim as f64;
                rope.min_timescale
                    * (rope.max_timescale / rope.min_timescale).powf(share)
                    * rope.linear_scaling_factor
            };
            let angles: Vec<f64> =
                (0..max_position * half).map(|j| (j / half) as f64 / timescale(j % half)).collect();
            let of = |f: fn(f64) -> f64| {
                let data: Vec<f32> = angles.iter().map(|&a| f(a) as f32).collect();
                Tensor::from_data(TensorData::new(data, [max_position, half]), device)
            };
            Self { cos: of(f64::cos), sin: of(f64::sin), interleaved: rope.interleaved }
        }
    }
    pub fn apply(
        x: Tensor<2>,
        positions: &Tensor<1, Int>,
        table: &Table,
        head_dim: usize,
        direction: Direction,
    ) -> Tensor<2> {
        let [t, f] = x.dims();
        let (h, half) = (f / head_dim, head_dim / 2);
        let of = |m: &Tensor<2>| m.clone().select(0, positions.clone()).cast(x.dtype());
        let (cos, mut sin) = (of(&table.cos), of(&table.sin));
        if direction == Direction::Inverse {
            sin = sin.neg();
        }
        let shape = if table.interleaved { [t, h, half, 2] } else { [t, h, 2, half] };
        let axis = if table.interleaved { 3 } else { 2 };
        let x = x.reshape(shape);
        let (a, b) = (x.clone().narrow(axis, 0, 1), x.narrow(axis, 1, 1));
        let s = if table.interleaved { [t, 1, half, 1] } else { [t, 1, 1, half] };
        let (cos, sin) = (cos.reshape(s), sin.reshape(s));
        let y = vec![a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin];
        Tensor::cat(y, axis).reshape([t, f])
    }
}

pub mod attention {
    use burn::tensor::{DType, Tensor, TensorData, activation};
    use mt_config::AttentionKernel;

    #[derive(Debug, Clone)]
    pub struct Layout {
        visible: Vec<bool>,
        batch: usize,
        seq: usize,
    }
    #[derive(Debug, Clone, PartialEq)]
    pub struct Spec {
        pub num_query_heads: usize,
        pub num_kv_heads: usize,
        pub head_dim: usize,
        pub soft_cap: Option<f64>,
        pub window: Option<usize>,
        pub kernel: AttentionKernel,
        pub float32_logits: bool,
        pub float32_qk_product: bool,
    }
    impl Layout {
        pub fn new(segments: &[i32], _positions: &[i32], batch: usize, seq: usize) -> Self {
            let visible = (0..batch * seq * seq)
                .map(|i| {
                    let (b, q, k) = (i / seq / seq, i / seq % seq, i % seq);
                    k <= q && segments[b * seq + q] == segments[b * seq + k]
                })
                .collect();
            Self { visible, batch, seq }
        }
        pub fn visible_pairs(&self, _window: Option<usize>) -> u64 {
            self.visible.iter().filter(|&&v| v).count() as u64
        }
        fn mask(&self, like: &Tensor<2>, window: Option<usize>) -> Tensor<4> {
            let window = window.unwrap_or(usize::MAX);
            let near = |i: usize| (i / self.seq % self.seq).saturating_sub(i % self.seq) < window;
            let mask: Vec<f32> = self
                .visible
                .iter()
                .enumerate()
                .map(|(i, &v)| if v && near(i) { 0.0 } else { -1e30 })
                .collect();
            let shape = [self.batch, 1, self.seq, self.seq];
            Tensor::from_data(TensorData::new(mask, shape), (&like.device(), DType::F32))
        }
        fn heads(&self, x: Tensor<2>, d: usize, repeat: usize) -> Tensor<4> {
            let h = x.dims()[1] / d;
            let x = x.cast(DType::F32).reshape([self.batch, self.seq, h, d]).swap_dims(1, 2);
            let x: Tensor<5> = x.unsqueeze_dim(2);
            x.repeat_dim(2, repeat).reshape([self.batch, h * repeat, self.seq, d])
        }
        fn tokens(&self, x: Tensor<4>, repeat: usize, dtype: DType) -> Tensor<2> {
            let [b, h, s, d] = x.dims();
            let x = x.reshape([b, h / repeat, repeat, s, d]).sum_dim(2).reshape([b, h / repeat, s, d]);
            x.swap_dims(1, 2).reshape([b * s, h / repeat * d]).cast(dtype)
        }
    }
    fn probabilities(q: &Tensor<4>, k: &Tensor<4>, mask: Tensor<4>) -> Tensor<4> {
        activation::softmax(q.clone().matmul(k.clone().transpose()) + mask, 3)
    }
    pub fn forward(
        q: Tensor<2>,
        k: Tensor<2>,
        v: Tensor<2>,
        layout: &Layout,
        spec: &Spec,
    ) -> (Tensor<2>, Tensor<2>) {
        let (dtype, g, d) = (q.dtype(), spec.num_query_heads / spec.num_kv_heads, spec.head_dim);
        let mask = layout.mask(&q, spec.window);
        let lse = Tensor::zeros([layout.batch * layout.seq, spec.num_query_heads], &q.device());
        let (q, k, v) = (layout.heads(q, d, 1), layout.heads(k, d, g), layout.heads(v, d, g));
        (layout.tokens(probabilities(&q, &k, mask).matmul(v), 1, dtype), lse)
    }
    #[expect(clippy::too_many_arguments, reason = "those of attention's backward")]
    pub fn backward(
        q: Tensor<2>,
        k: Tensor<2>,
        v: Tensor<2>,
        _out: Tensor<2>,
        _lse: Tensor<2>,
        dout: Tensor<2>,
        layout: &Layout,
        spec: &Spec,
    ) -> (Tensor<2>, Tensor<2>, Tensor<2>) {
        let (dtype, g, d) = (q.dtype(), spec.num_query_heads / spec.num_kv_heads, spec.head_dim);
        let mask = layout.mask(&q, spec.window);
        let (q, k, v) = (layout.heads(q, d, 1), layout.heads(k, d, g), layout.heads(v, d, g));
        let dout = layout.heads(dout, d, 1);
        let p = probabilities(&q, &k, mask);
        let dv = p.clone().transpose().matmul(dout.clone());
        let dp = dout.matmul(v.transpose());
        let ds = p.clone() * (dp.clone() - (dp * p).sum_dim(3));
        let dq = ds.clone().matmul(k);
        let dk = ds.transpose().matmul(q);
        (layout.tokens(dq, 1, dtype), layout.tokens(dk, g, dtype), layout.tokens(dv, g, dtype))
    }
}

pub mod glu {
    use burn::tensor::{Tensor, activation};
    use mt_config::Activation;

    pub fn forward(gate: Tensor<2>, up: Tensor<2>, _: Activation) -> Tensor<2> {
        activation::silu(gate) * up
    }
    pub fn backward(gate: Tensor<2>, up: Tensor<2>, _: Activation, dh: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let s = activation::sigmoid(gate.clone());
        let dup = gate.clone() * s.clone() * dh.clone();
        let dsilu = s.clone() * (gate * (s.neg().add_scalar(1.0))).add_scalar(1.0);
        (dh * up * dsilu, dup)
    }
}

pub mod embedding {
    use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

    pub fn forward(ids: &Tensor<1, Int>, table: &Tensor<2>) -> Tensor<2> {
        table.clone().select(0, ids.clone())
    }
    pub fn backward(ids: &Tensor<1, Int>, dy: Tensor<2>, vocab: usize) -> Tensor<2> {
        let zeros = Tensor::zeros([vocab, dy.dims()[1]], (&dy.device(), DType::F32));
        zeros.select_assign(0, ids.clone(), dy.cast(DType::F32), IndexingUpdateOp::Add)
    }
}

pub mod cross_entropy {
    use burn::tensor::{DType, Int, Tensor, activation};

    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Spec {
        pub z_loss_multiplier: f64,
        pub soft_cap: Option<f64>,
        pub logits_scale: f64,
        pub dot_in_fp32: bool,
        pub cast_fp32: bool,
        pub tiling: usize,
    }
    pub enum Head {
        Dense(Tensor<2>),
        Embedding(Tensor<2>),
    }
    pub struct Sums {
        pub xent_sum: f64,
        pub z_loss_sum: f64,
    }
    pub struct Backward {
        pub xent_sum: f64,
        pub z_loss_sum: f64,
        pub dh: Tensor<2>,
        pub dw: Tensor<2>,
    }
    fn kernel(head: &Head, dtype: DType) -> Tensor<2> {
        match head {
            Head::Dense(w) => w.clone().cast(dtype),
            Head::Embedding(w) => w.clone().cast(dtype).transpose(),
        }
    }
    pub fn logits(h: Tensor<2>, head: Head, spec: &Spec) -> Tensor<2> {
        let w = kernel(&head, h.dtype());
        h.matmul(w).cast(DType::F32).mul_scalar(spec.logits_scale)
    }
    fn parts(l: &Tensor<2>, targets: &Tensor<1, Int>, weights: &Tensor<1>, spec: &Spec) -> (Tensor<2>, Sums) {
        let t = l.dims()[0];
        let w: Tensor<2> = weights.clone().reshape([t, 1]);
        let max = l.clone().max_dim(1);
        let lse = (l.clone() - max.clone()).exp().sum_dim(1).log() + max;
        let picked = l.clone().gather(1, targets.clone().reshape([t, 1]));
        let z = lse.clone().powi_scalar(2).mul_scalar(spec.z_loss_multiplier) * w.clone();
        let x = (lse.clone() - picked) * w + z.clone();
        let sum = |x: Tensor<2>| x.sum().into_scalar::<f32>() as f64;
        (lse, Sums { xent_sum: sum(x), z_loss_sum: sum(z) })
    }
    pub fn forward(
        h: Tensor<2>,
        head: Head,
        targets: &Tensor<1, Int>,
        weights: &Tensor<1>,
        spec: &Spec,
    ) -> Sums {
        parts(&logits(h, head, spec), targets, weights, spec).1
    }
    pub fn forward_backward(
        h: Tensor<2>,
        head: Head,
        targets: &Tensor<1, Int>,
        weights: &Tensor<1>,
        factor: f64,
        spec: &Spec,
    ) -> Backward {
        let w = kernel(&head, h.dtype());
        let l = h.clone().matmul(w.clone()).cast(DType::F32).mul_scalar(spec.logits_scale);
        let (lse, sums) = parts(&l, targets, weights, spec);
        let [t, v] = l.dims();
        let one_hot: Tensor<2> = targets.clone().one_hot::<2>(v).float();
        let weight = weights.clone().reshape([t, 1]).mul_scalar(factor * spec.logits_scale);
        let p = activation::softmax(l, 1);
        let dl = (p * lse.mul_scalar(2.0 * spec.z_loss_multiplier).add_scalar(1.0) - one_hot) * weight;
        let dh = dl.clone().cast(h.dtype()).matmul(w.transpose());
        let h = h.cast(DType::F32);
        let dw = match head {
            Head::Dense(_) => h.transpose().matmul(dl),
            Head::Embedding(_) => dl.transpose().matmul(h),
        };
        Backward { xent_sum: sums.xent_sum, z_loss_sum: sums.z_loss_sum, dh, dw }
    }
}
