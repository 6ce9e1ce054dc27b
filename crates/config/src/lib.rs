//! Flat MaxText and Primus YAML to a typed, resolved configuration.
//!
//! [`load`] is the entry: it reads the files, merges the layers, types every key and checks the whole.
//! What it returns, [`Config`], is immutable; nothing past it reads YAML or the environment.

mod arguments;
mod derived;
mod error;
mod files;
pub mod keys;
mod layers;
mod load;
mod model;
mod node;
mod notes;
mod parents;
pub mod plan;
mod presets;
mod primus;
mod ranks;
mod remat;
mod render;
mod resolve;
mod substitute;
mod validate;
mod yaml;

pub use error::{ConfigErrors, Problem};
pub use keys::Config;
pub use keys::choices::*;
pub use keys::kinds::{Files, Secret};
pub use layers::Setting;
pub use load::{LoadArgs, Note, load};
pub use model::{
    Activation, Activations, AttentionKernel, DType, DecoderBlock, ModelConfig, Placement, RematPolicy, Rope,
};
pub use node::{Place, Value};
pub use presets::model_names;
pub use ranks::{Degrees, Ranks};
pub use render::{docs_markdown, help_keys, scaling_markdown};
