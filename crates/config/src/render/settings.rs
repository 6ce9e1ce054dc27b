//! Resolved settings: what differs from the defaults, everything, and YAML that loads back.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::keys::{Config, State};
use crate::layers::Setting;
use crate::node::Value;
use crate::substitute::escaped;

/// Keys whose values stay out of everything that is printed or saved.
const SECRETS: [&str; 1] = ["hf_access_token"];

impl Config {
    /// What differs from the defaults, with the place that set each value; one line a key.
    pub fn render_diff(&self) -> String {
        lines(self.settings().filter(|setting| setting.is_changed()))
    }

    /// Every key with its value and place; one line a key.
    pub fn render_all(&self) -> String {
        lines(self.settings())
    }

    /// The resolved configuration as YAML: implemented keys, then others that were set. It loads back to the same
    /// configuration; secrets are left out.
    pub fn to_yaml(&self) -> String {
        let mut text =
            String::from("# The resolved configuration of a run. It loads back to the same run.\n");
        for setting in self.saved() {
            let _ = writeln!(text, "{}: {}", setting.spec.name, escaped(&setting.value.to_string()));
        }
        text
    }

    /// SHA-256 of [`to_yaml`](Self::to_yaml), in hexadecimal.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(self.to_yaml().as_bytes());
        digest.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    fn saved(&self) -> impl Iterator<Item = &Setting> {
        self.settings().filter(|setting| {
            let is_used = setting.spec.state == State::Implemented || setting.is_changed();
            // A parent is already part of the values.
            is_used && !SECRETS.contains(&setting.spec.name) && setting.spec.name != "base_config"
        })
    }
}

fn lines<'a>(settings: impl Iterator<Item = &'a Setting>) -> String {
    let rows: Vec<[String; 3]> = settings
        .map(|setting| {
            let hidden = SECRETS.contains(&setting.spec.name) && setting.value != Value::Text(String::new());
            let value = if hidden { "<hidden>".to_owned() } else { setting.value.to_string() };
            [setting.spec.name.to_owned(), value, setting.place.to_string()]
        })
        .collect();
    aligned(&rows)
}

/// Columns aligned on the left; a long cell pushes only its own row.
fn aligned(rows: &[[String; 3]]) -> String {
    const WIDEST: usize = 32;
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.filter(|&width| width <= WIDEST).max().unwrap_or(0)
    };
    let (name_width, value_width) = (width(0), width(1));
    rows.iter().fold(String::new(), |mut text, [name, value, place]| {
        let _ = writeln!(text, "{name:name_width$}  {value:value_width$}  {place}");
        text
    })
}
