//! The real client against a look-alike of the Hub.

mod server;

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use server::{COMMIT, Fault, Hub, REPO};
use tempfile::TempDir;

use super::client::Retry;
use super::*;
use crate::DataError;
use crate::source::Format;

/// About 100 kB that don't repeat.
fn shard(seed: usize) -> Vec<u8> {
    (0..5000).flat_map(|i| format!("{{\"text\":\"{seed} {}\"}}\n", i * 7919 % 10007).into_bytes()).collect()
}

fn settings(hub: &Hub, cache: &Path) -> Settings {
    Settings {
        endpoint: hub.endpoint.clone(),
        token: Some(Token("hf_secret".into())),
        cache: cache.to_owned(),
        offline: false,
        certificates: None,
        keep_bytes: u64::MAX,
        retry: Retry {
            attempts: 4,
            first_pause: Duration::from_millis(1),
            longest_pause: Duration::from_millis(20),
        },
    }
}

const TRAIN: Request<'static> = Request {
    name: "",
    data_dir: "en",
    patterns: &[],
    patterns_key: "hf_train_files",
    split: "train",
    split_key: "train_split",
};

/// A hub with three training shards, one for validation and a README.
fn c4() -> (Hub, TempDir, [Vec<u8>; 3]) {
    let shards = [shard(0), shard(1), shard(2)];
    let hub = Hub::start(&[
        ("en/c4-train.00001-of-00003.json", &shards[1]),
        ("en/c4-train.00000-of-00003.json", &shards[0]),
        ("en/c4-train.00002-of-00003.json", &shards[2]),
        ("en/c4-validation.00000-of-00001.json", b"{\"text\":\"v\"}\n"),
        ("README.md", b"# data"),
    ]);
    (hub, tempfile::tempdir().unwrap(), shards)
}

const FIRST: &str = "en/c4-train.00000-of-00003.json";

#[test]
fn lists_and_downloads_into_the_shared_layout() {
    let (hub, cache, shards) = c4();
    let files = HubFiles::open(&settings(&hub, cache.path()), REPO, &TRAIN).unwrap();
    assert_eq!((files.len(), files.format()), (3, Format::Json));
    assert_eq!(files.name(0), "owner/data/en/c4-train.00000-of-00003.json");
    for (i, shard) in shards.iter().enumerate() {
        let path = files.fetch(i, &[]).unwrap();
        let snapshot = cache.path().join("datasets--owner--data/snapshots").join(COMMIT);
        assert_eq!(path, snapshot.join(format!("en/c4-train.0000{i}-of-00003.json")));
        assert_eq!(&std::fs::read(&path).unwrap(), shard);
        assert!(std::fs::read_link(&path).unwrap().starts_with("../../../blobs"));
    }
    let main = std::fs::read_to_string(cache.path().join("datasets--owner--data/refs/main")).unwrap();
    assert_eq!(main, COMMIT);
    assert!(hub.seen(FIRST).iter().all(|seen| seen.token.as_deref() == Some("Bearer hf_secret")));

    // A second run asks for the commit and nothing else; a run without network for nothing at all.
    let before = hub.requests();
    let again = HubFiles::open(&settings(&hub, cache.path()), REPO, &TRAIN).unwrap();
    again.fetch(0, &[1, 2]).unwrap();
    assert_eq!(hub.requests(), before + 1);
    let offline = Settings { offline: true, ..settings(&hub, cache.path()) };
    let files = HubFiles::open(&offline, REPO, &TRAIN).unwrap();
    assert_eq!(std::fs::read(files.fetch(2, &[]).unwrap()).unwrap(), shards[2]);
    assert_eq!(hub.requests(), before + 1);
}

