//! The machine dies at every single operation of a save.

use super::disk::fault;
use super::*;

/// What a start after the crash finds and does: every committed step is whole, leftovers go, and saving works.
fn assert_recovers(path: &Path, committed: &[u64], maybe: u64) {
    let folder = CheckpointFolder::open(path).unwrap();
    let steps = folder.steps().unwrap();
    let without_last: Vec<u64> = steps.iter().copied().filter(|&step| step != maybe).collect();
    assert_eq!(without_last, committed);
    steps.iter().for_each(|&step| assert_whole(&folder, step));
    assert_eq!(path.read_dir().unwrap().count(), steps.len(), "leftovers");
    commit_some(&folder, maybe).unwrap();
    assert_whole(&folder, maybe);
}

#[test]
fn a_crash_at_any_point_of_a_save_loses_nothing() {
    for points in 0.. {
        let temp = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(temp.path()).unwrap();
        commit_some(&folder, 1).unwrap();
        let died = fault::dies_after(points, || _ = commit_some(&folder, 2));
        assert_recovers(temp.path(), &[1], 2);
        if !died {
            assert!(15 < points, "only {points} operations in a save");
            return;
        }
    }
}

#[test]
fn a_crash_at_any_point_of_replacing_a_checkpoint_leaves_one_of_the_two_or_the_one_before() {
    for points in 0.. {
        let temp = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(temp.path()).unwrap();
        commit_some(&folder, 1).unwrap();
        commit_some(&folder, 2).unwrap();
        let died = fault::dies_after(points, || _ = commit_some(&folder, 2));
        assert_recovers(temp.path(), &[1], 2);
        if !died {
            return;
        }
    }
}

#[test]
fn a_crash_at_any_point_of_removing_old_checkpoints_keeps_the_newest() {
    for points in 0.. {
        let temp = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::open(temp.path()).unwrap();
        (1..=4).for_each(|step| commit_some(&folder, step).unwrap());
        let died = fault::dies_after(points, || _ = folder.retain(2));
        let folder = CheckpointFolder::open(temp.path()).unwrap();
        let steps = folder.steps().unwrap();
        assert!(steps.ends_with(&[3, 4]), "{steps:?}");
        steps.iter().for_each(|&step| assert_whole(&folder, step));
        if !died {
            assert_eq!(steps, [3, 4]);
            return;
        }
    }
}
