//! Shards downloaded ahead of their use, and taken off the disk behind it.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::download::Fetched;
use super::listing::RepoFile;
use super::{Kind, Repo, Request, Settings};
use crate::DataError;
use crate::error::spawn;
use crate::source::Format;

/// Downloads at once; also the number of shards fetched ahead.
const AHEAD: usize = 2;

/// The files of one split of a data set on the Hub.
#[derive(Debug)]
pub(crate) struct HubFiles {
    shared: Arc<Shared>,
    format: Format,
}

#[derive(Debug)]
struct Shared {
    repo: Repo,
    files: Vec<RepoFile>,
    keep_bytes: u64,
    work: Mutex<Work>,
    changed: Condvar,
}

/// What is to be downloaded, what has been.
#[derive(Debug, Default)]
struct Work {
    wanted: VecDeque<usize>,
    loading: Vec<usize>,
    ready: HashMap<usize, Result<Fetched, DataError>>,
    /// The file that was handed out last; it's being read.
    current: Option<Fetched>,
    /// Files that this process downloaded, oldest first: they may be deleted.
    ours: VecDeque<usize>,
    threads: usize,
    closed: bool,
}

impl HubFiles {
    /// Finds the files of a split; nothing is downloaded yet.
    ///
    /// # Errors
    /// The repository can't be had, or has no such files.
    pub(crate) fn open(settings: &Settings, repo: &str, request: &Request) -> Result<Self, DataError> {
        let repo = Repo::open(settings, Kind::Dataset, repo)?;
        let (files, format) = repo.choose(request)?;
        tracing::info!("{}: {} files at commit {}", repo.name, files.len(), repo.commit);
        let shared = Shared {
            repo,
            files,
            keep_bytes: settings.keep_bytes,
            work: Mutex::default(),
            changed: Condvar::new(),
        };
        Ok(Self { shared: Arc::new(shared), format })
    }

    /// Number of files.
    pub(crate) fn len(&self) -> usize {
        self.shared.files.len()
    }

    /// Format of all of them.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Name of a file, for messages.
    pub(crate) fn name(&self, file: usize) -> String {
        format!("{}/{}", self.shared.repo.name, self.shared.files[file].path)
    }

    /// The file's place on disk, once it is there; meanwhile the first of `upcoming` are fetched too.
    ///
    /// # Errors
    /// The file stays out of reach, or the disk is full.
    pub(crate) fn fetch(&self, file: usize, upcoming: &[usize]) -> Result<PathBuf, DataError> {
        let upcoming = &upcoming[..upcoming.len().min(AHEAD)];
        let mut work = self.shared.lock();
        work.wanted.retain(|&wanted| wanted != file);
        for &wanted in upcoming {
            work.want(wanted, false);
        }
        work.want(file, true);
        self.start_threads(&mut work)?;
        self.shared.changed.notify_all();
        loop {
            match work.ready.remove(&file) {
                Some(Ok(fetched)) => {
                    let path = fetched.path.clone();
                    work.current = Some(fetched);
                    self.shared.evict(&mut work, file, upcoming);
                    return Ok(path);
                }
                Some(Err(error)) => return Err(error),
                None => work = self.shared.changed.wait(work).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn start_threads(&self, work: &mut Work) -> Result<(), DataError> {
        while work.threads < AHEAD.min(self.len()) {
            let shared = Arc::clone(&self.shared);
            spawn(format!("mt-data-fetch-{}", work.threads), move || shared.run())?;
            work.threads += 1;
        }
        Ok(())
    }
}

impl Drop for HubFiles {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Work {
    fn want(&mut self, file: usize, first: bool) {
        let known =
            self.ready.contains_key(&file) || self.loading.contains(&file) || self.wanted.contains(&file);
        match (known, first) {
            (true, _) => {}
            (false, true) => self.wanted.push_front(file),
            (false, false) => self.wanted.push_back(file),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Downloads what is wanted until nobody listens any more.
    fn run(&self) {
        let mut work = self.lock();
        while !work.closed {
            let Some(file) = work.wanted.pop_front() else {
                work = self.changed.wait(work).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            work.loading.push(file);
            drop(work);
            let outcome = self.repo.fetch(&self.files[file]);
            work = self.lock();
            work.loading.retain(|&loading| loading != file);
            if outcome.as_ref().is_ok_and(|fetched| fetched.downloaded) {
                work.ours.push_back(file);
            }
            work.ready.insert(file, outcome);
            self.changed.notify_all();
        }
    }

    /// Deletes the oldest files that this process downloaded, but for those that it or another rank uses, until the rest fits.
    fn evict(&self, work: &mut Work, current: usize, upcoming: &[usize]) {
        let mut total: u64 = work.ours.iter().map(|&file| self.files[file].size).sum();
        let mut kept = VecDeque::new();
        while let Some(file) = work.ours.pop_front() {
            if total <= self.keep_bytes || file == current || upcoming.contains(&file) {
                kept.push_back(file);
                continue;
            }
            work.ready.remove(&file);
            if self.repo.forget(&self.files[file]) {
                total -= self.files[file].size;
            } else {
                kept.push_back(file);
            }
        }
        work.ours = kept;
    }
}

impl Repo {
    /// Downloads those of `paths` that the repository has; the folder that they are in then.
    ///
    /// # Errors
    /// The repository can't be had or has none of them.
    pub(crate) fn fetch_some(&self, paths: &[&str]) -> Result<PathBuf, DataError> {
        let mut files = self.files("")?;
        files.retain(|file| paths.contains(&file.path.as_str()));
        if files.is_empty() {
            let reason = format!("has none of {}", paths.join(", "));
            return Err(DataError::File { file: self.name.clone(), reason });
        }
        for file in &files {
            self.fetch(file)?;
        }
        Ok(self.cache.snapshot(&self.commit))
    }
}
