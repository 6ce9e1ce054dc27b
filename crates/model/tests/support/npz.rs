//! Reads numpy archives: a zip of .npy files, each a header in Python's notation and the elements.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use zip::ZipArchive;

/// Arrays by name; numbers converted to float32, which holds all that the vectors need.
pub struct Npz(HashMap<String, Array>);

#[derive(Debug, Clone)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Where the golden vectors are, or None, said aloud, when this checkout stands alone.
pub fn golden(file: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden").join(file);
    if !path.exists() {
        eprintln!("skipped: no golden vectors at {}", path.display());
        return None;
    }
    Some(path)
}

impl Npz {
    pub fn open(path: &Path) -> Self {
        let mut archive = ZipArchive::new(File::open(path).unwrap()).unwrap();
        let mut arrays = HashMap::new();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            arrays.insert(entry.name().trim_end_matches(".npy").to_owned(), Array::parse(&bytes));
        }
        Self(arrays)
    }

    pub fn get(&self, name: &str) -> &Array {
        self.0.get(name).unwrap_or_else(|| panic!("no array `{name}`"))
    }

    pub fn scalar(&self, name: &str) -> f64 {
        f64::from(self.get(name).values[0])
    }

    pub fn integers(&self, name: &str) -> Vec<i32> {
        self.get(name).values.iter().map(|&value| value as i32).collect()
    }

    /// Arrays whose name starts with `prefix`, without it.
    pub fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a Array)> {
        self.0.iter().filter_map(move |(name, array)| Some((name.strip_prefix(prefix)?, array)))
    }
}

impl Array {
    /// A .npy file: the magic and two version bytes, the header's length (2 bytes in version 1), the header
    /// `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 32), }`, then the elements.
    fn parse(bytes: &[u8]) -> Self {
        assert_eq!(bytes[..8], *b"\x93NUMPY\x01\x00");
        let (header, elements) = bytes[10..].split_at(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])));
        let header = std::str::from_utf8(header).unwrap();
        let after = |key: &str| header.split_once(key).unwrap_or_else(|| panic!("no {key} in {header}")).1;
        assert!(after("'fortran_order': ").starts_with("False"));
        let shape = after("'shape': (").split(')').next().unwrap().split(',');
        let shape: Vec<usize> =
            shape.map(str::trim).filter(|dim| !dim.is_empty()).map(|dim| dim.parse().unwrap()).collect();
        let word: fn([u8; 4]) -> f32 = match after("'descr': '").split('\'').next().unwrap() {
            "|i1" => {
                let values = elements.iter().map(|&byte| f32::from(byte.cast_signed())).collect();
                return Self { shape, values };
            }
            "<f4" => f32::from_le_bytes,
            "<i4" => |word| i32::from_le_bytes(word) as f32,
            "<u4" => |word| u32::from_le_bytes(word) as f32,
            other => panic!("element type {other}"),
        };
        let values: Vec<f32> = elements.as_chunks().0.iter().map(|&bytes| word(bytes)).collect();
        assert_eq!(values.len(), shape.iter().product::<usize>());
        Self { shape, values }
    }
}
