//! Matrix products: any strides, float32 or bfloat16 operands, float32 sums, results independent of the number of threads.
//!
//! ```text
//! c[i, j] = sum_p a[i, p] b[p, j]          (or added to what c holds)
//! ```
//!
//! The classical scheme (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). The inner dimension
//! is cut into stretches that caches hold; for each, panels of a few columns of b are packed so that the kernel reads
//! them in order, blocks of rows of a likewise, and [`kernel`] multiplies one panel of rows with one of columns in registers.
//! Packing reads any strides, so a transpose costs nothing, and widens bfloat16, so both element types share one kernel; where
//! the CPU multiplies bfloat16 itself (AVX512-BF16), products of two bfloat16 operands have one of their own, which takes the
//! inner dimension in pairs.
//!
//! An element of c is the sum over stretches, in order, of sums over p, in order: its value depends on its row of a, its
//! column of b and the inner dimension, on nothing else. Neither the cut into tasks nor other rows can change it. A bfloat16
//! output is that sum rounded once.

mod kernel;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::cell::{Cell, RefCell};
use std::ops::Range;

use burn::tensor::DType;
use half::bf16;
use rayon::prelude::*;

use kernel::{Kernel, Place, Tile};

use super::engine::convert;
use super::memory::Buffer;
use super::real::Real;

/// Rows of a that one task packs: with a kernel's depth at most 288 KB, which stay in the second-level cache.
const ROWS: usize = 96;
/// Columns of b that are packed at once: with a kernel's depth at most 6 MB, which stay in the last-level cache.
const COLS: usize = 2048;
/// Fewest columns of one task: enough to pay for packing its rows.
const TASK_COLS: usize = 256;
/// Tasks per thread that share work evenly enough.
const TASKS_PER_THREAD: usize = 4;

/// Elements of an operand.
#[derive(Clone, Copy)]
pub(crate) enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    /// float32 values that are rounded to bfloat16 before they are multiplied.
    Rounded(&'a [f32]),
}