#[test]
fn validation_patterns_and_configurations() {
    let (hub, cache, _) = c4();
    let settings = settings(&hub, cache.path());
    let names = |request: &Request| {
        HubFiles::open(&settings, REPO, request)
            .map(|files| (0..files.len()).map(|i| files.name(i)).collect::<Vec<_>>())
            .map_err(|error| error.to_string())
    };
    let validation = ["owner/data/en/c4-validation.00000-of-00001.json"];
    assert_eq!(names(&Request { split: "validation", ..TRAIN }).unwrap(), validation);
    assert_eq!(names(&Request { split: "validation", data_dir: "", ..TRAIN }).unwrap(), validation);
    let patterns = ["c4-val*".to_owned()];
    assert_eq!(names(&Request { patterns: &patterns, ..TRAIN }).unwrap(), validation);
    let patterns = ["**/*-00001.json".to_owned()];
    assert_eq!(names(&Request { patterns: &patterns, data_dir: "", ..TRAIN }).unwrap(), validation);
    assert_eq!(
        names(&Request { name: "en", data_dir: "", ..TRAIN }).unwrap().len(),
        3,
        "a folder by the name"
    );

    let patterns = ["*.parquet".to_owned()];
    let error = names(&Request { patterns: &patterns, ..TRAIN }).unwrap_err();
    assert_eq!(error, "hf_train_files: no file of owner/data matches \"en/*.parquet\"");
    let error = names(&Request { split: "test", ..TRAIN }).unwrap_err();
    assert!(error.starts_with("train_split: no data file of split `test` in owner/data"), "{error}");

    hub.set_card(json!({ "configs": [
        { "config_name": "a", "data_files": [{ "split": "train", "path": ["en/c4-train.00002*"] },
                                             { "split": "validation", "path": "en/*validation*" }] },
        { "config_name": "b", "data_files": "en/c4-train.00001*" },
    ] }));
    let named = |name, split| names(&Request { name, split, data_dir: "", ..TRAIN });
    assert_eq!(named("a", "train").unwrap(), ["owner/data/en/c4-train.00002-of-00003.json"]);
    assert_eq!(named("a", "validation").unwrap(), validation);
    assert_eq!(named("b", "train").unwrap(), ["owner/data/en/c4-train.00001-of-00003.json"]);
    assert_eq!(named("c", "train").unwrap_err(), "hf_name: no configuration `c`; owner/data has: a, b");
    assert_eq!(named("", "train").unwrap_err(), "hf_name: is empty; owner/data has: a, b");
}

#[test]
fn survives_what_networks_do() {
    use Fault::{Hang, NoRange, Status, Throttle, TooMany, Truncate};
    for faults in [
        &[Status(500), Status(503), TooMany][..],
        &[Hang, Hang, Throttle],
        &[Truncate(40_000), Truncate(30_000), Throttle],
        &[Truncate(40_000), NoRange],
        &[Truncate(0), Status(502), Truncate(1)],
        // Each brings something, so that more attempts are made than would be in vain.
        &[Truncate(9_000); 8],
        &[Fault::Corrupt],
        &[Truncate(50_000), Fault::Corrupt],
    ] {
        let (hub, cache, shards) = c4();
        hub.fault(FIRST, faults);
        let files = HubFiles::open(&settings(&hub, cache.path()), REPO, &TRAIN).unwrap();
        let path = files.fetch(0, &[]).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), shards[0], "{faults:?}");
    }
}

#[test]
fn goes_on_where_the_connection_broke() {
    let (hub, cache, _) = c4();
    hub.fault(FIRST, &[Fault::Truncate(40_000), Fault::Truncate(30_000)]);
    let files = HubFiles::open(&settings(&hub, cache.path()), REPO, &TRAIN).unwrap();
    files.fetch(0, &[]).unwrap();
    let ranges: Vec<_> = hub
        .seen(FIRST)
        .into_iter()
        .filter(|seen| seen.path.starts_with("/cdn"))
        .map(|seen| seen.range)
        .collect();
    assert_eq!(ranges, [None, Some("bytes=40000-".into()), Some("bytes=70000-".into())]);
}

#[test]
fn a_broken_download_is_never_taken_for_a_whole_one() {
    let (hub, cache, shards) = c4();
    hub.fault(FIRST, &[Fault::Truncate(40_000), Fault::Status(500), Fault::Status(500), Fault::Status(500)]);
    let settings = settings(&hub, cache.path());
    let error = HubFiles::open(&settings, REPO, &TRAIN).unwrap().fetch(0, &[]).unwrap_err().to_string();
    assert_eq!(error, format!("owner/data/{FIRST}: HTTP 500; gave up after 4 attempts"));
    let snapshot = cache.path().join("datasets--owner--data/snapshots").join(COMMIT);
    assert!(!snapshot.join(FIRST).exists());
    // Without network it isn't there; a later run goes on from the 40,000 bytes.
    let offline = Settings { offline: true, ..settings.clone() };
    let error = HubFiles::open(&offline, REPO, &TRAIN).unwrap().fetch(0, &[]).unwrap_err().to_string();
    assert!(error.contains("HF_HUB_OFFLINE is set and the file isn't in the cache"), "{error}");
    let path = HubFiles::open(&settings, REPO, &TRAIN).unwrap().fetch(0, &[]).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), shards[0]);
    assert_eq!(hub.seen(FIRST).last().unwrap().range.as_deref(), Some("bytes=40000-"));
}

