//! Files that somebody else wrote, or nobody: an error that names the file, never a panic, never much memory.

use super::*;
use proptest::prelude::*;

/// The error of opening a file of these bytes and reading all tensors in it.
fn reason(bytes: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let error = match TensorFiles::open(folder.path(), "model") {
        Err(error) => error,
        Ok(files) => files.names().map(|name| files.read(name)).find_map(Result::err)?,
    };
    let text = error.to_string();
    assert!(text.contains("model.safetensors"), "{text}");
    Some(text)
}

fn with_header(json: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn bad_headers() {
    let of = |json: &str, data: &[u8]| reason(&with_header(json, data)).expect("an error");
    assert!(reason(b"").unwrap().contains("0 bytes are no safetensors file"));
    assert!(reason(&u64::MAX.to_le_bytes()).unwrap().contains("a header of 18446744073709551615 bytes"));
    assert!(reason(&100u64.to_le_bytes()).unwrap().contains("a header of 100 bytes in a file of 8"));
    assert!(of("not json", b"").contains("its header"));
    assert!(of("[1]", b"").contains("its header"));
    assert!(of(&"[".repeat(100_000), b"").contains("its header"));
    // Too short, too long.
    let tensor = |offsets: &str| format!(r#"{{"w":{{"dtype":"F32","shape":[1],"data_offsets":{offsets}}}}}"#);
    assert!(of(&tensor("[0,4]"), &[0; 3]).contains("3 bytes of tensors, its header speaks of 4"));
    assert!(of(&tensor("[0,4]"), &[0; 5]).contains("5 bytes of tensors"));
    // Offsets that don't fit the shape, leave holes, run backwards or beyond everything.
    for offsets in ["[0,8]", "[4,8]", "[4,0]", "[0,18446744073709551615]", "[-1,4]", "[0.0,4.0]"] {
        of(&tensor(offsets), &[0; 8]);
    }
    assert!(of(&tensor("[4,8]"), &[0; 8]).contains("`w`"));
    let huge = r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}"#;
    of(huge, &[0; 4]);
    of(r#"{"w":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}"#, &[0; 4]);
    let overlap = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                      "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    of(overlap, &[0; 4]);
    assert_eq!(reason(&with_header(&tensor("[0,4]"), &[0; 4])), None);
}

#[test]
fn bad_indexes() {
    let folder = tempfile::tempdir().unwrap();
    write_some(folder.path(), &mut Manifest::new(0), 2, 64).unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    let reason = |text: &str| {
        std::fs::write(&index, text).unwrap();
        TensorFiles::open(folder.path(), "model").err().unwrap().to_string()
    };
    for outside in ["../model.safetensors", "/etc/passwd", "a/b", "..", ""] {
        let text = reason(&format!(r#"{{"weight_map":{{"w":"{outside}"}}}}"#));
        assert!(text.contains("isn't a file name in its own folder"), "{text}");
    }
    let text = reason(r#"{"weight_map":{"w":"model-00009-of-00009.safetensors"}}"#);
    assert!(text.contains("model-00009") && text.contains("missing"), "{text}");
    let text = reason(r#"{"weight_map":{"w":"model-00001-of-00003.safetensors"}}"#);
    assert!(text.contains("tensor `w`") && text.contains("it isn't in"), "{text}");
    assert!(reason("{}").contains("index.json"));
}

#[test]
fn a_tensor_in_two_files_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    write_some(folder.path(), &mut Manifest::new(0), 2, u64::MAX).unwrap();
    std::fs::copy(folder.path().join("model.safetensors"), folder.path().join("b.safetensors")).unwrap();
    let index = r#"{"weight_map":{"scalar":"b.safetensors","empty":"model.safetensors"}}"#;
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let error = TensorFiles::open(folder.path(), "model").err().unwrap().to_string();
    assert!(error.contains("it is in"), "{error}");
}

#[test]
fn a_manifest_of_another_program_or_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(MANIFEST);
    for text in [
        r#"{"format":"mt-train checkpoint","version":2,"step":1,"files":{}}"#,
        r#"{"format":"other","version":1,"step":1,"files":{}}"#,
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::NotACheckpoint { .. }), "{error}");
    }
    std::fs::write(&path, "{").unwrap();
    assert!(matches!(Checkpoint::open(folder.path()), Err(CheckpointError::Damaged { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_give_an_error_or_tensors(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        reason(&bytes);
    }

    #[test]
    fn any_json_gives_an_error_or_tensors(
        json in r#"\{("[a_]{1,12}":(\{("(dtype|shape|data_offsets)":("F32"|"BF16"|\[([0-9]{1,20},?){0,3}\]),?){0,4}\}|1),?){0,3}\}"#,
        data in prop::collection::vec(any::<u8>(), 0..16),
    ) {
        reason(&with_header(&json, &data));
    }

    #[test]
    fn a_changed_byte_gives_an_error_or_tensors(at in 0usize..400, to in any::<u8>()) {
        let folder = tempfile::tempdir().unwrap();
        write_some(folder.path(), &mut Manifest::new(0), 2, u64::MAX).unwrap();
        let mut bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
        let at = at % bytes.len();
        bytes[at] = to;
        reason(&bytes);
        reason(&bytes[..at]);
    }
}
