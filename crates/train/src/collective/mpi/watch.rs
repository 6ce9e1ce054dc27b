//! Whether the other ranks still live: they say so every second.
//!
//! Rank 0 listens to all, all listen to rank 0. A rank that was killed or stopped, or whose machine is gone, falls silent; the one
//! that notices says so and ends all ranks. A rank that lives and doesn't come (its main thread computes, reads or is stuck) can't be
//! told from a slow one, so that only a warning names it.
//!
//! A rank that fails by itself tells rank 0 why before it goes, so that the reason is read once, in one place.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, MatchedReceiveVec, Source};
use tracing::{error, warn};

use super::super::process;
use super::{Failure, Shared};

/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// A rank that gave no sign for so long is taken for dead.
const SILENCE: Duration = Duration::from_secs(20);
/// A rank that others wait for is named after so long, and again after twice as long.
const STALL: Duration = Duration::from_secs(60);
/// Between two looks.
const TURN: Duration = Duration::from_millis(10);
/// For how long rank 0 hears other failures, or its own, before it acts on the first.
const HEARING: Duration = Duration::from_millis(500);
/// For how long a failed rank gives rank 0 to act.
const ACTING: Duration = Duration::from_secs(5);
/// What's written to stderr is on its way for so long before MPI ends the process.
const FLUSH: Duration = Duration::from_millis(200);
/// Bytes of a failure's words: a message of MPI that needs no consent of the receiver.
const WORDS: usize = 2000;

const TAG_BEAT: i32 = 1;
const TAG_FAILURE: i32 = 2;

/// A sign of life, and what the rank is at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Beat {
    step: u64,
    /// Operations that its main thread asked for.
    started: u64,
    /// Milliseconds since it waits for others in one.
    waiting: u64,
}

/// Another rank.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    host: String,
    pid: u64,
    seen: Instant,
    beat: Beat,
}

impl Peer {
    pub(super) fn new(host: String, pid: u64) -> Self {
        Self { host, pid, seen: Instant::now(), beat: Beat::default() }
    }
}

/// All ranks, as this one sees them.
struct Roll {
    me: usize,
    peers: Vec<Peer>,
    /// How long a wait must be to be named next.
    next_stall: Duration,
}

/// A rank's ear and voice.
pub(super) struct Watch {
    ranks: SimpleCommunicator,
    roll: Roll,
    shared: Arc<Shared>,
    last_turn: Instant,
    next_beat: Instant,
    waiting_since: Option<Instant>,
    /// The first failure that was heard of, of which rank, when.
    heard: Option<(usize, Failure, Instant)>,
    /// When this rank's own was told.
    told: Option<Instant>,
}

impl Watch {
    /// Bytes of memory for messages that are on their way.
    pub(super) fn buffer_size(ranks: usize) -> usize {
        const MESSAGE: usize = 512; // of 24 bytes, and MPI's own
        let messages = 2 * SILENCE.as_secs() as usize / BEAT.as_secs() as usize;
        (1 << 16) + ranks * messages * MESSAGE
    }

    pub(super) fn new(ranks: SimpleCommunicator, peers: Vec<Peer>, shared: Arc<Shared>) -> Self {
        let roll = Roll { me: ranks.rank() as usize, peers, next_stall: STALL };
        let now = Instant::now();
        let (waiting_since, heard, told) = (None, None, None);
        Self { ranks, roll, shared, last_turn: now, next_beat: now, waiting_since, heard, told }
    }

    /// An operation begins.
    pub(super) fn begin(&mut self) {
        self.waiting_since = Some(Instant::now());
    }

    /// It's over.
    pub(super) fn end(&mut self) {
        self.waiting_since = None;
    }

    /// Listens, speaks, and ends all ranks when one of them is gone.
    pub(super) fn turn(&mut self) {
        let now = Instant::now();
        let stood_still = now.duration_since(self.last_turn);
        if stood_still < TURN {
            return;
        }
        self.last_turn = now;
        self.listen(now);
        if stood_still > SILENCE / 2 {
            self.roll.forgive(now); // it's this process that was stopped
        }
        self.end_if_failed(now);
        if now >= self.next_beat {
            self.next_beat = now + BEAT;
            self.beat(now);
        }
        if let Some(silent) = self.roll.silent(now) {
            self.end_all(&self.roll.obituary(silent, now), 1);
        }
        if self.roll.me == 0
            && let Some(stalled) = self.roll.stalled()
        {
            warn!("{stalled}");
        }
    }

