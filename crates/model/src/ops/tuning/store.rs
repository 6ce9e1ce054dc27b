//! The choices for a device, in memory and in a file: a line that names the device and the version, then one per kind of call.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// To be raised when a kernel changes so much that its measurements don't hold any more.
const KERNELS: u32 = 1;

pub(super) struct Store {
    known: BTreeMap<String, String>,
    file: Option<File>,
}

struct File {
    path: PathBuf,
    /// Its first line.
    title: String,
}

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
enum Bad {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("line 1 is {found:?}, expected {expected:?}")]
    Title { found: String, expected: String },
    #[error("line {line} is {text:?}, expected a kind of call and a variant with a tab between them")]
    Line { line: usize, text: String },
}

impl Store {
    /// Reads what `folder` has for `device`; a file that can't be used is as good as none, but for a line to `report`.
    pub(super) fn open(folder: Option<&Path>, device: &str, report: &impl Fn(&str)) -> Self {
        let file = folder.map(|folder| File::new(folder, device));
        let Some(file) = file else { return Self { known: BTreeMap::new(), file } };
        match file.read() {
            Ok(known) => Self { known, file: Some(file) },
            Err(bad) => {
                report(&format!("measurements in {} are ignored: {bad}", file.path.display()));
                // What can't be read needn't be written; what is there but no file of ours is replaced.
                Self { known: BTreeMap::new(), file: Some(file).filter(|_| !matches!(bad, Bad::Io(_))) }
            }
        }
    }

    pub(super) fn get(&self, kind: &str) -> Option<&str> {
        self.known.get(kind).map(String::as_str)
    }

    /// Keeps `choice` and returns it, or what another process has written in the meantime, if that's `valid`. A folder that can't be
    /// written to gets one line in `report` and is left alone from then on.
    pub(super) fn put(
        &mut self,
        kind: &str,
        choice: &str,
        valid: impl Fn(&str) -> bool,
        report: &impl Fn(&str),
    ) -> String {
        let mut kept = choice.to_owned();
        if let Some(file) = &self.file {
            let mut written = file.read().unwrap_or_default();
            if let Some(other) = written.get(kind).filter(|other| valid(other)) {
                kept = other.clone();
            }
            self.known.append(&mut written);
            self.known.insert(kind.to_owned(), kept.clone());
            if let Err(error) = file.write(&self.known) {
                report(&format!("measurements aren't kept in {}: {error}", file.path.display()));
                self.file = None;
            }
        }
        self.known.insert(kind.to_owned(), kept.clone());
        kept
    }
}

impl File {
    fn new(folder: &Path, device: &str) -> Self {
        let device: String = device.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let words = device.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let name: Vec<&str> = words.collect();
        let version = env!("CARGO_PKG_VERSION");
        Self {
            path: folder.join(format!("kernels-{version}-{KERNELS}-{}.txt", name.join("-"))),
            title: format!("mt-train {version}, kernels {KERNELS}, {device}"),
        }
    }

    /// Nothing from a file that isn't there.
    fn read(&self) -> Result<BTreeMap<String, String>, Bad> {
        let bytes = match std::fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            bytes => bytes?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let (title, lines) = text.split_once('\n').unwrap_or((&text, ""));
        if title != self.title {
            return Err(Bad::Title {
                found: title.chars().take(200).collect(),
                expected: self.title.clone(),
            });
        }
        let entry = |(i, line): (usize, &str)| match line.split_once('\t') {
            Some((kind, choice)) if !choice.contains('\t') => Ok((kind.to_owned(), choice.to_owned())),
            _ => Err(Bad::Line { line: i + 2, text: line.chars().take(200).collect() }),
        };
        lines.lines().enumerate().map(entry).collect()
    }

