//! A configuration from text: files in a folder of its own, arguments and variables.

use std::path::PathBuf;

use mt_config::{Config, ConfigErrors, LoadArgs, load};
use tempfile::TempDir;

/// What a configuration is made of.
#[derive(Default)]
pub struct Setup {
    folder: Option<TempDir>,
    args: LoadArgs,
}

impl Setup {
    pub fn new() -> Self {
        Self::default()
    }

    /// Only a user's file.
    pub fn yaml(text: &str) -> Self {
        Self::new().file("run.yml", text).config("run.yml")
    }

    /// A file beside the others.
    pub fn file(mut self, name: &str, text: impl AsRef<[u8]>) -> Self {
        let folder = self.folder.get_or_insert_with(|| tempfile::tempdir().expect("a temporary folder"));
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, text).expect("a file");
        self
    }

    /// The user's file is this one.
    pub fn config(mut self, name: &str) -> Self {
        self.args.config_path = Some(self.path(name));
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.as_ref().expect("a file was written").path().join(name)
    }

    /// `key=value`, as on the command line.
    pub fn arg(mut self, argument: &str) -> Self {
        let (key, value) = argument.split_once('=').expect("key=value");
        self.args.overrides.push((key.to_owned(), value.to_owned()));
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.args.env.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn load(&self) -> Result<Config, ConfigErrors> {
        load(&self.args)
    }

    #[track_caller]
    pub fn loaded(&self) -> Config {
        self.load().unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[track_caller]
    pub fn refused(&self) -> String {
        match self.load() {
            Ok(_) => panic!("expected an error"),
            Err(errors) => errors.to_string(),
        }
    }
}

/// The value of a key as YAML.
pub fn value(config: &Config, key: &str) -> String {
    let setting = config.settings().find(|setting| setting.spec().name == key).expect("a key of the table");
    setting.value().to_string()
}

#[track_caller]
pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "expected `{part}` in:\n{text}");
    }
}
