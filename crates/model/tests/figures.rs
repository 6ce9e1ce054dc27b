//! Figures of our own, kept here: from seed 0 to a loss and the norm of its gradient. They were computed by the float64
//! reference, the norms by central differences; the crate must find them again, which pins initial weights and model alike.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::cases::{batch, configurations, model};
use support::{mean_gradients, norm, values};

/// Configuration, sum of cross-entropies, norm of the gradient of the mean.
const FIGURES: [(&str, f64, f64); 14] = [
    ("llama2", 82.936233411, 2.742651066),
    ("one layer", 83.403034459, 1.722867751),
    ("three layers", 89.714952730, 3.294509481),
    ("multi-head", 82.515844784, 1.916170369),
    ("multi-query", 92.076937223, 1.896706014),
    ("dot product", 82.936233411, 2.742651066),
    ("mistral, window", 82.937264650, 2.294157968),
    ("qwen2, tied", 86.220997912, 3.403167032),
    ("qwen3", 82.665573305, 2.952162991),
    ("llama3.1 rope", 80.784557016, 2.113485452),
    ("stretched rope", 82.998208580, 2.634552551),
    ("tied, not normalised", 196.286214718, 12.168913217),
    ("soft caps and z-loss", 82.212491538, 1.546775905),
    ("gelu, tiled vocabulary", 82.059812773, 2.833111534),
];

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
        // The tied head's share of the gradient is rounded to bfloat16, the recorded norm isn't.
        let bound = if config.logits_via_embedding { 1e-3 } else { 1e-5 };
        assert!((found / grad_norm - 1.0).abs() < bound, "{name}: gradient norm {found} was {grad_norm}");
    }
}
