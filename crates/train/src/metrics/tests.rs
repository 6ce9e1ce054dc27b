use super::tensorboard::{Event, What, masked_crc};
use super::*;
use prost::Message;

/// Takes the TFRecords of a file apart, checking both sums of each.
fn events(path: &Path) -> Vec<Event> {
    let bytes = std::fs::read(path).unwrap();
    let mut rest = bytes.as_slice();
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_at(8);
        let (sum, tail) = tail.split_at(4);
        assert_eq!(sum, masked_crc(length).to_le_bytes());
        let (data, tail) = tail.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        let (sum, tail) = tail.split_at(4);
        assert_eq!(sum, masked_crc(data).to_le_bytes());
        events.push(Event::decode(data).unwrap());
        rest = tail;
    }
    events
}

#[test]
fn masked_crc_of_known_bytes() {
    // RFC 3720, B.4: CRC-32C of 32 zero bytes is 0x8a9136aa; the mask is TFRecord's.
    assert_eq!(masked_crc(&[0; 32]), 0x8a91_36aa_u32.rotate_right(15).wrapping_add(0xa282_ead8));
    // The first 12 bytes of a record of 24 bytes, as TensorFlow writes them for the version event.
    assert_eq!(masked_crc(&24u64.to_le_bytes()).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
}

#[test]
fn event_file_has_version_start_scalars_and_texts() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = EventFile::create(&folder.path().join("tensorboard/run"), 7).unwrap();
    file.text("steps", "20").unwrap();
    file.scalars(7, &[("learning/loss", 8.5), ("learning/grad_norm", f64::NAN)]).unwrap();

    let name = file.path().file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("events.out.tfevents."), "{name}");
    let events = events(file.path());
    assert_eq!(events[0].what, Some(What::FileVersion("brain.Event:2".into())));
    assert_eq!(events[1].step, 7);
    assert!(matches!(events[1].what, Some(What::SessionLog(_))));
    let Some(What::Summary(text)) = &events[2].what else { panic!("{:?}", events[2]) };
    assert_eq!(text.value[0].tag, "steps/text_summary");
    assert_eq!(text.value[0].tensor.as_ref().unwrap().string_val, [b"20".to_vec()]);
    let Some(What::Summary(scalars)) = &events[3].what else { panic!("{:?}", events[3]) };
    assert_eq!((events[3].step, scalars.value.len()), (7, 2));
    assert_eq!(scalars.value[0].simple_value, Some(8.5));
    assert!(scalars.value[1].simple_value.unwrap().is_nan());
}

#[test]
fn two_event_files_of_one_second_are_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..3).map(|_| EventFile::create(folder.path(), 0).unwrap()).collect();
    assert_ne!(files[0].path(), files[1].path());
    assert_ne!(files[1].path(), files[2].path());
}

#[test]
fn train_step_has_maxtexts_tags() {
    let step =
        TrainStep { lm_loss: 1.0, step_time_seconds: 0.5, per_device_tokens: 1024.0, ..Default::default() };
    let scalars = step.scalars();
    let value = |tag: &str| scalars.iter().find(|(name, _)| *name == tag).unwrap().1;
    assert_eq!(scalars.len(), 17);
    assert_eq!(value("learning/perplexity"), std::f64::consts::E);
    assert_eq!(value("perf/per_device_tokens_per_sec"), 2048.0);
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn metrics_file_has_one_object_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/metrics.jsonl");
    let mut file = MetricsFile::open(&path, "tiny", 0).unwrap();
    for step in 0..3 {
        file.scalars(step, &[("learning/loss", 3.0 - step as f64), ("learning/z_loss", f64::NAN)]).unwrap();
    }
    let lines = lines(&path);
    assert_eq!(lines.len(), 3);
    let expected = r#"{"learning/loss":1.0,"learning/z_loss":null,"run_name":"tiny","step":2.0}"#;
    assert_eq!(lines[2].to_string(), expected);
}

#[test]
fn a_resumed_run_cuts_the_steps_that_it_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut file = MetricsFile::open(&path, "tiny", 0).unwrap();
    for step in 0..5 {
        file.scalars(step, &[("learning/loss", 1.0)]).unwrap();
    }
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + r#"{"learning/lo"#).unwrap();

    // The run died after step 4; its last checkpoint is that of step 2.
    let mut file = MetricsFile::open(&path, "tiny", 3).unwrap();
    file.scalars(3, &[("learning/loss", 0.5)]).unwrap();
    let steps: Vec<_> = lines(&path).iter().map(|line| line["step"].as_f64().unwrap()).collect();
    assert_eq!(steps, [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(lines(&path)[3]["learning/loss"], 0.5);

    // A run from the start has an empty file.
    MetricsFile::open(&path, "tiny", 0).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = EventFile::create(&file.join("run"), 0).err().unwrap();
    assert!(error.to_string().contains("file/run"), "{error}");
    let error = MetricsFile::open(folder.path(), "tiny", 0).err().unwrap();
    assert_eq!(error.path, folder.path());
}

#[test]
fn one_broken_writer_does_not_stop_the_others() {
    struct Broken;
    impl Sink for Broken {
        fn scalars(&mut self, _: u64, _: &[Scalar<'_>]) -> Result<(), MetricsError> {
            Err(MetricsError { path: "broken".into(), source: std::io::ErrorKind::StorageFull.into() })
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.jsonl");
    let mut metrics = Metrics::default().with(Broken).with(MetricsFile::open(&path, "tiny", 0).unwrap());
    assert!(metrics.scalars(0, &[("a", 1.0)]).is_err());
    assert_eq!(lines(&path).len(), 1);
    assert!(Metrics::default().scalars(0, &[("a", 1.0)]).is_ok());
}
