//! One of N equal parts of a parameter.
//!
//! Elements are numbered by rows, as they lie in memory; the last part is filled up with zeros, which take part in everything
//! and stay zero: their gradients are, and so are their moments.

use burn::tensor::Tensor;

/// Which part: `index` of `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 0.
    pub index: usize,
    /// N.
    pub count: usize,
}

impl Shard {
    /// All of it. A parameter keeps its shape then.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// The shape of this part of a parameter of `dims`: `[1, n]`, n the same for all parts.
    pub fn dims(self, dims: [usize; 2]) -> [usize; 2] {
        match self.count {
            1 => dims,
            count => [1, (dims[0] * dims[1]).div_ceil(count)],
        }
    }

    /// The number in the whole parameter of the first element of a part that has `len` elements.
    pub fn first(self, len: usize) -> usize {
        self.index * len
    }

    /// This part of a whole parameter, in memory of its own.
    pub fn cut(self, whole: Tensor<2>) -> Tensor<2> {
        if self.count == 1 {
            return whole;
        }
        let [_, len] = self.dims(whole.dims());
        let first = self.first(len);
        let part = self.padded(whole).slice(first..first + len);
        // A slice may share the memory of the whole, which shall be freed: it's copied.
        Tensor::zeros([len], (&part.device(), part.dtype())).slice_assign(0..len, part).reshape([1, len])
    }

    /// The elements of a whole parameter, by rows, with zeros behind them so that they can be divided: `[count * n]`.
    pub fn padded(self, whole: Tensor<2>) -> Tensor<1> {
        let dims = whole.dims();
        let len = dims[0] * dims[1];
        let missing = self.dims(dims)[1] * self.count - len;
        let flat = whole.reshape([len]);
        if self.count == 1 || missing == 0 {
            return flat;
        }
        let zeros = Tensor::zeros([missing], (&flat.device(), flat.dtype()));
        Tensor::cat(vec![flat, zeros], 0)
    }

    /// Undoes [`Shard::padded`]: a parameter of `dims`.
    pub fn whole(padded: Tensor<1>, dims: [usize; 2]) -> Tensor<2> {
        let len = dims[0] * dims[1];
        let [found] = padded.dims();
        let flat = if found == len { padded } else { padded.slice(0..len) };
        flat.reshape(dims)
    }
}
