//! PyTorch's attention as a peer: `peers/attention_torch.py`, run by `$PYTHON`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use burn::tensor::DType;
use serde_json::{Value, json};

use crate::lab::attention::Attention;
use crate::python;

/// A running `attention_torch.py`.
pub struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// `None`, with a line about it, when `$PYTHON` has no PyTorch.
    pub fn start() -> Option<Self> {
        let python = python();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/attention_torch.py");
        let child = Command::new(&python)
            .args([script, &rayon::current_num_threads().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let peer = child.ok().and_then(|mut process| {
            let (requests, answers) = (process.stdin.take()?, process.stdout.take()?);
            Some(Self { process, requests, answers: BufReader::new(answers) })
        });
        let Some((peer, version)) = peer.and_then(|mut peer| peer.answer().map(|version| (peer, version)))
        else {
            println!("no peer: {python} has no PyTorch (set PYTHON to one that has)");
            return None;
        };
        println!("peer: PyTorch {} on {} threads", version["torch"], version["threads"]);
        Some(peer)
    }

    /// Seconds of one call on a row of the case, forward or both; NaN when it failed, or the case is none of its own.
    pub fn run(&mut self, case: &Attention, dtype: DType, with_backward: bool) -> f64 {
        let dtype = match dtype {
            DType::F32 => "float32",
            DType::BF16 => "bfloat16",
            _ => return f64::NAN,
        };
        let request = json!({
            "heads": case.spec.num_query_heads,
            "kv_heads": case.spec.num_kv_heads,
            "head_dim": case.spec.head_dim,
            "lengths": case.lengths.repeat(case.batch),
            "backward": with_backward,
            "dtype": dtype,
        });
        let sent = writeln!(self.requests, "{request}");
        let answer = sent.ok().and_then(|()| self.answer());
        answer.and_then(|answer| answer["seconds"].as_f64()).unwrap_or(f64::NAN)
    }

    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The process is only a peer: whether it could be stopped changes nothing here.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
