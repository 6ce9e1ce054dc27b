//! Documents of a row don't see each other, and bad batches are refused by name.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use burn::tensor::Device;
use mt_config::{AttentionKernel, DType, ModelConfig};
use mt_model::batch::BatchError;
use mt_model::{BatchTensors, Model};
use support::{Packed, mean_gradients, small, values};

/// Two batches that differ in the first document of each row alone, of whose targets none counts.
fn differing_in_the_first_document(config: &ModelConfig) -> [Packed; 2] {
    let mut base = Packed::documents(&[&[10, 14, 5], &[7, 9, 16]], 32, config.vocab_size);
    let is_first = |segment: i32| segment == 1;
    for i in 0..base.inputs.len() {
        if is_first(base.inputs_segmentation[i]) {
            base.targets_segmentation[i] = 0;
        }
    }
    let mut other = base.clone();
    for i in (0..other.inputs.len()).filter(|&i| is_first(base.inputs_segmentation[i])) {
        other.inputs[i] = 2 + (other.inputs[i] + 101) % (config.vocab_size as i32 - 2);
    }
    [base, other]
}

#[test]
fn a_document_changes_no_bit_of_another() {
    for attention in [AttentionKernel::Flash, AttentionKernel::DotProduct] {
        for dtype in [DType::Float32, DType::BFloat16] {
            let config = ModelConfig { attention, dtype, ..small() };
            let model = Model::new(config.clone(), &Device::flex());
            let batches = differing_in_the_first_document(&config);
            let [(logits, loss, gradients), (other_logits, other_loss, other_gradients)] =
                batches.each_ref().map(|packed| {
                    let batch = packed.on_cpu(&config);
                    let (loss, gradients) = mean_gradients(&model, &batch);
                    (values(&model.logits(&batch)), loss.total_loss, gradients)
                });
            let rows = logits.chunks(config.vocab_size).zip(other_logits.chunks(config.vocab_size));
            for ((row, other), &segment) in rows.zip(&batches[0].inputs_segmentation) {
                assert_eq!(
                    row == other,
                    segment != 1,
                    "{attention:?} {dtype:?}: logits of document {segment}"
                );
            }
            assert_eq!(loss, other_loss, "{attention:?} {dtype:?}");
            for ((path, a), (_, b)) in gradients.leaves().into_iter().zip(other_gradients.leaves()) {
                assert!(values(a) == values(b), "{attention:?} {dtype:?}: gradient of {path}");
            }
        }
    }
}

#[test]
fn what_nothing_depends_on_may_be_anything() {
    let config = small();
    let mut packed = Packed::documents(&[&[20]], 32, config.vocab_size);
    let model = Model::new(config.clone(), &Device::flex());
    let loss = |packed: &Packed| mean_gradients(&model, &packed.on_cpu(&config)).0.total_loss;
    let before = loss(&packed);
    packed.inputs[25] = -1;
    packed.targets[25] = 1_000_000;
    assert_eq!(before, loss(&packed));
}

#[test]
fn bad_batches_are_refused_by_name() {
    let config = small();
    let good = Packed::documents(&[&[20], &[32]], 32, config.vocab_size);
    let refusal = |break_it: &dyn Fn(&mut Packed)| {
        let mut packed = good.clone();
        break_it(&mut packed);
        BatchTensors::new(&packed.rows(), &config, &Device::flex()).unwrap_err()
    };
    let token = refusal(&|packed| packed.inputs[35] = 256);
    assert_eq!(token.to_string(), "`inputs` holds token 256 in row 1 at column 3; vocab_size is 256");
    let position = refusal(&|packed| packed.inputs_position[1] = 32);
    assert_eq!(position.to_string(), "position 32 in row 0 at column 1 is outside 0..32 (max_target_length)");
    let length = refusal(&|packed| packed.targets.truncate(3));
    assert!(matches!(length, BatchError::Length { field: "targets", found: 3, .. }), "{length}");
}

/// A batch with no target that counts has loss 0 and no gradient, not NaN.
#[test]
fn nothing_to_learn_is_no_error() {
    let config = small();
    let mut packed = Packed::documents(&[&[20]], 32, config.vocab_size);
    packed.targets_segmentation.fill(0);
    let model = Model::new(config.clone(), &Device::flex());
    let (loss, gradients) = mean_gradients(&model, &packed.on_cpu(&config));
    assert_eq!((loss.total_loss, loss.total_weights), (0.0, 0.0));
    for (path, gradient) in gradients.leaves() {
        assert!(values(gradient).iter().all(|&g| g == 0.0), "{path}");
    }
}