    fn beat(&mut self, now: Instant) {
        let waiting = self.waiting_since.map_or(0, |since| now.duration_since(since).as_millis() as u64);
        let beat =
            Beat { step: process::step(), started: self.shared.started.load(Ordering::Relaxed), waiting };
        self.roll.heard(self.roll.me, beat, now);
        let message = [beat.step, beat.started, beat.waiting];
        for rank in self.roll.listeners() {
            self.ranks.process_at_rank(rank as i32).buffered_send_with_tag(&message[..], TAG_BEAT);
        }
    }

    fn listen(&mut self, now: Instant) {
        while let Some((message, status)) = self.ranks.any_process().immediate_matched_probe() {
            let rank = status.source_rank() as usize;
            if status.tag() == TAG_FAILURE {
                let (words, _): (Vec<u8>, _) = (message, status).matched_receive_vec();
                self.hear_failure(rank, &words, now);
            } else {
                let (numbers, _): (Vec<u64>, _) = (message, status).matched_receive_vec();
                if let [step, started, waiting] = numbers[..] {
                    self.roll.heard(rank, Beat { step, started, waiting }, now);
                }
            }
        }
    }

    fn hear_failure(&mut self, rank: usize, words: &[u8], now: Instant) {
        if let Some((&exit_code, why)) = words.split_first()
            && self.heard.as_ref().is_none_or(|(earlier, ..)| rank < *earlier)
        {
            let since = self.heard.as_ref().map_or(now, |(.., since)| *since);
            let why = String::from_utf8_lossy(why).into_owned();
            self.heard = Some((rank, Failure { why, exit_code }, since));
        }
    }

    /// Ends all ranks for this rank's failure, or for one that was heard of.
    fn end_if_failed(&mut self, now: Instant) {
        match (self.shared.failure(), self.told) {
            (Some(Failure { why, exit_code }), _) if self.roll.me == 0 => {
                eprintln!("error: {why}");
                self.abort(exit_code);
            }
            (Some(failure), None) => {
                self.tell(&failure);
                self.told = Some(now);
            }
            (Some(Failure { why, exit_code }), Some(told)) if now.duration_since(told) > ACTING => {
                self.end_all(&format!("{}: {why}", self.roll.name(self.roll.me)), exit_code);
            }
            _ => {}
        }
        if let Some((rank, Failure { why, exit_code }, since)) = &self.heard
            && now.duration_since(*since) > HEARING
        {
            self.end_all(&format!("{}: {why}", self.roll.name(*rank)), *exit_code);
        }
    }

    /// Rank 0 gets to know why this one failed.
    fn tell(&self, Failure { why, exit_code }: &Failure) {
        let mut words = vec![*exit_code];
        words.extend_from_slice(&why.as_bytes()[..why.floor_char_boundary(WORDS)]);
        self.ranks.process_at_rank(0).buffered_send_with_tag(&words[..], TAG_FAILURE);
    }

    fn end_all(&self, why: &str, exit_code: u8) -> ! {
        if tracing::dispatcher::has_been_set() {
            error!("{why}; all ranks end");
        } else {
            eprintln!("error: {why}; all ranks end");
        }
        self.abort(exit_code)
    }

    fn abort(&self, exit_code: u8) -> ! {
        std::thread::sleep(FLUSH);
        self.ranks.abort(exit_code.into())
    }
}

impl Roll {
    fn heard(&mut self, rank: usize, beat: Beat, now: Instant) {
        if let Some(peer) = self.peers.get_mut(rank) {
            (peer.seen, peer.beat) = (now, beat);
        }
    }

    /// Ranks that this one tells that it lives, and that it hears of.
    fn listeners(&self) -> impl Iterator<Item = usize> + use<> {
        if self.me == 0 { 1..self.peers.len() } else { 0..1 }
    }

    fn forgive(&mut self, now: Instant) {
        self.peers.iter_mut().for_each(|peer| peer.seen = now);
    }

