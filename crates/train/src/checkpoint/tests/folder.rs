use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn open(path: &Path) -> CheckpointFolder {
    CheckpointFolder::open(path).unwrap()
}

/// Flips one bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn steps_are_numbers_and_whole() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(&temp.path().join("not/yet"));
    assert_eq!(folder.steps().unwrap(), Vec::<u64>::new());
    assert!(folder.newest_whole().unwrap().is_none());
    for step in [10, 9, 100] {
        commit_some(&folder, step).unwrap();
    }
    for other in ["12.tmp", "notes", "007"] {
        fs::create_dir(folder.path().join(other)).unwrap();
    }
    fs::write(folder.path().join("11"), "a file").unwrap();
    assert_eq!(folder.steps().unwrap(), [9, 10, 100]);
    assert_eq!(folder.newest_whole().unwrap().unwrap().state.step, 100);
    assert_whole(&folder, 9);
}

#[test]
fn leftovers_are_removed_at_the_next_start() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    commit_some(&folder, 1).unwrap();
    for leftover in ["2.tmp", "1.removed.tmp"] {
        fs::create_dir(temp.path().join(leftover)).unwrap();
        fs::write(temp.path().join(leftover).join("model.safetensors"), "half").unwrap();
    }
    let folder = open(folder.path());
    assert_eq!(temp.path().read_dir().unwrap().count(), 1);
    assert_whole(&folder, 1);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_whichever_file_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    commit_some(&folder, 1).unwrap();
    commit_some(&folder, 2).unwrap();
    let files: Vec<_> =
        temp.path().join("2").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 5);
    for file in files {
        let whole = fs::read(&file).unwrap();
        damage(&file);
        assert_eq!(folder.newest_whole().unwrap().unwrap().state.step, 1, "flipped: {file:?}");
        fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(folder.newest_whole().unwrap().unwrap().state.step, 1, "truncated: {file:?}");
        fs::remove_file(&file).unwrap();
        assert_eq!(folder.newest_whole().unwrap().unwrap().state.step, 1, "missing: {file:?}");
        fs::write(&file, whole).unwrap();
        assert_eq!(folder.newest_whole().unwrap().unwrap().state.step, 2);
    }
}

#[test]
fn all_damaged_is_an_error_and_not_a_fresh_start() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    for step in [1, 2] {
        commit_some(&folder, step).unwrap();
        damage(&temp.path().join(format!("{step}/state.json")));
    }
    let error = folder.newest_whole().unwrap_err();
    assert!(matches!(&error, CheckpointError::NoneWhole { damaged, .. } if damaged.len() == 2));
    let text = error.to_string();
    assert!(text.contains("1/state.json") && text.contains("CRC-32C"), "{text}");
}

#[test]
fn a_step_saved_again_is_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    commit_some(&folder, 3).unwrap();
    damage(&temp.path().join("3/manifest.json"));
    commit_some(&folder, 3).unwrap();
    assert_whole(&folder, 3);
    assert_eq!(temp.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_moved_folder_is_not_the_checkpoint_of_another_step() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    commit_some(&folder, 3).unwrap();
    // The name is the user's business (a copy elsewhere); the step is what the files say.
    fs::rename(temp.path().join("3"), temp.path().join("copy")).unwrap();
    assert_eq!(find_checkpoint(&temp.path().join("copy")).unwrap().state.step, 3);
}

#[test]
fn only_the_newest_are_kept() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    for step in 0..5 {
        commit_some(&folder, step).unwrap();
    }
    folder.retain(2).unwrap();
    assert_eq!(folder.steps().unwrap(), [3, 4]);
    folder.retain(0).unwrap();
    assert_eq!(folder.steps().unwrap(), [4]);
}

#[test]
fn paths_of_users_lead_to_a_checkpoint() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(&temp.path().join("checkpoints"));
    commit_some(&folder, 5).unwrap();
    commit_some(&folder, 6).unwrap();
    let of = |path: &str| find_checkpoint(&folder.path().join(path)).unwrap().state.step;
    assert_eq!((of("5"), of("5/"), of("5/items"), of("")), (5, 5, 5, 6));
    assert_eq!(find_params(&folder.path().join("5")).unwrap().names().count(), 5);

    // Parameters alone: a folder or a file of safetensors.
    let params = temp.path().join("params");
    fs::create_dir(&params).unwrap();
    write_some(&params, &mut Manifest::new(0), 1, u64::MAX).unwrap();
    assert_eq!(find_params(&params).unwrap().names().count(), 5);
    assert_eq!(find_params(&params.join("model.safetensors")).unwrap().names().count(), 5);

    let reason = |path: &Path| find_params(path).err().unwrap().to_string();
    assert!(reason(&temp.path().join("nothing")).contains("there is nothing of that name"));
    assert!(reason(temp.path()).contains("no model.safetensors"));
    fs::write(temp.path().join("_CHECKPOINT_METADATA"), "{}").unwrap();
    assert!(reason(temp.path()).contains("Orbax"));
}

#[test]
fn identities_that_differ_name_both_values() {
    let saved = some_state(1).identity;
    saved.check(&saved, Path::new("run/1")).unwrap();
    let current =
        Identity::default().with("emb_dim", 128).with("max_target_length", 32).with("tokenizer", "byte");
    let error = current.check(&saved, Path::new("run/1")).unwrap_err().to_string();
    assert!(error.contains("run/1"), "{error}");
    assert!(error.contains("emb_dim is 128 now, 64 in the checkpoint"), "{error}");
    assert!(error.contains("tokenizer is byte now, absent in the checkpoint"), "{error}");
    assert!(!error.contains("max_target_length"), "{error}");
}

#[test]
fn a_folder_without_permission_is_an_error_of_the_system() {
    let temp = tempfile::tempdir().unwrap();
    let folder = open(temp.path());
    commit_some(&folder, 1).unwrap();
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let result = commit_some(&folder, 2);
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    match result {
        Ok(()) => eprintln!("skipped: this user may write anywhere"),
        Err(error) => {
            assert_eq!(error.io_kind(), Some(std::io::ErrorKind::PermissionDenied));
            assert!(error.to_string().contains("base_output_directory"), "{error}");
        }
    }
    assert_whole(&folder, 1);
}

#[test]
fn a_full_disk_leaves_the_last_checkpoint_and_frees_its_own_space() {
    let temp = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| std::process::Command::new(args[0]).args(&args[1..]).output();
    let path = temp.path().to_str().unwrap();
    let mounted = mount(&["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", path]);
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user may not mount");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let folder = open(Path::new(path));
        commit_some(&folder, 1).unwrap();
        let large = |path: &Path, manifest: &mut Manifest| {
            let spec = TensorSpec { name: "large".to_owned(), dtype: Dtype::F32, shape: vec![1 << 16] };
            write_tensors(path, "model", manifest, &BTreeMap::new(), &[spec], u64::MAX, |_, body| {
                body.write(&vec![1; 1 << 18])
            })
        };
        let error = folder.commit(2, large).unwrap_err();
        assert_eq!(error.io_kind(), Some(std::io::ErrorKind::StorageFull));
        assert!(error.to_string().contains("max_num_checkpoints_to_keep"), "{error}");
        assert_eq!(Path::new(path).read_dir().unwrap().count(), 1);
        assert_whole(&folder, 1);
        commit_some(&folder, 3).unwrap();
        assert_whole(&folder, 3);
    });
    _ = mount(&["umount", path]);
    result.unwrap();
}
