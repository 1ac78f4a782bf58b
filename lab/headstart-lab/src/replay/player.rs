//! A recorded guest against a real server: the rule by which reads come is `headstart_replay::Guest`, the same that the
//! simulator uses on virtual time; this module has the clock and the socket.
//!
//! A single thread does all the work: it sleeps in one system call until an answer comes or the next read is due. If it
//! wakes late, the guest does not think longer because of that: an answer counts as received at the time when the read
//! was due plus the time since its sending, so that time lost at one read is made up for at the next.

use headstart_block::{Error, Result};
use headstart_export::nbd::client::{Client, NbdAnswer};
use headstart_image::progress::Progress;
use headstart_replay::{Boot, Guest, Nanos, ReplayClock, Written};
use std::time::{Duration, Instant};

/// The interval of checks whether the user wants to stop.
const LOOK: Duration = Duration::from_millis(100);

/// A read that was answered, or not sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// The time at which it was due, since the connection.
    pub(super) due: Nanos,
    /// The time until its answer.
    pub(super) waited: Nanos,
}

/// The result of a replay.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// The reads that were answered, in the order of their answers.
    pub(super) done: Vec<Done>,
    /// Reads that were not sent, because the guest had written all their bytes.
    pub(super) skipped: u64,
    /// Bytes that were requested.
    pub(super) bytes: u64,
    /// Reads that the server answered with an error, and the number of the first one.
    pub(super) errors: u64,
    pub(super) first_error: Option<u32>,
    /// The delays of reads after their due times: the sum, and the greatest.
    pub(super) late: Nanos,
    pub(super) latest: Nanos,
    /// The error that ended it early.
    pub(super) broken: Option<Error>,
    pub(super) interrupted: bool,
}

/// The state of a read that is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    due: Nanos,
    at: Nanos,
}

struct Player<'a> {
    boot: &'a Boot,
    client: &'a mut Client,
    progress: &'a dyn Progress,
    started: Instant,
    guest: Guest,
    written: Written,
    sent: Vec<Sent>,
    left: usize,
    played: Played,
}

/// Replays the first `reads_max` reads of `boot`; its creation is now.
pub(super) fn play(
    boot: &Boot,
    clock: ReplayClock,
    reads_max: usize,
    client: &mut Client,
    progress: &dyn Progress,
) -> Played {
    let mut guest = Guest::default();
    guest.begin(boot, clock, reads_max, true);
    let left = guest.reads();
    let mut player = Player {
        boot,
        client,
        progress,
        started: Instant::now(),
        guest,
        written: Written::default(),
        sent: vec![Sent::default(); left],
        left,
        played: Played::default(),
    };
    if let Err(error) = player.play() {
        player.played.broken = Some(error);
    }
    player.played
}

impl Player<'_> {
    fn play(&mut self) -> Result<()> {
        let mut answers = Vec::new();
        while self.left > 0 {
            self.send_due()?;
            if self.left == 0 {
                break;
            }
            if self.progress.is_cancelled() {
                self.played.interrupted = true;
                return Ok(());
            }
            let look = Instant::now() + LOOK;
            let next = self.guest.next_read_at(self.boot).map(|at| self.started + Duration::from_nanos(at.0));
            let until = next.map_or(look, |next| next.min(look));
            self.client.wait(Some(until), &mut answers)?;
            let now = self.now();
            for answer in answers.drain(..) {
                self.answered(now, answer);
            }
        }
        Ok(())
    }

    fn now(&self) -> Nanos {
        Nanos::from_duration(self.started.elapsed())
    }

    /// Sends the reads that are due.
    fn send_due(&mut self) -> Result<()> {
        let now = self.now().plus(Nanos(1));
        while let Some((due, read)) = self.guest.read_before(self.boot, now) {
            while let Some(range) = self.guest.write_before(self.boot, due) {
                self.written.write(range);
            }
            let Some(access) = self.boot.reads().get(read as usize) else { continue };
            let (mut asked, mut result) = (0, Ok(()));
            let client = &mut *self.client;
            self.written.unwritten(access.range, |part| {
                asked += part.len();
                if result.is_ok() {
                    result = client.read(u64::from(read), part);
                }
            });
            result?;
            if asked == 0 {
                self.played.skipped += 1;
                self.ended(due, read);
                continue;
            }
            let at = self.now();
            let late = at.since(due);
            self.played.bytes += asked;
            self.played.late = self.played.late.plus(late);
            self.played.latest = self.played.latest.max(late);
            self.sent[read as usize] = Sent { due, at };
        }
        Ok(())
    }

    fn answered(&mut self, now: Nanos, answer: NbdAnswer) {
        let Some((read, sent)) =
            u32::try_from(answer.number).ok().and_then(|read| Some((read, *self.sent.get(read as usize)?)))
        else {
            return;
        };
        if let Some(error) = answer.error {
            self.played.errors += 1;
            self.played.first_error.get_or_insert(error);
        }
        let waited = now.since(sent.at);
        self.played.done.push(Done { due: sent.due, waited });
        self.ended(sent.due.plus(waited), read);
    }

    fn ended(&mut self, at: Nanos, read: u32) {
        self.guest.answered(self.boot, at, read);
        self.left -= 1;
        self.progress.advance(1);
    }
}
