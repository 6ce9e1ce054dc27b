//! A Hub look-alike on loopback that throttles, truncates, redirects and fails.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// One thing to do wrong to a request for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Answer with this status.
    Status(u16),
    /// Answer 429 and ask to come back after a second.
    TooMany,
    /// Send this many bytes, then close the connection.
    Truncate(usize),
    /// Close the connection without an answer.
    Hang,
    /// Ignore the range and send everything.
    NoRange,
    /// Send other bytes of the same length.
    Corrupt,
    /// Send slowly.
    Throttle,
}

/// A request that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) range: Option<String>,
    pub(super) token: Option<String>,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    card: Value,
    faults: HashMap<String, VecDeque<Fault>>,
    seen: Vec<Seen>,
}

/// The server; it runs until the test ends.
pub(super) struct Hub {
    pub(super) endpoint: String,
    state: Arc<Mutex<State>>,
}

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(super) const REPO: &str = "owner/data";

impl Hub {
    /// Serves `files` as the data set [`REPO`].
    pub(super) fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|&(path, content)| (path.to_owned(), content.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let (shared, base) = (Arc::clone(&state), endpoint.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, base) = (Arc::clone(&shared), base.clone());
                thread::spawn(move || serve(stream, &shared, &base));
            }
        });
        Self { endpoint, state }
    }

    pub(super) fn set_card(&self, card: Value) {
        self.state.lock().unwrap().card = card;
    }

    /// What to do wrong to the next requests for the content of `path`, in order.
    pub(super) fn fault(&self, path: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.insert(path.to_owned(), faults.iter().copied().collect());
    }

    /// Requests for the content of `path` so far.
    pub(super) fn seen(&self, path: &str) -> Vec<Seen> {
        let state = self.state.lock().unwrap();
        state.seen.iter().filter(|seen| seen.path.ends_with(&format!("/{path}"))).cloned().collect()
    }

    pub(super) fn requests(&self) -> usize {
        self.state.lock().unwrap().seen.len()
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>, base: &str) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let target = line.split(' ').nth(1).unwrap_or("/").to_owned();
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                Some((name, value)) => headers.insert(name.to_lowercase(), value.to_owned()),
                None => break,
            };
        }
        let seen = Seen {
            path: target.clone(),
            range: headers.get("range").cloned(),
            token: headers.get("authorization").cloned(),
        };
        state.lock().unwrap().seen.push(seen);
        if !answer(&mut stream, &target, headers.get("range"), state, base) {
            return; // the connection is closed
        }
    }
}

/// Answers one request; `false` closes the connection.
fn answer(
    stream: &mut TcpStream,
    target: &str,
    range: Option<&String>,
    state: &Mutex<State>,
    base: &str,
) -> bool {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let api = format!("/api/datasets/{REPO}");
    if path == format!("{api}/revision/main") {
        let card = state.lock().unwrap().card.clone();
        return reply(stream, 200, "", json!({ "sha": COMMIT, "cardData": card }).to_string().as_bytes());
    }
    if let Some(folder) = path.strip_prefix(&format!("{api}/tree/{COMMIT}")) {
        return list(stream, folder.trim_start_matches('/'), query, state, base);
    }
    if let Some(file) = path.strip_prefix(&format!("/datasets/{REPO}/resolve/{COMMIT}/")) {
        // Content lies elsewhere, as on the real Hub.
        return reply(stream, 302, &format!("location: {base}/cdn/{file}\r\n"), b"");
    }
    match path.strip_prefix("/cdn/") {
        Some(file) => content(stream, file, range, state),
        None => reply(stream, 404, "", b"no"),
    }
}

/// Files below a folder, two a page.
fn list(stream: &mut TcpStream, folder: &str, query: &str, state: &Mutex<State>, base: &str) -> bool {
    let entries: Vec<Value> = {
        let state = state.lock().unwrap();
        let mut paths: Vec<&String> = state.files.keys().filter(|path| path.starts_with(folder)).collect();
        paths.sort_by(|a, b| b.cmp(a)); // the client sorts
        let entry = |path: &String| {
            let content = &state.files[path];
            let hash: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
            if path.ends_with(".md") {
                json!({ "type": "file", "path": path, "size": content.len(), "oid": &hash[..40] })
            } else {
                json!({ "type": "file", "path": path, "size": 130, "oid": "pointer",
                        "lfs": { "oid": hash, "size": content.len() } })
            }
        };
        let folder = json!({ "type": "directory", "path": "en", "oid": "tree" });
        std::iter::once(folder).chain(paths.into_iter().map(entry)).collect()
    };
    let page: usize = query.split("page=").nth(1).map_or(0, |page| page.parse().unwrap());
    let here: Vec<&Value> = entries.iter().skip(2 * page).take(2).collect();
    let link = if entries.len() > 2 * (page + 1) {
        let tree = format!("{base}/api/datasets/{REPO}/tree/{COMMIT}");
        format!("link: <{tree}/{folder}?recursive=true&page={}>; rel=\"next\"\r\n", page + 1)
    } else {
        String::new()
    };
    reply(stream, 200, &link, json!(here).to_string().as_bytes())
}

fn content(stream: &mut TcpStream, file: &str, range: Option<&String>, state: &Mutex<State>) -> bool {
    let (content, fault) = {
        let mut state = state.lock().unwrap();
        let Some(content) = state.files.get(file).cloned() else { return reply(stream, 404, "", b"") };
        (content, state.faults.get_mut(file).and_then(VecDeque::pop_front))
    };
    let start =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let start = start.filter(|_| fault != Some(Fault::NoRange));
    let body = &content[start.unwrap_or(0)..];
    let status = match start {
        Some(start) => format!(
            "206 Partial\r\ncontent-range: bytes {start}-{}/{}\r\ncontent-length: {}",
            content.len() - 1,
            content.len(),
            body.len()
        ),
        None => format!("200 OK\r\ncontent-length: {}", body.len()),
    };
    let head = format!("HTTP/1.1 {status}\r\n\r\n");
    match fault {
        Some(Fault::Status(status)) => reply(stream, status, "", b"an error page"),
        Some(Fault::TooMany) => reply(stream, 429, "retry-after: 1\r\n", b""),
        Some(Fault::Hang) => false,
        Some(Fault::Truncate(most)) => {
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&body[..most.min(body.len())]).unwrap();
            false
        }
        Some(Fault::Corrupt) => {
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&vec![b'x'; body.len()]).is_ok()
        }
        Some(Fault::Throttle) => {
            stream.write_all(head.as_bytes()).unwrap();
            for piece in body.chunks(1 + body.len() / 10) {
                thread::sleep(Duration::from_millis(5));
                stream.write_all(piece).unwrap();
            }
            true
        }
        Some(Fault::NoRange) | None => {
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(body).is_ok()
        }
    }
}

fn reply(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> bool {
    let head = format!("HTTP/1.1 {status} Status\r\n{headers}content-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).is_ok() && stream.write_all(body).is_ok()
}