    /// Puts a whole file in the place of the old one, so that no reader sees half of it.
    fn write(&self, known: &BTreeMap<String, String>) -> io::Result<()> {
        let lines = known.iter().map(|(kind, choice)| format!("{kind}\t{choice}\n"));
        let text = format!("{}\n{}", self.title, lines.collect::<String>());
        std::fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
        let new = self.path.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&new, text)?;
        std::fs::rename(&new, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const DEVICE: &str = "llvmpipe (LLVM 15.0.6, 256 bits) wgpu";

    fn open(folder: &Path) -> (Store, Vec<String>) {
        let lines = RefCell::new(Vec::new());
        let store = Store::open(Some(folder), DEVICE, &|line: &str| lines.borrow_mut().push(line.to_owned()));
        (store, lines.into_inner())
    }

    fn put(store: &mut Store, kind: &str, choice: &str) -> Vec<String> {
        let lines = RefCell::new(Vec::new());
        let kept = store.put(kind, choice, |_| true, &|line: &str| lines.borrow_mut().push(line.to_owned()));
        assert_eq!(kept, choice);
        lines.into_inner()
    }

    #[test]
    fn a_file_names_the_device_and_the_version() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let (mut store, lines) = open(folder.path());
        assert!(lines.is_empty(), "a missing file isn't worth a line: {lines:?}");
        assert!(put(&mut store, "b", "64x64").is_empty() && put(&mut store, "a", "32x32").is_empty());
        let files: Vec<PathBuf> = std::fs::read_dir(folder.path())
            .expect("it's there")
            .map(|file| file.expect("one").path())
            .collect();
        let version = env!("CARGO_PKG_VERSION");
        let name = format!("kernels-{version}-1-llvmpipe-LLVM-15-0-6-256-bits-wgpu.txt");
        assert_eq!(files, [folder.path().join(name)]);
        assert_eq!(
            std::fs::read_to_string(&files[0]).expect("it's there"),
            format!("mt-train {version}, kernels 1, {DEVICE}\na\t32x32\nb\t64x64\n")
        );
        let (store, lines) = open(folder.path());
        assert_eq!((store.get("a"), store.get("c"), lines.len()), (Some("32x32"), None, 0));
    }

    #[test]
    fn a_corrupted_file_is_ignored_with_one_line_and_replaced() {
        let path = File::new(Path::new(""), DEVICE).path;
        let title = File::new(Path::new(""), DEVICE).title;
        for text in [
            Vec::new(),
            b"mt-train 0.0.0, kernels 1, another\na\t64x64\n".to_vec(),
            b"\xff\xfe\x00".to_vec(),
            format!("{title}\na\t64x64\nb 32x").into_bytes(),
            format!("{title}\na\t64\tx64\n").into_bytes(),
        ] {
            let folder = tempfile::tempdir().expect("a folder for the test");
            std::fs::write(folder.path().join(&path), text).expect("a file");
            let (mut store, lines) = open(folder.path());
            assert_eq!((lines.len(), store.get("a")), (1, None), "{lines:?}");
            assert!(lines[0].contains("llvmpipe"), "{lines:?}");
            assert!(put(&mut store, "a", "32x32").is_empty());
            assert_eq!(open(folder.path()).0.get("a"), Some("32x32"));
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_gets_one_line() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("a file");
        // Nobody makes a folder of a file, not even root.
        let (mut store, lines) = open(&file.join("below"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(put(&mut store, "a", "64x64").len() + put(&mut store, "b", "64x32").len(), 0);
        assert_eq!((store.get("a"), store.get("b")), (Some("64x64"), Some("64x32")));
        // One that turns so later.
        let below = folder.path().join("below");
        let (mut store, lines) = open(&below);
        assert!(lines.is_empty(), "{lines:?}");
        std::fs::write(&below, "").expect("a file");
        assert_eq!(put(&mut store, "a", "64x64").len(), 1);
        assert_eq!(put(&mut store, "b", "64x32").len(), 0);
        assert_eq!((store.get("a"), store.get("b")), (Some("64x64"), Some("64x32")));
    }
}
