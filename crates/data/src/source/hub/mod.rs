//! Data sets and tokenizers from the Hugging Face Hub, through the cache that its other clients use.
//!
//! The Hub's own Rust client pulls in an asynchronous runtime; what is needed here is small: list a repository,
//! download files that survive broken connections, keep them in the shared cache layout.

mod ahead;
mod cache;
mod choose;
mod client;
mod download;
mod listing;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;

pub(crate) use ahead::HubFiles;
pub(crate) use choose::Request;
use client::{Client, Retry};

/// Where the Hub is, who asks, and where its cache lies.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `HF_ENDPOINT`, or the public Hub.
    pub(crate) endpoint: String,
    /// `hf_access_token`, `HF_TOKEN`, or what `hf auth login` left.
    pub(crate) token: Option<Token>,
    /// The folder that holds `datasets--owner--name`.
    pub(crate) cache: PathBuf,
    /// `HF_HUB_OFFLINE`: nothing is asked of the network.
    pub(crate) offline: bool,
    /// A file of certificates to trust instead of the built-in ones (`SSL_CERT_FILE`).
    pub(crate) certificates: Option<PathBuf>,
    /// Bytes of downloaded data to keep on disk (`hub_cache_gb`).
    pub(crate) keep_bytes: u64,
    pub(crate) retry: Retry,
}

impl Settings {
    /// From the variables that `huggingface_hub` reads; `token` is the configuration's own.
    pub(crate) fn from_env(
        var: impl Fn(&str) -> Option<String>,
        token: Option<&str>,
        keep_bytes: u64,
    ) -> Self {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        let home = var("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = var("XDG_CACHE_HOME").map(PathBuf::from);
            let cache =
                cache.unwrap_or_else(|| PathBuf::from(var("HOME").unwrap_or_default()).join(".cache"));
            cache.join("huggingface")
        });
        let saved_token = || {
            let path = var("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
            let token = std::fs::read_to_string(path).ok()?.trim().to_owned();
            (!token.is_empty()).then_some(token)
        };
        let yes = |name: &str| {
            var(name).is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str()))
        };
        let endpoint = var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.map(str::to_owned).or_else(|| var("HF_TOKEN")).or_else(saved_token).map(Token),
            cache: var("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from),
            offline: yes("HF_HUB_OFFLINE") || yes("HF_DATASETS_OFFLINE"),
            certificates: var("SSL_CERT_FILE").or_else(|| var("REQUESTS_CA_BUNDLE")).map(PathBuf::from),
            keep_bytes,
            retry: Retry::default(),
        }
    }
}

/// Proves to the Hub who asks; never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<hidden>")
    }
}

/// What a repository holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Dataset,
    Model,
}

/// A repository at the revision that `main` names.
#[derive(Debug)]
pub(crate) struct Repo {
    client: Client,
    cache: cache::RepoCache,
    kind: Kind,
    /// `owner/name`.
    name: String,
    /// The commit that `main` was when the run started.
    commit: String,
    info: listing::Info,
}
