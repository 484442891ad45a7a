//! A simulated reader: a PULL that may count finished frames, and the rows that it has got over all of its lives.

use crate::machine;
use crate::schedule::Settings;
use crate::zmtp::{self, Incoming};
use afterbay_sim::ids::{POSITIONS, Seed};
use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_wire::{Batch, DecodedFrame, Finish, Layouts, decode};
use rustix::net::RecvFlags;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// The part of the output of each request that somebody has, as ranges of positions in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub requests: BTreeMap<String, Request>,
    pub batches: u64,
    pub barriers: u64,
}

/// The most positions that may be missing before a row without a count.
const UNCOUNTED_MAX: u64 = 256;
/// The most requests that have one rid, one after another.
const LIVES_MAX: u64 = 24;

/// The part of the output of all requests with one rid. The positions of each request begin at a multiple of [`POSITIONS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Ranges of positions, joined where they touch.
    pub ranges: Vec<(u64, u64)>,
    /// The request of the last row.
    life: u64,
    /// The requests that have ended.
    ended: BTreeSet<u64>,
}

impl Rows {
    /// Adds the rows of a frame. `Err`: a row breaks the order or has other tokens than its request.
    pub fn add(&mut self, bytes: &[u8], layouts: &Layouts) -> Result<(), String> {
        match decode(bytes.to_vec().into(), layouts) {
            DecodedFrame::Batch(batch) => {
                self.batches += 1;
                (0..batch.rows()).try_for_each(|row| self.add_row(&batch, row))
            }
            DecodedFrame::Barrier(_) => {
                self.barriers += 1;
                Ok(())
            }
        }
    }

    fn add_row(&mut self, batch: &Batch, row: u32) -> Result<(), String> {
        let rid = batch.rid(row);
        let Some(seed) = Seed::of_simulated(rid) else { return Ok(()) };
        let mut ids = Vec::new();
        batch.row_ids(row, &mut ids);
        let request = self.requests.entry(rid.to_owned()).or_default();
        let first = request.life + u64::from(request.ended.contains(&request.life));
        let count = batch.completion_tokens(row);
        // Most rows have the tokens just before their count. Two tokens of a rid may be equal.
        let from = count.map(|count| count.saturating_sub(ids.len() as u64));
        let is_plain =
            |life: u64, from: u64| (life * POSITIONS + from..).zip(&ids).all(|(at, id)| seed.id(at) == *id);
        let plain = from.and_then(|from| (first..LIVES_MAX).find(|life| is_plain(*life, from)));
        request.life = if ids.is_empty() { first } else { plain.unwrap_or(request.life) };
        for (index, id) in (0..).zip(ids) {
            let have = request.ranges.last().map_or(0, |range| range.1);
            // A row that is joined over a gap of the scheduler has tokens from both sides of the gap.
            let places = |life: u64| {
                let begin = have
                    .max(life * POSITIONS + from.filter(|_| plain.is_some()).map_or(0, |from| from + index));
                let to = match count {
                    Some(count) if plain.is_some() => life * POSITIONS + count,
                    _ => begin + UNCOUNTED_MAX,
                };
                (begin..to).find(|at| seed.id(*at) == id)
            };
            let lives = if plain.is_some() { request.life..request.life + 1 } else { first..LIVES_MAX };
            let Some(at) = lives.into_iter().find_map(places) else {
                return Err(format!(
                    "{rid}: token {id} of request {} is not after {have}: it comes again, or is another",
                    request.life
                ));
            };
            // The row may have begun with tokens of an earlier request of the rid.
            request.life = at / POSITIONS;
            match request.ranges.last_mut() {
                Some(last) if last.1 == at => last.1 += 1,
                _ => request.ranges.push((at, at + 1)),
            }
        }
        if batch.finish(row) != Finish::Running {
            request.ended.insert(request.life);
        }
        Ok(())
    }
}

/// A simulated reader.
pub struct Reader {
    path: PathBuf,
    page: Option<PathBuf>,
    life: Option<Life>,
    /// The number of lives so far.
    pub lives: u64,
    layouts: Layouts,
    /// The rows that all lives together have finished.
    pub rows: Rows,
    /// Whole frames that an earlier life had got from the kernel or not yet got, and did not finish.
    pub lost: Vec<Vec<u8>>,
    /// Frames of `lost` that the reader had not read: Afterbay must have reported at least these, if nobody counts.
    pub lost_unread: u64,
    /// The sum of all processed bytes, for the trace.
    pub digest: u64,
    /// The promise that was broken at a read.
    broken: Option<String>,
}

struct Life {
    listener: UnixListener,
    credit: Option<CreditWriter>,
    /// Connections in the order of their beginning. The oldest is read to its end first.
    links: VecDeque<Link>,
}

struct Link {
    stream: UnixStream,
    buffer: Vec<u8>,
    has_greeting: bool,
    has_ended: bool,
    /// Whether the process of the other end is gone: nobody is left to report a loss.
    is_orphan: bool,
}

