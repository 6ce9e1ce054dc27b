//! From the name of a remat policy to where each activation stays.

use crate::keys::Config;
use crate::keys::choices::RematPolicyName;
use crate::model::{Activations, Placement, RematPolicy};

use Activations::*;

/// Matmul outputs of attention and MLP, what `minimal` keeps.
const MINIMAL: &[Activations] = &[QueryProj, KeyProj, ValueProj, OutProj, Mlpwi0, Mlpwi1, Mlpwo];

impl RematPolicyName {
    /// The policy by this name; `custom` takes its table from the per-activation keys of a [`Config`] instead
    /// and is `full` here.
    pub fn policy(self) -> RematPolicy {
        let kept: &[Activations] = match self {
            Self::Full | Self::Custom => &[],
            Self::None => &Activations::ALL,
            Self::Minimal | Self::MinimalOffloaded => MINIMAL,
            Self::MinimalWithContext => {
                &[QueryProj, KeyProj, ValueProj, Context, OutProj, Mlpwi0, Mlpwi1, Mlpwo]
            }
            Self::SaveDotWithContextExceptMlp => &[QueryProj, KeyProj, ValueProj, Context, OutProj],
            Self::SaveDotExceptMlpwi => &[QueryProj, KeyProj, ValueProj, OutProj, Mlpwo],
            Self::SaveDotExceptMlp => &[QueryProj, KeyProj, ValueProj, OutProj],
            Self::SaveQkvProj | Self::QkvProjOffloaded => &[QueryProj, KeyProj, ValueProj],
            Self::SaveOutProj => &[OutProj],
        };
        let place = match self {
            Self::MinimalOffloaded | Self::QkvProjOffloaded => Placement::Offload,
            _ => Placement::Device,
        };
        RematPolicy::new(|name| match name {
            DecoderLayerInput => Placement::Device,
            name if kept.contains(&name) => place,
            _ => Placement::Remat,
        })
    }
}

impl Config {
    /// Where each activation of a layer stays between forward and backward (`remat_policy`).
    pub fn remat(&self) -> RematPolicy {
        if self.remat_policy != RematPolicyName::Custom {
            return self.remat_policy.policy();
        }
        // The joint names are those of MaxText's fused matmuls: they stand in for names that aren't set.
        let first = |own: Placement, joint: &[Placement]| {
            let set = |placement: &Placement| *placement != Placement::Remat;
            std::iter::once(own).chain(joint.iter().copied()).find(set).unwrap_or(Placement::Remat)
        };
        RematPolicy::new(|name| match name {
            DecoderLayerInput => self.decoder_layer_input,
            QueryProj => first(self.query_proj, &[self.qkv_proj]),
            KeyProj => first(self.key_proj, &[self.kv_proj, self.qkv_proj]),
            ValueProj => first(self.value_proj, &[self.kv_proj, self.qkv_proj]),
            Context => self.context,
            OutProj => self.out_proj,
            Mlpwi0 => first(self.mlpwi_0, &[self.mlpwi]),
            Mlpwi1 => first(self.mlpwi_1, &[self.mlpwi]),
            Mlpwo => self.mlpwo,
        })
    }
}