#[test]
fn what_does_not_help_to_repeat_is_not_repeated() {
    let (hub, cache, _) = c4();
    for (status, words) in
        [(401, "set HF_TOKEN or hf_access_token"), (403, "accept the repository's terms"), (404, "not found")]
    {
        hub.fault(FIRST, &[Fault::Status(status)]);
        let before = hub.seen(FIRST).len();
        let error =
            HubFiles::open(&settings(&hub, cache.path()), REPO, &TRAIN).unwrap().fetch(0, &[]).unwrap_err();
        assert!(error.to_string().contains(words) && error.to_string().contains(FIRST), "{error}");
        assert_eq!(hub.seen(FIRST).len(), before + 2, "one request and its redirect");
    }
    let error = HubFiles::open(&settings(&hub, cache.path()), "owner/other", &TRAIN).unwrap_err().to_string();
    assert_eq!(error, "owner/other: HTTP 404: not found");
}

#[test]
fn a_hub_out_of_reach() {
    let (hub, cache, _) = c4();
    let reachable = settings(&hub, cache.path());
    let away = Settings { endpoint: "http://127.0.0.1:1".into(), ..reachable.clone() };
    let error = HubFiles::open(&away, REPO, &TRAIN).unwrap_err().to_string();
    assert!(error.contains("can't be reached") && error.contains("isn't in the cache"), "{error}");
    HubFiles::open(&reachable, REPO, &TRAIN).unwrap().fetch(1, &[]).unwrap();
    let cached = HubFiles::open(&away, REPO, &TRAIN).unwrap();
    cached.fetch(1, &[]).unwrap();
    assert!(cached.fetch(0, &[]).unwrap_err().to_string().contains("gave up after 4 attempts"));
}

