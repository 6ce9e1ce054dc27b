use super::*;
use proptest::prelude::*;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn one_file_when_it_fits() {
    let folder = tempfile::tempdir().unwrap();
    let mut manifest = Manifest::new(0);
    write_some(folder.path(), &mut manifest, 1, u64::MAX).unwrap();
    assert_eq!(names(folder.path()), ["model.safetensors"]);

    let files = TensorFiles::open(folder.path(), "model").unwrap();
    assert_eq!(files.metadata("scan_layers"), Some("true"));
    for (spec, bytes) in some_tensors(1) {
        let info = files.info(&spec.name).unwrap();
        assert_eq!((info.dtype, &info.shape), (spec.dtype, &spec.shape));
        assert_eq!(files.read(&spec.name).unwrap(), bytes);
        // Aligned in the file, as those who map it into memory need it.
        assert_eq!(info.data_offsets.0 * 8 % spec.dtype.bitsize(), 0);
    }
    manifest.verify(folder.path()).unwrap();
}

#[test]
fn the_safetensors_crate_reads_what_we_write() {
    let folder = tempfile::tempdir().unwrap();
    write_some(folder.path(), &mut Manifest::new(0), 1, u64::MAX).unwrap();
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.len(), 5);
    for (spec, bytes) in some_tensors(1) {
        assert_eq!(theirs.tensor(&spec.name).unwrap().data(), bytes);
    }
}

#[test]
fn several_files_and_an_index_when_it_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut manifest = Manifest::new(0);
    write_some(folder.path(), &mut manifest, 2, 64).unwrap();
    let expected = [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ];
    assert_eq!(names(folder.path()), expected);
    assert_eq!(manifest.files.keys().collect::<Vec<_>>(), expected);

    let index = std::fs::read_to_string(folder.path().join(expected[3])).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], 256 + 60 + 16 + 4);
    assert_eq!(index["weight_map"]["token_embedder/embedding"], expected[0]);

    let files = TensorFiles::open(folder.path(), "model").unwrap();
    assert_eq!(files.names().count(), 5);
    for (spec, bytes) in some_tensors(2) {
        assert_eq!(files.read(&spec.name).unwrap(), bytes);
    }
}

#[test]
fn a_body_of_the_wrong_size_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let spec = TensorSpec { name: "w".to_owned(), dtype: Dtype::F32, shape: vec![2] };
    let short = |_: usize, body: &mut Body<'_>| body.write(&[0; 7]);
    let error =
        write_tensors(folder.path(), "model", &mut Manifest::new(0), &BTreeMap::new(), &[spec], 99, short);
    assert!(error.unwrap_err().to_string().contains("tensor `w`"));
}

#[test]
fn a_missing_tensor_is_named_with_the_nearest() {
    let folder = tempfile::tempdir().unwrap();
    write_some(folder.path(), &mut Manifest::new(0), 1, u64::MAX).unwrap();
    let files = TensorFiles::open(folder.path(), "model").unwrap();
    let error = files.read("decoder/layers_0/mlp/wo/kernel").unwrap_err().to_string();
    assert!(error.contains("the nearest is `decoder/layers/mlp/wo/kernel`"), "{error}");
}

proptest! {
    #[test]
    fn any_tensors_come_back(
        tensors in prop::collection::btree_map("[a-z/é\"\\\\]{1,12}", (0usize..5, 0usize..5, any::<bool>()), 0..8),
        max_file_bytes in 0u64..150,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let specs: Vec<TensorSpec> = tensors
            .into_iter()
            .map(|(name, (rows, cols, wide))| TensorSpec {
                name,
                dtype: if wide { Dtype::F32 } else { Dtype::BF16 },
                shape: vec![rows, cols],
            })
            .collect();
        let bytes = |i: usize| vec![i as u8; specs[i].num_bytes() as usize];
        let mut manifest = Manifest::new(0);
        write_tensors(folder.path(), "model", &mut manifest, &BTreeMap::new(), &specs, max_file_bytes, |i, body| {
            body.write(&bytes(i))
        }).unwrap();
        manifest.verify(folder.path()).unwrap();
        let files = TensorFiles::open(folder.path(), "model").unwrap();
        prop_assert_eq!(files.names().count(), specs.len());
        for (i, spec) in specs.iter().enumerate() {
            prop_assert_eq!(files.read(&spec.name).unwrap(), bytes(i));
            prop_assert_eq!(&files.info(&spec.name).unwrap().shape, &spec.shape);
        }
    }
}
