//! What a repository holds: its commit, its card, its files.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cache::{self, RepoCache};
use super::client::Client;
use super::{Kind, Repo, Settings};
use crate::DataError;

/// The part of a repository's description that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Info {
    sha: String,
    #[serde(rename = "cardData", default)]
    pub(super) card: Option<Card>,
}

/// The head of a repository's README.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Card {
    /// Named sets of files (`hf_name`); kept as they are, since their form varies.
    #[serde(default)]
    pub(super) configs: Value,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RepoFile {
    /// Path in the repository.
    pub(super) path: String,
    /// Bytes.
    pub(super) size: u64,
    /// Name of its blob: SHA-256 of the content for large files, else git's own hash.
    pub(super) etag: String,
    /// `etag` is the content's SHA-256.
    pub(super) sha256: bool,
}

/// An entry of the Hub's own list.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: String,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    oid: String,
    size: u64,
}

impl From<Entry> for RepoFile {
    fn from(entry: Entry) -> Self {
        match entry.lfs {
            Some(large) => Self { path: entry.path, size: large.size, etag: large.oid, sha256: true },
            None => Self { path: entry.path, size: entry.size, etag: entry.oid, sha256: false },
        }
    }
}

impl Repo {
    /// Opens `name` at the commit that `main` names now, or named when the cache was filled if the Hub can't be
    /// asked.
    ///
    /// # Errors
    /// [`DataError::File`] when the repository doesn't exist, isn't open to this token, or can't be reached and
    /// isn't in the cache.
    pub(crate) fn open(settings: &Settings, kind: Kind, name: &str) -> Result<Self, DataError> {
        let client = Client::new(settings)?;
        let cache = RepoCache::new(&settings.cache, kind, name);
        let bad = |reason: String| DataError::File { file: name.to_owned(), reason };
        let answer = if client.offline {
            Err("HF_HUB_OFFLINE is set".to_owned())
        } else {
            let url = format!("{}/api/{}/{name}/revision/main", client.endpoint, plural(kind));
            client.json::<Info>(&url).map(|(info, _)| info)
        };
        let info = match answer {
            Ok(info) if cache::is_name(&info.sha) => {
                cache.set_main(&info.sha)?;
                save(&cache, &info.sha, "info", &info)?;
                info
            }
            Ok(info) => return Err(bad(format!("the Hub names the commit {:?}", info.sha))),
            // The Hub says no: an old copy is no answer to that.
            Err(reason) if reason.starts_with("HTTP 4") => return Err(bad(reason)),
            Err(reason) => {
                let commit = cache.main().ok_or_else(|| {
                    bad(format!(
                        "can't be reached ({reason}) and isn't in the cache {}",
                        cache.folder.display()
                    ))
                })?;
                if !client.offline {
                    tracing::warn!(
                        "{name}: can't be reached ({reason}); using commit {commit} from the cache"
                    );
                }
                load(&cache, &commit, "info").unwrap_or(Info { sha: commit, card: None })
            }
        };
        let commit = info.sha.clone();
        Ok(Self { client, cache, kind, name: name.to_owned(), commit, info })
    }

    /// All files below `folder` ("" for all of the repository), sorted by path. Without network: as last listed.
    pub(super) fn files(&self, folder: &str) -> Result<Vec<RepoFile>, DataError> {
        let slug = format!("files-{}", folder.replace('/', "--"));
        if let Some(files) = load(&self.cache, &self.commit, &slug) {
            return Ok(files); // a commit never changes
        }
        let bad = |reason: String| DataError::File { file: format!("{}/{folder}", self.name), reason };
        if self.client.offline {
            let reason = "HF_HUB_OFFLINE is set and the list of files isn't in the cache";
            return Err(bad(reason.into()));
        }
        let (base, kind) = (&self.client.endpoint, plural(self.kind));
        let folder_part = if folder.is_empty() { String::new() } else { format!("/{}", encode(folder)) };
        let mut url =
            format!("{base}/api/{kind}/{}/tree/{}{folder_part}?recursive=true", self.name, self.commit);
        let mut files: Vec<RepoFile> = Vec::new();
        loop {
            let (page, next) = self.client.json::<Vec<Entry>>(&url).map_err(bad)?;
            files.extend(page.into_iter().filter(|entry| entry.kind == "file").map(RepoFile::from));
            match next {
                Some(next) => url = next,
                None => break,
            }
        }
        if let Some(file) =
            files.iter().find(|file| !cache::is_inside(&file.path) || !cache::is_name(&file.etag))
        {
            return Err(bad(format!("the Hub lists a file by the name {:?}", file.path)));
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        save(&self.cache, &self.commit, &slug, &files)?;
        Ok(files)
    }

    /// Address of a file's content.
    pub(super) fn url(&self, path: &str) -> String {
        let kind = if self.kind == Kind::Dataset { "datasets/" } else { "" };
        format!("{}/{kind}{}/resolve/{}/{}", self.client.endpoint, self.name, self.commit, encode(path))
    }
}

/// A path as part of an address.
fn encode(path: &str) -> String {
    path.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                (byte as char).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Dataset => "datasets",
        Kind::Model => "models",
    }
}

/// What was learnt about a commit is kept beside the shared layout, for runs without network.
fn save<T: Serialize>(cache: &RepoCache, commit: &str, what: &str, value: &T) -> Result<(), DataError> {
    let path = cache.folder.join("mt-train").join(commit).join(format!("{what}.json"));
    let json = serde_json::to_vec(value).map_err(|error| DataError::io(&path, error.into()))?;
    cache::write(&path, &json)
}

fn load<T: for<'de> Deserialize<'de>>(cache: &RepoCache, commit: &str, what: &str) -> Option<T> {
    let path = cache.folder.join("mt-train").join(commit).join(format!("{what}.json"));
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