    /// A rank that must be dead.
    fn silent(&self, now: Instant) -> Option<usize> {
        self.listeners().find(|&rank| now.duration_since(self.peers[rank].seen) > SILENCE)
    }

    /// `rank 3 (host n1, process 4711)`.
    fn name(&self, rank: usize) -> String {
        let Peer { host, pid, .. } = &self.peers[rank];
        format!("rank {rank} (host {host}, process {pid})")
    }

    fn obituary(&self, rank: usize, now: Instant) -> String {
        let Peer { seen, beat, .. } = &self.peers[rank];
        let silence = now.duration_since(*seen);
        let since = chrono::Local::now() - silence;
        format!(
            "{} is dead or stopped: nothing was heard of it for {} s, since {}; it last told of step {}",
            self.name(rank),
            silence.as_secs(),
            since.format("%H:%M:%S"),
            beat.step
        )
    }

    /// Who others wait for, when it's time to say so.
    fn stalled(&mut self) -> Option<String> {
        let beats = || self.peers.iter().map(|peer| peer.beat);
        let (last, behind) = beats().enumerate().min_by_key(|(_, beat)| beat.started)?;
        let ahead = beats().filter(|beat| beat.started > behind.started);
        let (others, waiting) =
            ahead.fold((0, 0), |(count, longest), beat| (count + 1, beat.waiting.max(longest)));
        let waiting = Duration::from_millis(waiting);
        if waiting < STALL {
            self.next_stall = STALL;
            return None;
        }
        if waiting < self.next_stall {
            return None;
        }
        self.next_stall = 2 * waiting;
        Some(format!(
            "{others} rank(s) wait for {} since {} s; it lives, at step {}, and has started {} operations: it computes, reads, or \
             is stuck",
            self.name(last),
            waiting.as_secs(),
            behind.step,
            behind.started
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll(me: usize, ranks: usize) -> (Roll, Instant) {
        let peers: Vec<Peer> =
            (0..ranks).map(|rank| Peer::new(format!("n{rank}"), 100 + rank as u64)).collect();
        let latest = peers.iter().map(|peer| peer.seen).max().unwrap();
        (Roll { me, peers, next_stall: STALL }, latest)
    }

    #[test]
    fn a_silent_rank_is_named_with_its_last_step() {
        let (mut roll, start) = roll(0, 3);
        let beat = Beat { step: 12, started: 40, waiting: 0 };
        roll.heard(2, beat, start + Duration::from_secs(5));
        roll.heard(1, beat, start + Duration::from_secs(15));
        assert_eq!(roll.silent(start + Duration::from_secs(20)), None);
        let late = start + Duration::from_secs(26);
        assert_eq!(roll.silent(late), Some(2));
        let words = roll.obituary(2, late);
        assert!(words.starts_with("rank 2 (host n2, process 102) is dead or stopped"), "{words}");
        assert!(words.contains("for 21 s, since ") && words.ends_with("it last told of step 12"), "{words}");
        roll.forgive(late);
        assert_eq!(roll.silent(late), None);
    }

    #[test]
    fn others_listen_to_rank_0_only() {
        let (roll, start) = roll(2, 4);
        assert_eq!(roll.listeners().collect::<Vec<_>>(), [0]);
        assert_eq!(roll.silent(start + Duration::from_secs(60)), Some(0));
    }

    #[test]
    fn a_rank_that_others_wait_for_is_named_at_growing_intervals() {
        let (mut roll, now) = roll(0, 3);
        let mut waits = |seconds: u64| {
            for rank in [0, 2] {
                roll.heard(rank, Beat { step: 7, started: 50, waiting: 1000 * seconds }, now);
            }
            roll.heard(1, Beat { step: 6, started: 49, waiting: 0 }, now);
            roll.stalled()
        };
        assert_eq!(waits(59), None);
        let words = waits(61).unwrap();
        assert!(words.starts_with("2 rank(s) wait for rank 1 (host n1, process 101) since 61 s"), "{words}");
        assert!(words.contains("at step 6"), "{words}");
        assert_eq!(waits(90), None);
        assert!(waits(123).is_some());
        // All of them in the same operation: nobody to name.
        roll.heard(1, Beat { step: 7, started: 50, waiting: 0 }, now);
        assert_eq!(roll.stalled(), None);
    }
}
