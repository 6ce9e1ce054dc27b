//! Which scores count, the soft cap and its slope.

use cubecl::prelude::*;

/// What stands for minus infinity where a row of scores has none yet: finite, since WGSL knows no infinite constants.
pub(crate) const LOWEST: f32 = -3.0e38;

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Options<T> {
    pub(crate) tile: T,
    /// There is a soft cap.
    pub(crate) capped: bool,
    /// There is a sliding window.
    pub(crate) windowed: bool,
}

/// A document, and what cubes read of their entry in the table of blocks (tables.rs): `first` is the first of the tokens
/// whose results the cube computes, `other` where the tokens that it looks at begin or end. All count in the document.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) document: usize,
    pub(crate) len: usize,
    pub(crate) first: usize,
    pub(crate) other: usize,
}

/// Words of a block's entry.
pub(crate) const ENTRY: usize = 4;

/// The entry of block `i`.
#[cube]
pub(crate) fn block(blocks: &[u32], i: usize) -> Block {
    Block {
        document: blocks[i * ENTRY] as usize,
        len: blocks[i * ENTRY + 1] as usize,
        first: blocks[i * ENTRY + 2] as usize,
        other: blocks[i * ENTRY + 3] as usize,
    }
}

/// Whether the query sees the key, both by their index in the document.
#[cube]
pub(crate) fn visible(
    block: &Block,
    query: usize,
    key: usize,
    tokens: &[u32],
    window: usize,
    #[comptime] windowed: bool,
) -> bool {
    let mut seen = key <= query && query < block.len;
    if comptime!(windowed) {
        // Both are in the document when `seen`, and the first token otherwise: an index that exists.
        let query = tokens[block.document + select(seen, query, 0usize)] as usize;
        let key = tokens[block.document + select(seen, key, 0usize)] as usize;
        seen = seen && query - key < window;
    }
    seen
}

/// `cap tanh(x / cap)`
#[cube]
pub(crate) fn soft_cap(x: f32, cap: f32) -> f32 {
    cap * tanh(x / cap)
}

/// The slope of [`soft_cap`] where it gave `y`.
#[cube]
pub(crate) fn slope(y: f32, cap: f32) -> f32 {
    let t = y / cap;
    f32::new(1.0) - t * t
}

/// tanh x within a few ulp on devices whose own is not: the polynomial and the formula of the CPU (`../vector.rs`).
#[cube]
fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut p = f32::new(-0.005_923_726);
    p = fma(p, square, f32::new(0.020_873_46));
    p = fma(p, square, f32::new(-0.053_823_76));
    p = fma(p, square, f32::new(0.133_325_84));
    p = fma(p, square, f32::new(-0.333_333_28));
    let small = fma(p * square, x, x);
    let magnitude = x.abs();
    let e = (magnitude * f32::new(-2.0)).exp();
    let large = (f32::new(1.0) - e) / (f32::new(1.0) + e);
    let signed = select(x < 0.0, -large, large);
    select(magnitude > 0.625, signed, small)
}
