//! The step on a GPU, in place: one pass, a cube per block of elements, whose sum of squares it leaves behind.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{Hyper, Updated};
use crate::ops::cube::reduce::BLOCK;
use crate::ops::cube::{UNITS, arg, cube_dim, element, empty, grid, len, owned, sum, tensor};
use crate::ops::elementwise::SumOfSquares;

pub(super) fn update(
    param: CubeTensor,
    grad: &CubeTensor,
    mu: CubeTensor,
    nu: CubeTensor,
    hyper: &Hyper,
) -> Updated {
    let [param, mu, nu] = [param, mu, nu].map(owned);
    let blocks = len(&param).div_ceil(BLOCK);
    let squares = empty([blocks], DType::F32, &param);
    let (of_mu, of_grad) = match hyper.look_ahead {
        None => (1.0 / hyper.bias_correction1, 0.0),
        Some(next) => (hyper.b1 / next, (1.0 - hyper.b1) / hyper.bias_correction1),
    };
    let dither = hyper.stochastic_rounding.filter(|_| param.dtype == DType::BF16);
    let (seed, first) = dither.map_or((0, 0), |dither| (dither.seed, dither.first));
    update_kernel::launch(
        &param.client,
        grid(blocks),
        cube_dim(),
        arg(&param),
        arg(grad),
        arg(&mu),
        arg(&nu),
        arg(&squares),
        StepLaunch::new(
            hyper.learning_rate as f32,
            hyper.b1 as f32,
            hyper.b2 as f32,
            (1.0 - hyper.b1) as f32,
            (1.0 - hyper.b2) as f32,
            of_mu as f32,
            of_grad as f32,
            (1.0 / hyper.bias_correction2) as f32,
            hyper.eps as f32,
            hyper.eps_root as f32,
            hyper.weight_decay as f32,
            hyper.grad_scale as f32,
        ),
        seed as u32,
        (seed >> 32) as u32,
        first,
        dither.is_some(),
        [element(&param), element(grad), element(&mu), element(&nu)],
    );
    let param_squares = SumOfSquares::of_blocks(squares);
    Updated { param: tensor(param), mu: tensor(mu), nu: tensor(nu), param_squares }
}

/// The step's numbers in float32, as the CPU's.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Step {
    learning_rate: f32,
    b1: f32,
    b2: f32,
    rest1: f32,
    rest2: f32,
    of_mu: f32,
    of_grad: f32,
    correction2: f32,
    eps: f32,
    eps_root: f32,
    weight_decay: f32,
    grad_scale: f32,
}

/// One step of all elements, numbered from `first_number` on; `squares[b]` becomes the sum of the squares of block b's new parameters, as stored.
#[cube(launch)]
pub(crate) fn update_kernel<P: Float, G: Float, M: Float, N: Float>(
    param: &mut [P],
    grad: &[G],
    mu: &mut [M],
    nu: &mut [N],
    squares: &mut [f32],
    step: Step,
    seed_low: u32,
    seed_high: u32,
    first_number: u32,
    #[comptime] dither: bool,
    #[define(P, G, M, N)] _types: [ElemType; 4],
) {
    let first = CUBE_POS * BLOCK;
    let end = min(first + BLOCK, param.len());
    let mut total = f32::new(0.0);
    let mut i = first + UNIT_POS as usize;
    while i < end {
        let p = f32::cast_from(param[i]);
        let g = f32::cast_from(grad[i]) * step.grad_scale;
        let m = step.b1 * f32::cast_from(mu[i]) + step.rest1 * g;
        let n = step.b2 * f32::cast_from(nu[i]) + step.rest2 * (g * g);
        mu[i] = M::cast_from(m);
        nu[i] = N::cast_from(n);
        let root = (n * step.correction2 + step.eps_root).sqrt();
        let update = (m * step.of_mu + g * step.of_grad) / (root + step.eps) + step.weight_decay * p;
        let mut new = p - step.learning_rate * update;
        if dither {
            new = dithered(new, noise(seed_low, seed_high, first_number + i as u32));
        }
        let stored = P::cast_from(new);
        param[i] = stored;
        let stored = f32::cast_from(stored);
        total += stored * stored;
        i += UNITS;
    }
    let block = sum(total);
    if UNIT_POS == 0 && first < param.len() {
        squares[CUBE_POS] = block;
    }
}

/// A value that bfloat16 holds: the one above with the probability of the distance from the one below.
#[cube]
fn dithered(value: f32, noise: u32) -> f32 {
    let bits = u32::reinterpret(value);
    let finite = (bits & 0x7f80_0000) != 0x7f80_0000;
    let up = f32::reinterpret((bits + noise) & 0xffff_0000);
    select(finite, up, value)
}

/// The CPU's noise: 16 random bits per seed and index, a multiply-xorshift hash.
#[cube]
fn noise(seed_low: u32, seed_high: u32, index: u32) -> u32 {
    let mut x = (index * 0x9e37_79b9) ^ seed_low;
    x = ((x ^ (x >> 16)) * 0x7feb_352d) ^ seed_high;
    x = (x ^ (x >> 15)) * 0x846c_a68b;
    (x ^ (x >> 16)) & 0xffff
}

#[cfg(all(test, feature = "rocm"))]
mod hip {
    use crate::ops::cube::hip_text::{BF16, F32, Kernel};

    use super::*;

    #[test]
    fn hip_text() {
        let sizes = [("elements", 100_000), ("ceil(elements/16384)", 7)];
        for (types, dither) in
            [([F32; 4], false), ([F32, F32, BF16, BF16], false), ([BF16, F32, F32, F32], true)]
        {
            let [param, grad, mu, nu] = types;
            Kernel::new(if dither { "adamw_dithered" } else { "adamw" }, &types, sizes)
                .buffer("param", param, "elements")
                .buffer("grad", grad, "elements")
                .buffer("mu", mu, "elements")
                .buffer("nu", nu, "elements")
                .buffer("squares", F32, "ceil(elements/16384)")
                .scalar("learning_rate", 3e-4f32)
                .scalar("b1", 0.9f32)
                .scalar("b2", 0.95f32)
                .scalar("rest1", 0.1f32)
                .scalar("rest2", 0.05f32)
                .scalar("of_mu", 10.0f32)
                .scalar("of_grad", 0.0f32)
                .scalar("correction2", 20.0f32)
                .scalar("eps", 1e-8f32)
                .scalar("eps_root", 0.0f32)
                .scalar("weight_decay", 0.1f32)
                .scalar("grad_scale", 1.0f32)
                .scalar("seed_low", 7u32)
                .scalar("seed_high", 1u32)
                .scalar("first_number", 0u32)
                .cubes("ceil(elements/16384)")
                .write(|k, p, t, b| {
                    let step = StepCompilationArg {
                        learning_rate: (),
                        b1: (),
                        b2: (),
                        rest1: (),
                        rest2: (),
                        of_mu: (),
                        of_grad: (),
                        correction2: (),
                        eps: (),
                        eps_root: (),
                        weight_decay: (),
                        grad_scale: (),
                    };
                    update_kernel::UpdateKernel::new(
                        k,
                        p,
                        t,
                        b(),
                        b(),
                        b(),
                        b(),
                        b(),
                        step,
                        (),
                        (),
                        (),
                        dither,
                        types,
                    )
                });
        }
    }
}
