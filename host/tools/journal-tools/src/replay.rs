//! `afterbay journal replay`: sends frames of the journal to a reader.

use crate::LoadConfig;
use crate::not_found::not_found;
use crate::place::Place;
use afterbay_journal::reader::ReadFrom;
use afterbay_journal_view::legs;
use afterbay_journal_view::parse_time;
use afterbay_sockets::{Endpoint, OutgoingFrame, Push, PushNotice, PushOptions, TokenRange};
use afterbay_terminal::{self as screen, seconds};
use afterbay_wire::{DecodedFrame, Decoder, Layouts, is_internal};
use anyhow::{Context, ensure};
use bytes::Bytes;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The longest wait on the socket before the next look at the clock.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// A pause of at least this length is announced.
const PAUSE_ANNOUNCED: Duration = Duration::from_secs(5);

/// Send one request's rows, or every frame, to a reader
///
/// Frames are sent as they were received, before any plugin, with the original pauses or faster. Without --stream only the
/// frames that schedulers sent; --stream selects any stream, also one behind a detokenizer.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal replay 5b0c1f0a --to ipc:///tmp/reader\n  afterbay journal replay --all --to tcp://127.0.0.1:5600 --speed 10"
)]
pub(crate) struct Args {
    /// The rid of the request, or the beginning of it
    #[arg(required_unless_present = "all")]
    rid: Option<String>,
    /// Send every frame
    #[arg(long, conflicts_with = "rid")]
    all: bool,
    /// The reader's PULL socket
    #[arg(long, value_name = "ENDPOINT")]
    to: Endpoint,
    #[command(flatten)]
    place: Place,
    /// How many times as fast as the original; `max` does not pause
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = parse_speed)]
    speed: f64,
    /// From this time on (RFC 3339, "2026-11-20 14:00:00", or an age such as 10m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<u64>,
    /// Give up if the reader takes nothing for this long
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = afterbay_config::duration_argument)]
    timeout: Duration,
}

fn parse_speed(text: &str) -> Result<f64, String> {
    if text == "max" {
        return Ok(f64::INFINITY);
    }
    match text.parse::<f64>() {
        Ok(speed) if speed > 0.0 => Ok(speed),
        _ => Err(format!("{text:?} is no factor above 0, nor `max`")),
    }
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let mut reader = Reader::connect(&args.to, args.timeout)?;
    let mut begun: Option<(u64, Instant)> = None;
    let mut paced = |at: u64, bytes: Bytes, reader: &mut Reader| {
        let (first, start) = *begun.get_or_insert((at, Instant::now()));
        let after = Duration::from_nanos(at.saturating_sub(first)).div_f64(args.speed);
        reader.send_at(start + after, bytes)
    };
    let selected = args.place.select(load)?;
    let streams = &selected.streams;
    let mut known = false;
    for stream in streams {
        // The second leg carries the same tokens, for another kind of reader.
        if !legs::after(stream, streams)?.is_empty() {
            continue;
        }
        let Some(rid) = &args.rid else {
            for frame in stream.frames(args.since.map_or(ReadFrom::Start, ReadFrom::Time))? {
                let (frame, _) = frame?;
                // A release marker is Afterbay's own; its rows are in the frames that they were received in.
                // No reader takes a message of the connector.
                if frame.is_release_marker() || is_internal(&frame.bytes) {
                    continue;
                }
                paced(frame.received_unix_ns, frame.bytes.into(), &mut reader)?;
            }
            continue;
        };
        let Some(rid) = stream.whole_rid(rid)? else { continue };
        known = true;
        let mut decoder = Decoder::new(Layouts::of_text(&stream.layout()?));
        for row in stream.lives(&rid)?.iter().flat_map(|life| &life.rows) {
            let Some(position) = &row.position else { continue };
            let frame = stream.frame(position)?;
            let DecodedFrame::Batch(batch) = decoder.decode(frame.bytes.into()) else {
                continue;
            };
            let taken = batch.take(&[row.row]).with_context(|| format!("frame {}", row.frame))?;
            paced(frame.received_unix_ns, taken.bytes().clone(), &mut reader)?;
        }
    }
    if let Some(rid) = args.rid.as_ref().filter(|_| !known) {
        return Err(not_found(&selected, rid));
    }
    ensure!(reader.frames > 0, "nothing to replay: no such frame in the journal");
    reader.drain()?;
    screen::say(format!("{} frames, {} bytes sent to {}", reader.frames, reader.bytes, args.to));
    Ok(ExitCode::SUCCESS)
}

/// The socket that frames are replayed to.
struct Reader {
    poll: mio::Poll,
    events: mio::Events,
    push: Push,
    timeout: Duration,
    frames: u64,
    bytes: u64,
}

impl Reader {
    fn connect(endpoint: &Endpoint, timeout: Duration) -> anyhow::Result<Reader> {
        let poll = mio::Poll::new()?;
        let tokens = TokenRange { first: 0, count: 1 };
        let push = Push::connect(poll.registry(), tokens, endpoint, PushOptions::default(), Instant::now())?;
        Ok(Reader { poll, events: mio::Events::with_capacity(16), push, timeout, frames: 0, bytes: 0 })
    }

    /// Waits until `when`, and until the socket has room, and sends a frame.
    fn send_at(&mut self, when: Instant, bytes: Bytes) -> anyhow::Result<()> {
        let pause = when.saturating_duration_since(Instant::now());
        if pause >= PAUSE_ANNOUNCED {
            let (sent, pause) = (self.frames, seconds(pause));
            screen::complain(format!(
                "frames sent: {sent}; the next is due in {pause} (--speed max does not wait)"
            ));
        }
        while Instant::now() < when {
            self.turn(Some(when))?;
        }
        self.until("takes no frame", Push::room)?;
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        let frame = OutgoingFrame { sequence: self.frames, bytes, counted: true };
        ensure!(self.push.send(frame).is_ok(), "{}: no room", self.push.endpoint());
        self.push.flush(Instant::now());
        Ok(())
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        self.until("has not taken everything", Push::is_drained)
    }

    /// Runs the socket until `done`; gives up if the kernel takes nothing for the whole timeout.
    fn until(&mut self, what: &str, done: impl Fn(&Push) -> bool) -> anyhow::Result<()> {
        let (mut taken, mut since) = (self.push.written(), Instant::now());
        while !done(&self.push) {
            self.turn(None)?;
            if self.push.written() != taken {
                (taken, since) = (self.push.written(), Instant::now());
            }
            let endpoint = self.push.endpoint();
            ensure!(since.elapsed() < self.timeout, "reader {endpoint}: {what} for {:?}", self.timeout);
        }
        Ok(())
    }

    fn turn(&mut self, until: Option<Instant>) -> anyhow::Result<()> {
        let now = Instant::now();
        let due = [self.push.deadline(), until].into_iter().flatten().min();
        let wait = due.map_or(WAIT_MAX, |due| due.saturating_duration_since(now).min(WAIT_MAX));
        self.poll.poll(&mut self.events, Some(wait))?;
        let now = Instant::now();
        for event in &self.events {
            self.push.ready(event, now);
        }
        self.push.tick(now);
        while let Some(notice) = self.push.next_notice() {
            if let PushNotice::Waiting { why } = notice {
                screen::complain(format!("waits for a reader on {}: {why}", self.push.endpoint()));
            }
        }
        Ok(())
    }
}