#[test]
fn fetches_ahead_and_deletes_behind() {
    let (hub, cache, shards) = c4();
    let keep_bytes = shards[0].len() as u64 * 2;
    let files =
        HubFiles::open(&Settings { keep_bytes, ..settings(&hub, cache.path()) }, REPO, &TRAIN).unwrap();
    let first = files.fetch(0, &[1, 2]).unwrap();
    let wait = |name: &str, there: bool| {
        let path = first.with_file_name(name);
        for _ in 0..2000 {
            if path.exists() == there {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{name} should be {}", if there { "there" } else { "gone" });
    };
    wait("c4-train.00001-of-00003.json", true);
    wait("c4-train.00002-of-00003.json", true);
    files.fetch(1, &[2]).unwrap();
    wait("c4-train.00000-of-00003.json", false);
    assert_eq!(std::fs::read_dir(cache.path().join("datasets--owner--data/blobs")).unwrap().count(), 2);
    // What was deleted comes back when it is wanted again.
    assert_eq!(std::fs::read(files.fetch(0, &[]).unwrap()).unwrap(), shards[0]);
}

/// Ranks of a node that start at once: locks belong to open files, so that threads stand for processes.
#[test]
fn ranks_of_a_node_download_a_file_once() {
    let (hub, cache, shards) = c4();
    hub.fault(FIRST, &[Fault::Throttle]);
    let settings = settings(&hub, cache.path());
    std::thread::scope(|scope| {
        for rank in 0..4 {
            let (settings, shards) = (&settings, &shards);
            scope.spawn(move || {
                let files = HubFiles::open(settings, REPO, &TRAIN).unwrap();
                for i in (0..3).map(|i| (i + rank / 2) % 3) {
                    let path = files.fetch(i, &[(i + 1) % 3]).unwrap();
                    assert!(std::fs::read(path).unwrap() == shards[i], "rank {rank}, file {i}");
                }
            });
        }
    });
    for i in 0..3 {
        let name = format!("en/c4-train.0000{i}-of-00003.json");
        let seen = hub.seen(&name);
        let downloads = seen.iter().filter(|seen| seen.path.starts_with("/cdn")).count();
        assert_eq!(downloads, 1, "{name}: {seen:?}");
    }
    let blobs = cache.path().join("datasets--owner--data/blobs");
    assert_eq!(std::fs::read_dir(blobs).unwrap().count(), 3, "nothing unfinished is left");
}

#[test]
fn what_another_rank_reads_is_not_deleted() {
    let (hub, cache, shards) = c4();
    let settings = Settings { keep_bytes: shards[0].len() as u64, ..settings(&hub, cache.path()) };
    let [ahead, behind] = [(); 2].map(|()| HubFiles::open(&settings, REPO, &TRAIN).unwrap());
    let first = ahead.fetch(0, &[]).unwrap();
    assert_eq!(behind.fetch(0, &[]).unwrap(), first);
    ahead.fetch(1, &[]).unwrap();
    ahead.fetch(2, &[]).unwrap();
    assert!(std::fs::read(&first).unwrap() == shards[0], "the one behind still reads it");
    behind.fetch(1, &[]).unwrap();
    ahead.fetch(2, &[]).unwrap();
    assert!(!first.exists(), "now nobody does");
    assert!(std::fs::read(behind.fetch(2, &[]).unwrap()).unwrap() == shards[2]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_to_be_full() {
    let (hub, cache, _) = c4();
    let settings = settings(&hub, cache.path());
    let files = HubFiles::open(&settings, REPO, &TRAIN).unwrap();
    // Writes to the unfinished file fail as on a full disk.
    let path = files.fetch(1, &[]).unwrap();
    let blobs = path.canonicalize().unwrap().parent().unwrap().to_owned();
    let repo = Repo::open(&settings, Kind::Dataset, REPO).unwrap();
    let listed = repo.files("en").unwrap();
    let etag = &listed.iter().find(|file| file.path == FIRST).unwrap().etag;
    std::os::unix::fs::symlink("/dev/full", blobs.join(etag).with_extension("incomplete")).unwrap();
    let error = files.fetch(0, &[]).unwrap_err();
    assert!(matches!(&error, DataError::Io { path, .. } if path.starts_with(cache.path())), "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
}

#[test]
fn settings_follow_the_variables() {
    let vars = |pairs: &[(&str, &str)]| {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        move |name: &str| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    };
    let plain = Settings::from_env(vars(&[("HOME", "/home/me")]), None, 0);
    assert_eq!(plain.cache, Path::new("/home/me/.cache/huggingface/hub"));
    assert_eq!(
        (plain.endpoint.as_str(), plain.token, plain.offline),
        ("https://huggingface.co", None, false)
    );
    let set = [
        ("HF_HOME", "/data/hf"),
        ("HF_TOKEN", "one"),
        ("HF_ENDPOINT", "http://mirror/"),
        ("HF_HUB_OFFLINE", "1"),
    ];
    let settings = Settings::from_env(vars(&set), None, 0);
    assert_eq!(settings.cache, Path::new("/data/hf/hub"));
    assert_eq!((settings.endpoint.as_str(), settings.offline), ("http://mirror", true));
    assert_eq!(settings.token, Some(Token("one".into())));
    let own = Settings::from_env(vars(&[("HF_TOKEN", "one"), ("HF_HUB_CACHE", "/c")]), Some("two"), 0);
    assert_eq!((own.token, own.cache.as_path()), (Some(Token("two".into())), Path::new("/c")));
}

#[test]
fn a_tokenizer_comes_from_a_model_repository() {
    let (hub, cache, _) = c4();
    let mut settings = settings(&hub, cache.path());
    let repo = Repo::open(&settings, Kind::Dataset, REPO).unwrap();
    let folder = repo.fetch_some(&["README.md", "tokenizer.json"]).unwrap();
    assert_eq!(std::fs::read(folder.join("README.md")).unwrap(), b"# data");
    settings.offline = true;
    let repo = Repo::open(&settings, Kind::Dataset, REPO).unwrap();
    assert!(
        repo.fetch_some(&["tokenizer.json"]).unwrap_err().to_string().contains("has none of tokenizer.json")
    );
}