/// An operand: a matrix over a slice, with strides in elements.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    elements: Elements<'a>,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> View<'a> {
    /// A matrix that is contiguous by rows.
    pub(crate) fn new(elements: Elements<'a>, [rows, cols]: [usize; 2]) -> Self {
        assert_eq!(elements.len(), rows * cols, "elements of a [{rows}, {cols}] matrix");
        Self { elements, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// The transpose, without a copy.
    pub(crate) fn transpose(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Some columns, without a copy.
    pub(crate) fn columns(self, cols: Range<usize>) -> Self {
        assert!(cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        let start = cols.start * self.col_stride;
        Self { elements: self.elements.skip(start), cols: cols.len(), ..self }
    }

    /// Some rows, without a copy.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        self.transpose().columns(rows).transpose()
    }

    /// Rows and columns.
    pub(crate) fn dims(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }
}

impl<'a> Elements<'a> {
    /// Elements as they are stored.
    pub(crate) fn of<E: Real>(elements: &'a [E]) -> Self {
        match E::DTYPE {
            DType::BF16 => Self::Bf16(bytemuck::cast_slice(elements)),
            _ => Self::F32(bytemuck::cast_slice(elements)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(e) | Self::Rounded(e) => e.len(),
            Self::Bf16(e) => e.len(),
        }
    }

    fn is_bf16(&self) -> bool {
        matches!(self, Self::Bf16(_) | Self::Rounded(_))
    }

    fn skip(self, start: usize) -> Self {
        match self {
            Self::F32(e) => Self::F32(&e[start.min(e.len())..]),
            Self::Rounded(e) => Self::Rounded(&e[start.min(e.len())..]),
            Self::Bf16(e) => Self::Bf16(&e[start.min(e.len())..]),
        }
    }
}

/// The output: some columns of a matrix that is contiguous by rows.
pub(crate) struct ViewMut<'a, E> {
    elements: &'a mut [E],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a, E: Real> ViewMut<'a, E> {
    /// A whole matrix.
    pub(crate) fn new(elements: &'a mut [E], [rows, cols]: [usize; 2]) -> Self {
        assert_eq!(elements.len(), rows * cols, "elements of a [{rows}, {cols}] matrix");
        Self { elements, rows, cols, row_stride: cols }
    }

    /// Some of its rows.
    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        let start = (rows.start * self.row_stride).min(self.elements.len());
        Self { elements: &mut self.elements[start..], rows: rows.len(), ..self }
    }

    /// Some of its columns.
    pub(crate) fn columns(self, cols: Range<usize>) -> Self {
        assert!(cols.end <= self.cols, "columns {cols:?} of {}", self.cols);
        let start = cols.start.min(self.elements.len());
        Self { elements: &mut self.elements[start..], cols: cols.len(), ..self }
    }
}

/// What happens to the old values of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Overwritten.
    Assign,
    /// Added to.
    Add,
}

/// `c = a b` or `c += a b` with `a: [m, k]`, `b: [k, n]`, `c: [m, n]`. Sums are kept in float32 until they are rounded to c's type;
/// adding is for float32.
pub(crate) fn product<E: Real>(a: View, b: View, c: ViewMut<E>, output: Output) {
    product_by(Kernel::best(a.elements.is_bf16() && b.elements.is_bf16()), a, b, c, output);
}

fn product_by<E: Real>(kernel: &Kernel, a: View, b: View, c: ViewMut<E>, output: Output) {
    let is_rounded = E::DTYPE != f32::DTYPE;
    assert!(!is_rounded || output == Output::Assign, "a rounded output has lost what would be added to");
    if is_rounded && a.cols > kernel.depth * kernel.per_cell {
        return rounded_product(kernel, a, b, c);
    }
    let ([m, k], n) = (a.dims(), b.cols);
    assert_eq!((b.rows, c.rows, c.cols), (k, m, n), "shapes of a product");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if output == Output::Assign {
            c.elements.chunks_mut(c.row_stride).take(m).for_each(|row| row[..n].fill(E::zeroed()));
        }
        return;
    }
    let target = Target { start: Place::of(c.elements), row_stride: c.row_stride };
    let task_cols = task_cols(m.div_ceil(ROWS), n.min(COLS));
    for cols in even_cuts(n, COLS, kernel.cols) {
        for (i, inner) in even_cuts(k, kernel.depth * kernel.per_cell, kernel.per_cell).enumerate() {
            let output = if i == 0 { output } else { Output::Add };
            let b = b.rows(inner.clone()).columns(cols.clone());
            let a = a.columns(inner);
            with_packed_columns(kernel, b, |packed| {
                let tasks: Vec<_> = even_cuts(m, ROWS, kernel.rows)
                    .flat_map(|rows| {
                        even_cuts(cols.len(), task_cols, kernel.cols).map(move |cols| (rows.clone(), cols))
                    })
                    .collect();
                tasks.into_par_iter().for_each(|(rows, task_cols)| {
                    // SAFETY: tasks cover disjoint parts of c, which is exclusively borrowed for this call.
                    let target = unsafe { target.at(rows.start, cols.start + task_cols.start) };
                    multiply(kernel, a.rows(rows), packed, task_cols, target, output);
                });
            });
        }
    }
}

/// A product whose inner dimension is too long for one stretch, with a rounded output: sums in float32, rounded at the end.
fn rounded_product<E: Real>(kernel: &Kernel, a: View, b: View, c: ViewMut<E>) {
    let (m, n) = (c.rows, c.cols);
    let mut sums = Buffer::<f32>::new(m * n);
    product_by(kernel, a, b, ViewMut::new(&mut sums, [m, n]), Output::Assign);
    c.elements
        .par_chunks_mut(c.row_stride)
        .zip(sums.par_chunks(n))
        .with_min_len(8)
        .for_each(|(row, sums)| convert(&mut row[..n], sums));
}

