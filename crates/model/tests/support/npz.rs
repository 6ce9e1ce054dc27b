//! Reads numpy archives.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use npyz::npz::NpzArchive;
use npyz::{NpyFile, Order};

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
        let mut archive = NpzArchive::open(path).unwrap();
        let names: Vec<String> = archive.array_names().map(str::to_owned).collect();
        let read = |name: String| {
            let array = archive.by_name(&name).unwrap().unwrap();
            (name, Array::new(array))
        };
        Self(names.into_iter().map(read).collect())
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
    fn new<R: Read>(array: NpyFile<R>) -> Self {
        assert_eq!(array.order(), Order::C);
        let shape = array.shape().iter().map(|&dim| dim as usize).collect();
        let dtype = array.dtype().descr();
        let values = match dtype.as_str() {
            "'<f4'" => array.into_vec::<f32>().unwrap(),
            "'<i4'" => array.into_vec::<i32>().unwrap().into_iter().map(|value| value as f32).collect(),
            "'<u4'" => array.into_vec::<u32>().unwrap().into_iter().map(|value| value as f32).collect(),
            other => panic!("element type {other}"),
        };
        Self { shape, values }
    }
}
