//! `skip_step_on_spikes`: an update is left out when the loss or the gradient's norm jumps.

/// The last losses and gradient norms, and what counts as a jump from them.
///
/// A step is a spike when its loss or norm is more than `scaling_factor` standard deviations above the mean of the last
/// `interval` steps. Spikes enter the record too, so a new level becomes the usual one. Until half of an interval has been
/// seen nothing is a spike.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spikes {
    scaling_factor: f32,
    /// Steps seen; the next goes to slot `count % interval`.
    pub count: u64,
    pub losses: Vec<f32>,
    pub grad_norms: Vec<f32>,
}

impl Spikes {
    pub fn new(interval: usize, scaling_factor: f64) -> Self {
        let interval = interval.max(1);
        Self {
            scaling_factor: scaling_factor as f32,
            count: 0,
            losses: vec![0.0; interval],
            grad_norms: vec![0.0; interval],
        }
    }

    /// Judges a step by the steps before it, then adds it to the record.
    pub fn is_spike(&mut self, loss: f32, grad_norm: f32) -> bool {
        let interval = self.losses.len();
        let seen = interval.min(self.count as usize);
        let enough = (interval / 2).max(2) as u64 <= self.count + 1;
        // NaN is never usual.
        let usual = |value: f32, record: &[f32]| {
            let (mean, deviation) = mean_and_deviation(record);
            value - mean <= self.scaling_factor * deviation
        };
        let spike =
            enough && !(usual(loss, &self.losses[..seen]) && usual(grad_norm, &self.grad_norms[..seen]));
        let slot = (self.count % interval as u64) as usize;
        self.losses[slot] = loss;
        self.grad_norms[slot] = grad_norm;
        self.count += 1;
        spike
    }
}

/// Mean and standard deviation (over n - 1).
fn mean_and_deviation(values: &[f32]) -> (f32, f32) {
    let mean = values.iter().sum::<f32>() / values.len().max(1) as f32;
    let squares: f32 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / values.len().saturating_sub(1).max(1) as f32).sqrt())
}
