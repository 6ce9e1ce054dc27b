//! NumPy's default generator, so that shuffles equal those of MaxText's loaders.
//!
//! `numpy.random.default_rng(seed)` is a SeedSequence (O'Neill's `seed_seq` design) feeding PCG64 (XSL-RR);
//! `shuffle` is Fisher-Yates from the end with masked rejection.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// The generator behind `numpy.random.default_rng`.
#[derive(Debug, Clone)]
pub(crate) struct NumpyRng {
    state: u128,
    increment: u128,
    /// High half of the last 64-bit draw, not used yet.
    spare: Option<u32>,
}

impl NumpyRng {
    /// `default_rng(seed)` for one number, `default_rng([..])` for several.
    pub(crate) fn new(entropy: &[u64]) -> Self {
        let words: Vec<u32> = entropy
            .iter()
            .flat_map(|&n| {
                let (low, high) = (n as u32, (n >> 32) as u32);
                std::iter::once(low).chain((high != 0).then_some(high))
            })
            .collect();
        let [seed_high, seed_low, inc_high, inc_low] = seed_sequence(&words);
        let seed = u128::from(seed_high) << 64 | u128::from(seed_low);
        let increment = (u128::from(inc_high) << 64 | u128::from(inc_low)) << 1 | 1;
        let mut rng = Self { state: 0, increment, spare: None };
        rng.step();
        rng.state = rng.state.wrapping_add(seed);
        rng.step();
        rng
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 random bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.step();
        let rotation = (self.state >> 122) as u32;
        ((self.state >> 64) as u64 ^ self.state as u64).rotate_right(rotation)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(high) = self.spare.take() {
            return high;
        }
        let bits = self.next_u64();
        self.spare = Some((bits >> 32) as u32);
        bits as u32
    }

    /// A number from 0 to `max`, both included.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        if max == 0 {
            return 0;
        }
        let mask = u64::MAX >> max.leading_zeros();
        loop {
            let draw = if max <= u64::from(u32::MAX) { u64::from(self.next_u32()) } else { self.next_u64() };
            if draw & mask <= max {
                return draw & mask;
            }
        }
    }

    /// Shuffles in place, as `Generator.shuffle` does.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.up_to(i as u64) as usize);
        }
    }

    /// The numbers below `n`, shuffled.
    pub(crate) fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        self.shuffle(&mut order);
        order
    }
}

/// `SeedSequence(entropy).generate_state(4, uint64)`.
fn seed_sequence(entropy: &[u32]) -> [u64; 4] {
    const POOL: usize = 4;
    let mut hash = 0x43b0_d7e5_u32;
    let mut hashed = |value: u32| {
        let value = value ^ hash;
        hash = hash.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(hash);
        value ^ value >> 16
    };
    let mix = |x: u32, y: u32| {
        let mixed = x.wrapping_mul(0xca01_f9dd).wrapping_sub(y.wrapping_mul(0x4973_f715));
        mixed ^ mixed >> 16
    };

    let mut pool = [0_u32; POOL];
    for (i, word) in pool.iter_mut().enumerate() {
        *word = hashed(entropy.get(i).copied().unwrap_or(0));
    }
    for source in 0..POOL {
        for target in 0..POOL {
            if source != target {
                pool[target] = mix(pool[target], hashed(pool[source]));
            }
        }
    }
    for &extra in entropy.iter().skip(POOL) {
        for word in &mut pool {
            *word = mix(*word, hashed(extra));
        }
    }

    let mut hash = 0x8b51_f9dd_u32;
    let mut words = pool.iter().cycle().map(|&word| {
        let value = word ^ hash;
        hash = hash.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(hash);
        u64::from(value ^ value >> 16)
    });
    let mut next = || words.next().expect("cycles for ever");
    std::array::from_fn(|_| {
        let low = next();
        low | next() << 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected values: NumPy 2.4.6.
    #[test]
    fn seeds_as_numpy_does() {
        assert_eq!(
            seed_sequence(&[0]),
            [15793235383387715774, 12390638538380655177, 2361836109651742017, 3188717715514472916]
        );
        assert_eq!(
            seed_sequence(&[7, 1, 2, 3, 4]),
            [259240669079295854, 1332544085513908371, 11348709823398259699, 1585574204526825649]
        );
        assert_eq!(
            seed_sequence(&[5, 1 << 8]), // 2**40 + 5
            [15772757452565124875, 9517702402565589804, 2676762931694213328, 4810540664340266707]
        );
        let mut rng = NumpyRng::new(&[0]);
        assert_eq!(
            [rng.next_u64(), rng.next_u64(), rng.next_u64(), rng.next_u64()],
            [11749869230777074271, 4976686463289251617, 755828109848996024, 304881062738325533]
        );
    }

    #[test]
    fn shuffles_as_numpy_does() {
        for (seed, expected) in [
            (0, [2, 4, 3, 6, 5, 0, 1, 7]),
            (2, [6, 5, 7, 2, 3, 4, 0, 1]),
            (42, [3, 4, 2, 7, 6, 1, 5, 0]),
            (123, [0, 6, 4, 2, 7, 3, 1, 5]),
        ] {
            assert_eq!(NumpyRng::new(&[seed]).permutation(8), expected);
        }
        let shards = NumpyRng::new(&[0]).permutation(1024);
        assert_eq!(shards[..8], [84, 752, 296, 982, 863, 470, 986, 2]);
    }
}