impl Reader {
    pub fn new(path: PathBuf, page: Option<PathBuf>, settings: &Settings) -> Reader {
        Reader {
            path,
            page,
            life: None,
            lives: 0,
            layouts: settings.layouts(),
            rows: Rows::default(),
            lost: Vec::new(),
            lost_unread: 0,
            digest: 0,
            broken: None,
        }
    }

    pub fn counts(&self) -> bool {
        self.page.is_some()
    }

    pub fn is_alive(&self) -> bool {
        self.life.is_some()
    }

    /// Starts, unless it lives: opens the credit page, then listens.
    pub fn start(&mut self) {
        if self.life.is_some() {
            return;
        }
        let credit =
            self.page.as_deref().map(|page| CreditWriter::open(page, ReaderKind::Tokenizer).unwrap());
        let _ = std::fs::remove_file(&self.path);
        let listener = UnixListener::bind(&self.path).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.lives += 1;
        self.life = Some(Life { listener, credit, links: VecDeque::new() });
    }

    /// Reads once from the oldest connection, and finishes up to `frames` frames. Returns whether anything happened. `Err`: a
    /// promise is broken, now or at an earlier read.
    pub fn read(&mut self, frames: usize) -> Result<bool, String> {
        if self.broken.is_none() {
            match self.read_frames(frames) {
                Ok(has_worked) => return Ok(has_worked),
                Err(why) => self.broken = Some(why),
            }
        }
        Err(self.broken.clone().unwrap_or_default())
    }

    fn read_frames(&mut self, frames: usize) -> Result<bool, String> {
        let Some(life) = &mut self.life else { return Ok(false) };
        let mut has_worked = false;
        while let Ok((stream, _)) = life.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            let mut link =
                Link { stream, buffer: Vec::new(), has_greeting: false, has_ended: false, is_orphan: false };
            let _ = link.stream.write(&[zmtp::greeting(), zmtp::ready("PULL")].concat());
            life.links.push_back(link);
            has_worked = true;
        }
        let mut left = frames;
        while let Some(link) = life.links.front_mut() {
            has_worked |= link.fill();
            while left > 0 {
                let Some(message) = link.take() else { break };
                has_worked = true;
                let Some(message) = message else { continue };
                left -= 1;
                self.digest = message.iter().fold(self.digest, |sum, &byte| {
                    (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
                });
                machine::trace(|| format!("  {} finishes {} bytes", self.path.display(), message.len()));
                self.rows.add(&message, &self.layouts)?;
                if let Some(credit) = life.credit.as_mut().filter(|_| is_counted(&message, &self.layouts)) {
                    credit.finished().unwrap();
                }
            }
            if left == 0 || !link.has_ended {
                break;
            }
            life.links.pop_front();
        }
        Ok(has_worked)
    }

    /// Notes that the process at the other end of all connections is gone.
    pub fn orphan(&mut self) {
        self.life.iter_mut().flat_map(|life| &mut life.links).for_each(|link| link.is_orphan = true);
    }

    /// Dies: what it has not finished is lost with it.
    pub fn die(&mut self) {
        let Some(life) = self.life.take() else { return };
        for mut link in life.links {
            while let Some(message) = link.take() {
                self.lost.extend(message);
            }
            let read = link.buffer.len();
            let mut peeked = vec![0; 1 << 20];
            if let Ok((bytes, _)) = rustix::net::recv(&link.stream, &mut peeked[..], RecvFlags::PEEK) {
                link.buffer.extend_from_slice(&peeked[..bytes]);
            }
            if link.buffer.len() == read {
                continue;
            }
            while let Some(message) = link.take() {
                self.lost_unread += u64::from(message.is_some() && !link.is_orphan);
                self.lost.extend(message);
            }
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether readers count a frame, as SGLang's do.
fn is_counted(message: &[u8], layouts: &Layouts) -> bool {
    decode(message.to_vec().into(), layouts).counted()
}

impl Link {
    /// Reads what the kernel has. Returns whether there was anything.
    fn fill(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                let is_new = !self.has_ended;
                self.has_ended = true;
                is_new
            }
            Ok(bytes) => {
                self.buffer.extend_from_slice(&buffer[..bytes]);
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(_) => {
                let is_new = !self.has_ended;
                self.has_ended = true;
                is_new
            }
        }
    }

    /// Takes the next whole frame: a message, or nothing for a command.
    fn take(&mut self) -> Option<Option<Vec<u8>>> {
        if !self.has_greeting {
            self.buffer.get(..zmtp::GREETING_BYTES)?;
            self.buffer.drain(..zmtp::GREETING_BYTES);
            self.has_greeting = true;
        }
        let (incoming, length) = zmtp::take(&self.buffer)?;
        self.buffer.drain(..length);
        Some(match incoming {
            Incoming::Command => None,
            Incoming::Message(message) => Some(message),
        })
    }
}
