use super::*;
use std::sync::mpsc;

fn write(step: u64) -> Write {
    Box::new(move |path, manifest| {
        write_some(path, manifest, step as u8, 200)?;
        let state = serde_json::to_vec(&some_state(step)).unwrap();
        manifest.write_file(path, "state.json", &state)
    })
}

fn failing() -> Write {
    Box::new(|path, _| {
        let source = std::io::ErrorKind::StorageFull.into();
        Err(CheckpointError::Io { action: "write", path: path.to_path_buf(), source })
    })
}

fn saver(path: &Path, keep: Option<usize>, background: bool) -> Saver {
    Saver::new(CheckpointFolder::open(path).unwrap(), keep, background)
}

#[test]
fn saves_and_keeps_the_newest_in_either_mode() {
    for background in [false, true] {
        let temp = tempfile::tempdir().unwrap();
        let mut saver = saver(temp.path(), Some(2), background);
        for step in 0..4 {
            saver.save(step, write(step)).unwrap();
        }
        saver.finish().unwrap();
        assert_eq!(saver.last_saved().unwrap().step, 3);
        assert_eq!(saver.folder().steps().unwrap(), [2, 3]);
        assert_whole(saver.folder(), 3);
    }
}

#[test]
fn the_loop_goes_on_while_a_save_is_in_flight() {
    let temp = tempfile::tempdir().unwrap();
    let mut saver = saver(temp.path(), None, true);
    let (go_on, wait) = mpsc::channel();
    let inner = write(1);
    saver
        .save(
            1,
            Box::new(move |path, manifest| {
                wait.recv().unwrap();
                inner(path, manifest)
            }),
        )
        .unwrap();
    // The save can't end before we let it; polling doesn't wait for it.
    saver.poll().unwrap();
    assert_eq!(saver.last_saved(), None);
    go_on.send(()).unwrap();
    saver.finish().unwrap();
    assert_whole(saver.folder(), 1);
}

#[test]
fn an_error_in_the_background_surfaces_once_at_the_next_call() {
    let temp = tempfile::tempdir().unwrap();
    let mut saver = saver(temp.path(), None, true);
    saver.save(1, write(1)).unwrap();
    saver.save(2, failing()).unwrap();
    let error = loop {
        if let Err(error) = saver.poll() {
            break error;
        }
        std::thread::yield_now();
    };
    assert_eq!(error.io_kind(), Some(std::io::ErrorKind::StorageFull));
    assert_eq!(saver.last_saved().unwrap().step, 1);
    assert_whole(saver.folder(), 1);
    saver.save(3, write(3)).unwrap();
    saver.finish().unwrap();
    assert_eq!(saver.folder().steps().unwrap(), [1, 3]);
}

#[test]
fn a_panic_in_the_background_is_an_error() {
    let temp = tempfile::tempdir().unwrap();
    let mut saver = saver(temp.path(), None, true);
    saver.save(1, Box::new(|_, _| panic!("out of luck"))).unwrap();
    let error = saver.finish().unwrap_err().to_string();
    assert!(error.contains("step 1") && error.contains("out of luck"), "{error}");
}

#[test]
fn a_step_is_saved_once() {
    let temp = tempfile::tempdir().unwrap();
    let mut saver = saver(temp.path(), None, true);
    saver.save(1, write(1)).unwrap();
    saver.save(1, failing()).unwrap();
    saver.finish().unwrap();
}

#[test]
fn dropping_the_saver_waits_for_the_save() {
    let temp = tempfile::tempdir().unwrap();
    let mut saver = saver(temp.path(), None, true);
    saver.save(7, write(7)).unwrap();
    drop(saver);
    assert_whole(&CheckpointFolder::open(temp.path()).unwrap(), 7);
}
