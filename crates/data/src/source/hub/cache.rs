//! The cache layout that all clients of the Hub share: `blobs/ETAG`, `snapshots/COMMIT/PATH` pointing there, and
//! `refs/main` naming the commit. A blob has its name only when it is whole.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::Kind;
use crate::DataError;

/// The cache of one repository.
#[derive(Debug, Clone)]
pub(super) struct RepoCache {
    pub(super) folder: PathBuf,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, kind: Kind, repo: &str) -> Self {
        let kind = match kind {
            Kind::Dataset => "datasets",
            Kind::Model => "models",
        };
        Self { folder: cache.join(format!("{kind}--{}", repo.replace('/', "--"))) }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The file that a process locks while it downloads or deletes a blob, and locks with others while it reads one; it stays there.
    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        let (cache, name) = (self.folder.parent(), self.folder.file_name().unwrap_or_default());
        cache.unwrap_or(Path::new(".")).join(".locks").join(name).join(format!("{etag}.lock"))
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// The commit that `main` was when it was last asked for.
    pub(super) fn main(&self) -> Option<String> {
        let commit = fs::read_to_string(self.folder.join("refs/main")).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_name(commit))
    }

    pub(super) fn set_main(&self, commit: &str) -> Result<(), DataError> {
        write(&self.folder.join("refs/main"), commit.as_bytes())
    }

    /// Makes `path` of the snapshot point at a blob.
    pub(super) fn link(&self, commit: &str, path: &str, etag: &str) -> Result<PathBuf, DataError> {
        let pointer = self.snapshot(commit).join(path);
        let up = "../".repeat(path.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&pointer).is_ok_and(|old| old == target) {
            return Ok(pointer);
        }
        make_parent(&pointer)?;
        // Never gone for a moment: another rank may be about to open it.
        let beside = beside(&pointer);
        point(&beside, &target)
            .and_then(|()| fs::rename(&beside, &pointer))
            .map_err(|error| DataError::io(&pointer, error))?;
        Ok(pointer)
    }
}

/// A name beside `path` that nobody else uses.
fn beside(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}-{count}.tmp", std::process::id()))
}

/// Makes `pointer` stand for the file at `target`, given relative to the pointer's folder.
#[cfg(unix)]
fn point(pointer: &Path, target: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, pointer)
}

/// Makes `pointer` stand for the file at `target`: a second name, where links need rights.
#[cfg(not(unix))]
fn point(pointer: &Path, target: &Path) -> std::io::Result<()> {
    fs::hard_link(pointer.parent().unwrap_or(Path::new(".")).join(target), pointer)
}

/// Writes a small file whole: beside its place first, then by its name.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), DataError> {
    make_parent(path)?;
    let beside = beside(path);
    fs::write(&beside, content)
        .and_then(|()| fs::rename(&beside, path))
        .map_err(|source| DataError::io(path, source))
}

pub(super) fn make_parent(path: &Path) -> Result<(), DataError> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|source| DataError::io(folder, source))
}

/// A commit or etag that can be the name of a file.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 128
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// A path inside a repository that can't leave its folder.
pub(super) fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}
