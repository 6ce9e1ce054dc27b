//! One file, whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::Repo;
use super::cache::make_parent;
use super::client::{Failure, header};
use super::listing::RepoFile;
use crate::DataError;

/// A file on disk that stays there as long as this lives: other processes with the same cache don't delete it.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) path: PathBuf,
    /// It wasn't there.
    pub(super) downloaded: bool,
    /// A lock that is shared with other readers; none in a cache that can't be written to.
    _pin: Option<File>,
}

impl Repo {
    /// The file's place on disk, downloaded if it isn't there.
    ///
    /// A download grows in `ETAG.incomplete`, goes on from there after a break (of the connection or of the run)
    /// and gets its name once size and checksum are right. A lock keeps two processes from loading the same file.
    ///
    /// # Errors
    /// [`DataError::File`] naming the file and the last cause; [`DataError::Io`] when the disk is full.
    pub(super) fn fetch(&self, file: &RepoFile) -> Result<Fetched, DataError> {
        let blob = self.cache.blob(&file.etag);
        let mut downloaded = false;
        loop {
            // Waits for a process that downloads or deletes it.
            let pin = File::create(self.cache.lock(&file.etag)).and_then(|lock| {
                lock.lock_shared()?;
                Ok(lock)
            });
            if is_whole(&blob, file) {
                let path = self.cache.link(&self.commit, &file.path, &file.etag)?;
                return Ok(Fetched { path, downloaded, _pin: pin.ok() });
            }
            drop(pin);
            downloaded |= self.load(file, &blob)?;
        }
    }

    /// Downloads the file unless another process has; whether it did.
    fn load(&self, file: &RepoFile, blob: &Path) -> Result<bool, DataError> {
        let bad = |reason: String| DataError::File { file: format!("{}/{}", self.name, file.path), reason };
        if self.client.offline {
            return Err(bad("HF_HUB_OFFLINE is set and the file isn't in the cache".into()));
        }
        make_parent(blob)?;
        let lock_path = self.cache.lock(&file.etag);
        make_parent(&lock_path)?;
        let lock = File::create(&lock_path).map_err(|source| DataError::io(&lock_path, source))?;
        lock.lock().map_err(|source| DataError::io(&lock_path, source))?;
        if is_whole(blob, file) {
            return Ok(false);
        }
        self.download(file, blob).map(|()| true).map_err(|error| match error {
            Stop::Network(reason) => bad(reason),
            Stop::Disk(path, source) => DataError::io(path, source),
        })
    }

    /// Takes a file off the disk, unless a process reads it; whether it's gone.
    pub(super) fn forget(&self, file: &RepoFile) -> bool {
        let Ok(lock) = File::create(self.cache.lock(&file.etag)) else { return false };
        if lock.try_lock().is_err() {
            return false;
        }
        let _ = std::fs::remove_file(self.cache.snapshot(&self.commit).join(&file.path));
        let _ = std::fs::remove_file(self.cache.blob(&file.etag));
        true
    }

    fn download(&self, file: &RepoFile, blob: &Path) -> Result<(), Stop> {
        let partial = blob.with_extension("incomplete");
        let url = self.url(&file.path);
        let mut disk = None;
        let outcome = self.client.retrying(&format!("{}/{}", self.name, file.path), || {
            self.attempt(file, &url, &partial).map_err(|stop| match stop {
                Attempt::Failed(failure) => failure,
                Attempt::Disk(error) => {
                    let reason = error.to_string();
                    disk = Some(error);
                    Failure::Fatal(reason)
                }
            })
        });
        if let Some(error) = disk {
            return Err(Stop::Disk(partial, error));
        }
        outcome.map_err(Stop::Network)?;
        std::fs::rename(&partial, blob).map_err(|error| Stop::Disk(blob.to_owned(), error))
    }

    /// Downloads what is missing of `partial` and checks it.
    fn attempt(&self, file: &RepoFile, url: &str, partial: &Path) -> Result<(), Attempt> {
        let mut disk = OpenOptions::new().create(true).append(true).open(partial).map_err(Attempt::Disk)?;
        let mut have = disk.metadata().map_err(Attempt::Disk)?.len();
        if have > file.size {
            disk.set_len(0).map_err(Attempt::Disk)?;
            have = 0;
        }
        if have < file.size || file.size == 0 {
            let mut response = self.client.get(url, have)?;
            let resumes = response.status().as_u16() == 206
                && header(&response, "content-range")
                    .is_some_and(|range| range.starts_with(&format!("bytes {have}-")));
            if have > 0 && !resumes {
                // The server sends it from the start.
                disk.set_len(0).map_err(Attempt::Disk)?;
                have = 0;
            }
            let start = have;
            let mut body = response.body_mut().as_reader();
            let mut buffer = vec![0; 256 << 10];
            let broken = loop {
                match body.read(&mut buffer) {
                    Ok(0) => break "the connection was closed".to_owned(),
                    Ok(n) => {
                        disk.write_all(&buffer[..n]).map_err(Attempt::Disk)?;
                        have += n as u64;
                        if have > file.size {
                            disk.set_len(0).map_err(Attempt::Disk)?;
                            return Err(Failure::again(format!(
                                "more than the {} bytes expected",
                                file.size
                            ))
                            .into());
                        }
                    }
                    Err(error) => break error.to_string(),
                }
            };
            if have < file.size {
                let reason = format!("{broken} after {have} of {} bytes", file.size);
                return Err(Failure::Again { reason, after: None, progress: have > start }.into());
            }
        }
        if file.sha256 && sha256(partial).map_err(Attempt::Disk)? != file.etag {
            disk.set_len(0).map_err(Attempt::Disk)?;
            return Err(Failure::again("the content's checksum is wrong").into());
        }
        disk.sync_all().map_err(Attempt::Disk)
    }
}

/// Why a download ended.
enum Stop {
    Network(String),
    Disk(PathBuf, std::io::Error),
}

/// Why an attempt ended.
enum Attempt {
    Failed(Failure),
    Disk(std::io::Error),
}

impl From<Failure> for Attempt {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A blob has its name only when it is whole; the size is checked against other clients' mistakes.
fn is_whole(blob: &Path, file: &RepoFile) -> bool {
    blob.metadata().is_ok_and(|metadata| metadata.len() == file.size)
}

fn sha256(path: &Path) -> std::io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            n => hash.update(&buffer[..n]),
        }
    }
}
