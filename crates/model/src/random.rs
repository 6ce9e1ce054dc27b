//! Random numbers that are a pure function of where they are used.
//!
//! Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a key and a counter into four
//! words. With the key from a seed and a name, and the counter from an index, a number depends on neither the device, nor
//! the number of threads, nor on what was drawn before: weights come out the same everywhere and a dropout mask can be drawn
//! again in the backward pass.

/// A family of random numbers, addressed by index.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: [u32; 2],
}

impl Stream {
    /// The stream called `name` under `seed`.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a of the name, then the seed's bits spread over it: names and seeds that differ little give unrelated keys.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let key = mix(mix(seed).wrapping_add(hash));
        Self { key: [key as u32, (key >> 32) as u32] }
    }

    /// Two independent uniform numbers in (0, 1], of 32 bits each. `attempt` tells draws at the same index apart.
    pub fn uniform_pair(&self, index: u64, attempt: u32) -> [f64; 2] {
        let [a, b, ..] = philox(self.key, [index as u32, (index >> 32) as u32, attempt, 0]);
        [a, b].map(|word| (f64::from(word) + 1.0) / 4_294_967_296.0)
    }

    /// A standard normal number.
    pub fn normal(&self, index: u64) -> f64 {
        self.normal_attempt(index, 0)
    }

    /// A standard normal number, drawn again until it lies within 2 standard deviations.
    pub fn truncated_normal(&self, index: u64) -> f64 {
        let mut draws = (0..).map(|attempt| self.normal_attempt(index, attempt));
        draws.find(|z| z.abs() <= 2.0).expect("each draw succeeds with probability 0.95")
    }

    /// Box-Muller.
    fn normal_attempt(&self, index: u64, attempt: u32) -> f64 {
        let [u, v] = self.uniform_pair(index, attempt);
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn philox(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(counter[0]) * 0xd251_1f53;
        let b = u64::from(counter[2]) * 0xcd9e_8d57;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors' Random123 library checks itself with.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 2], [u32::MAX; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn names_seeds_and_indices_all_matter() {
        let draw = |seed, name: &str, index| Stream::new(seed, name).normal(index);
        let base = draw(0, "a", 0);
        assert_eq!(base, draw(0, "a", 0));
        assert!(
            [draw(1, "a", 0), draw(0, "b", 0), draw(0, "a", 1), draw(0, "a", 1 << 32)]
                .iter()
                .all(|&z| z != base)
        );
    }
}