/// Columns of one task, where the rows make `row_blocks` tasks: as many as leave every thread its share.
fn task_cols(row_blocks: usize, cols: usize) -> usize {
    let cuts = (TASKS_PER_THREAD * rayon::current_num_threads()).div_ceil(row_blocks);
    cols.div_ceil(cuts).max(TASK_COLS)
}

/// Packs b's columns in parallel and hands them to `body`.
fn with_packed_columns(kernel: &Kernel, b: View, body: impl FnOnce(&[f32])) {
    const PANELS: usize = 16;
    thread_local! {
        /// Kept between products, so that it neither takes other memory's place nor has its own taken.
        static PACKED: Cell<Option<Buffer<f32>>> = const { Cell::new(None) };
    }
    let panel = b.rows.div_ceil(kernel.per_cell) * kernel.cols;
    let len = b.cols.div_ceil(kernel.cols) * panel;
    let mut packed = PACKED.take().filter(|kept| kept.len() >= len).unwrap_or_else(|| Buffer::new(len));
    packed[..len].par_chunks_mut(PANELS * panel).enumerate().for_each(|(i, panels)| {
        let start = i * PANELS * kernel.cols;
        let columns = b.columns(start..b.cols.min(start + PANELS * kernel.cols));
        // SAFETY: `best` checked that the CPU has the kernel's instructions.
        unsafe { (kernel.pack_cols)(columns.transpose(), panels) };
    });
    body(&packed[..len]);
    PACKED.set(Some(packed));
}

/// Packs a task's rows and multiplies them with its packed columns.
fn multiply(kernel: &Kernel, a: View, packed_b: &[f32], cols: Range<usize>, target: Target, output: Output) {
    thread_local! {
        static PACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }
    PACKED.with_borrow_mut(|packed| {
        let cells = a.cols.div_ceil(kernel.per_cell);
        let len = a.rows.div_ceil(kernel.rows) * kernel.rows * cells;
        if packed.len() < len {
            packed.resize(len, 0.0);
        }
        // SAFETY: `best` checked that the CPU has the kernel's instructions.
        unsafe { (kernel.pack_rows)(a, &mut packed[..len]) };
        let b_panels = packed_b.chunks_exact(cells * kernel.cols).skip(cols.start / kernel.cols);
        for (b, j) in b_panels.zip(cols.clone().step_by(kernel.cols)) {
            let a_panels = packed[..len].chunks_exact(cells * kernel.rows);
            for (a_panel, i) in a_panels.zip((0..a.rows).step_by(kernel.rows)) {
                let tile = Tile {
                    // SAFETY: row i and column j lie in this task's part of c.
                    start: unsafe { target.at(i, j - cols.start) }.start,
                    row_stride: target.row_stride,
                    rows: kernel.rows.min(a.rows - i),
                    cols: kernel.cols.min(cols.end - j),
                    add: output == Output::Add,
                };
                // SAFETY: the tile lies in this task's part of c; instructions as above.
                unsafe { (kernel.run)(a_panel, b, tile) };
            }
        }
    });
}

/// Where tasks write. Each writes its own part only.
#[derive(Clone, Copy)]
struct Target {
    start: Place,
    row_stride: usize,
}

// SAFETY: a pointer into an exclusively borrowed slice; tasks write disjoint parts.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    /// The part that begins at a row and a column.
    ///
    /// # Safety
    /// Both must exist in the output.
    unsafe fn at(self, row: usize, col: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { start: unsafe { self.start.skip(row * self.row_stride + col) }, ..self }
    }
}

/// Cuts 0..len into the fewest ranges of at most `most`, all of one size (a multiple of `unit`) but the last.
fn even_cuts(len: usize, most: usize, unit: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let count = len.div_ceil(most).max(1);
    let size = len.div_ceil(count).next_multiple_of(unit);
    (0..len).step_by(size.max(1)).map(move |start| start..(start + size).min(len))
}

#[cfg(test)]
mod tests;
