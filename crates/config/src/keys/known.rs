//! MaxText's other keys: known, without effect or refused, each with the reason.

use super::KeySpec;

pub(super) static KNOWN: &[KeySpec] = &[];
