//! MaxText's other keys, so that its files load: each is accepted without effect or, where it would change what
//! is trained, refused. The reason stands beside it, by group.

use super::{KeySpec, State};

/// Rows of keys that nothing reads, grouped by MaxText's group and by state.
macro_rules! known {
    ($( $group:literal { $( $state:ident($reason:literal) { $( $name:ident: $ty:ty = $default:literal; )* } )* } )*) => {
        pub(super) static KEYS: &[super::KeySpec] = &[ $($($(
            super::KeySpec::new::<$ty>(stringify!($name), $group, $default, "", super::State::$state($reason)),
        )*)*)* ];
    };
}

mod data;
mod inference;
mod model;
mod moe;
mod multimodal;
mod run;
mod tuning;

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static KeySpec> {
    [data::KEYS, inference::KEYS, model::KEYS, moe::KEYS, multimodal::KEYS, run::KEYS, tuning::KEYS]
        .into_iter()
        .flatten()
}
