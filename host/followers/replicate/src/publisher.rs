//! Publishes the journal to NATS: one thread, one connection after another.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use afterbay_config as config;
use afterbay_events::event::{NotReplicated, ReplicaFound, ReplicaLost, ReplicaWeak, ReplicatedAgain};
use afterbay_events::{Events, Health, ReplicateCounters};
use afterbay_journal::reader::JournalReader;
use afterbay_journal::{HoldBack, JournalDirectory, ReadError, SegmentId, Stopped};
use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::stream::Stream;
use tokio::time::MissedTickBehavior;

use crate::followed_stream::{FollowedStream, LostAtServer};
use crate::nats::{self, Credentials, Nats};
use crate::range;

/// Most bytes of the journal in one message. The server's `max_payload` may be less.
pub const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// Room for a message's headers within the server's `max_payload`.
const HEADER_BYTES: usize = 4 << 10;
/// Most messages without an acknowledgement.
pub const UNACKNOWLEDGED_MAX: usize = 16;
/// Time for which records wait for others, for one message.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time between two looks for new streams and segments.
const LIST_EVERY: Duration = Duration::from_secs(1);
/// Shortest and longest pause after a failed attempt. Each pause is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// The key of the condition.
const HEALTH: &str = "replicate";
/// Characters of an error in an event.
const WHY_CHARS_MAX: usize = 300;

type Acknowledgement = Pin<Box<dyn Future<Output = Result<PublishAck, PublishError>> + Send>>;

/// A message without an acknowledgement.
struct Unacknowledged {
    /// Index of the stream.
    stream: usize,
    segment: SegmentId,
    end: u64,
    bytes: u64,
    acknowledgement: Acknowledgement,
}

/// The part that publishes.
pub(crate) struct Publisher<'a> {
    pub config: config::Replicate,
    pub credentials: Credentials,
    pub directory: Arc<JournalDirectory>,
    pub hold: HoldBack,
    pub counters: Arc<ReplicateCounters>,
    pub events: Events,
    pub health: Health,
    /// Says when to publish what is left and to end.
    pub stopped: &'a Stopped,
    pub state: State,
}

/// The state that a publisher begins without.
#[derive(Default)]
pub(crate) struct State {
    streams: Vec<FollowedStream>,
    unacknowledged: VecDeque<Unacknowledged>,
    /// Index of the stream that is looked at first.
    turn: usize,
    listed: Option<Instant>,
    /// Servers that a server of the cluster has named.
    discovered: Vec<String>,
    /// Whether a connection was established in this process.
    has_connected: bool,
    /// Whether the last attempt failed.
    is_failing: bool,
    pause: Duration,
}

impl Publisher<'_> {
    /// Publishes until it is stopped.
    pub fn run(mut self) {
        self.publish_until_stopped();
        self.health.clear(HEALTH);
    }

    fn publish_until_stopped(&mut self) {
        // During a hand-over, the process before publishes.
        while self.directory.is_paused() && !self.stopped.within(LOOK_EVERY) {}
        loop {
            // The tasks of a lost connection end with their runtime.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let done = match runtime {
                Ok(runtime) => runtime.block_on(self.connect_and_publish()),
                Err(error) => Err(format!("no runtime: {error}")),
            };
            self.state.unacknowledged.clear();
            match done {
                Ok(()) => return,
                Err(why) => self.failed(&why),
            }
            if self.stopped.now() || self.pauses_until_stop() {
                return;
            }
        }
    }

    /// Waits before the next attempt. Returns true if the publisher is stopped.
    fn pauses_until_stop(&mut self) -> bool {
        let pause = self.state.pause.clamp(PAUSES.0, PAUSES.1);
        self.state.pause = pause * 2;
        let until = Instant::now() + pause;
        while Instant::now() < until {
            // The state of the journal is published meanwhile, too.
            let _ = self.list(Instant::now());
            if self.stopped.within(until.saturating_duration_since(Instant::now()).min(LIST_EVERY)) {
                return true;
            }
        }
        false
    }

    async fn connect_and_publish(&mut self) -> Result<(), String> {
        let (nats, stream) = self.connect().await?;
        let instance = self.directory.instance().map_err(|error| error.to_string())?;
        for followed in &mut self.state.streams {
            followed.is_positioned = false;
        }
        self.state.listed = None;
        self.publish(&nats, &stream, &instance).await.map_err(|why| nats.explain(why))
    }

    async fn connect(&mut self) -> Result<(Nats, Stream), String> {
        let discovered = self.state.discovered.iter().filter(|server| !self.config.nats.contains(server));
        let servers: Vec<String> = self.config.nats.iter().chain(discovered).cloned().collect();
        let nats = Nats::connect(&servers, &self.credentials).await?;
        let stream = nats.find_or_make_stream().await?;
        let info = nats.client.server_info();
        let scheme =
            self.config.nats.first().and_then(|server| server.split_once("://")).map_or("nats", |it| it.0);
        self.state.discovered =
            info.connect_urls.iter().map(|server| format!("{scheme}://{server}")).collect();
        if !std::mem::replace(&mut self.state.has_connected, true) {
            let config = &stream.cached_info().config;
            let (version, replicas) = (info.version, config.num_replicas);
            self.events.publish(ReplicaFound {
                server: self.server(),
                version,
                stream: nats::STREAM.into(),
                replicas,
            });
            for why in nats::weaknesses(stream.cached_info()) {
                self.events.publish(ReplicaWeak { stream: nats::STREAM.into(), why });
            }
        }
        Ok((nats, stream))
    }

    /// Publishes until it is stopped and nothing is left, or until an error.
    async fn publish(&mut self, nats: &Nats, stream: &Stream, instance: &str) -> Result<(), String> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_stopping = self.stopped.now();
            self.fill(nats, stream, instance, is_stopping).await?;
            let is_done = self.state.unacknowledged.is_empty()
                && self.state.streams.iter().all(|followed| followed.is_at_end);
            if is_done {
                self.succeeded();
            }
            if is_done && is_stopping {
                return Ok(());
            }
            tokio::select! {
                acknowledged = next_acknowledgement(&mut self.state.unacknowledged) => self.acknowledged(acknowledged)?,
                _ = look.tick(), if self.state.unacknowledged.len() < UNACKNOWLEDGED_MAX => {}
                () = nats.lost.notified() => return Err("the connection was lost".to_owned()),
            }
        }
    }

    /// Publishes what is final, as far as the bound of messages without an acknowledgement allows. `all`: does not wait for
    /// further records.
    async fn fill(&mut self, nats: &Nats, stream: &Stream, instance: &str, all: bool) -> Result<(), String> {
        let now = Instant::now();
        if all {
            self.state.listed = None;
        }
        self.list(now).map_err(|error| error.to_string())?;
        let most = MESSAGE_BYTES_MAX.min(nats.client.max_payload().saturating_sub(HEADER_BYTES).max(1));
        let count = self.state.streams.len();
        for at in 0..count {
            let at = (self.state.turn + at) % count;
            if !self.state.streams[at].is_positioned {
                self.position(at, stream, instance).await?;
            }
            while all || now >= self.state.streams[at].due {
                if self.state.unacknowledged.len() >= UNACKNOWLEDGED_MAX {
                    // The other streams have their turn before this one.
                    self.state.turn = (at + 1) % count;
                    return Ok(());
                }
                let is_full = self.publish_next(at, most, nats, instance).await?;
                if !is_full {
                    self.state.streams[at].due = now + LOOK_EVERY;
                }
                if !is_full && (!all || self.state.streams[at].is_at_end) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Publishes the next range of a stream. Returns whether more is likely to follow at once.
    async fn publish_next(
        &mut self,
        at: usize,
        most: usize,
        nats: &Nats,
        instance: &str,
    ) -> Result<bool, String> {
        let (directory, followed) = (&self.directory, &mut self.state.streams[at]);
        let mut next = followed.next(most, directory).map_err(|error| error.to_string())?;
        if next.is_none() && followed.awaits_segment() {
            followed.set_listed(directory.segments(followed.name()).map_err(|error| error.to_string())?);
            next = followed.next(most, directory).map_err(|error| error.to_string())?;
        }
        followed.is_at_end = next.is_none();
        let Some(range) = next else { return Ok(false) };
        let subject = range::subject(instance, followed.name());
        let message = range.to_message(instance, followed.name());
        let sent = nats.context.send_publish(subject, message).await.map_err(|error| error.to_string())?;
        self.state.unacknowledged.push_back(Unacknowledged {
            stream: at,
            segment: range.segment,
            end: range.end(),
            bytes: range.bytes.len() as u64,
            acknowledgement: sent.into_future(),
        });
        Ok(range.is_full(most))
    }

    /// Asks what NATS has of a stream, and continues behind it.
    async fn position(&mut self, at: usize, stream: &Stream, instance: &str) -> Result<(), String> {
        let followed = &mut self.state.streams[at];
        let held = nats::last_range(stream, &range::subject(instance, followed.name())).await?;
        let lost = followed.continue_behind(held.as_ref()).map_err(|error| error.to_string())?;
        if let Some(needed) = held.and(followed.oldest_needed()) {
            self.hold.confirm(followed.name(), needed);
        }
        if let Some(LostAtServer { segment, offset }) = lost {
            let stream = followed.name().into();
            self.counters.holes.add(1);
            self.events.publish(ReplicaLost { stream, segment: segment.to_string(), offset });
        }
        Ok(())
    }

    fn acknowledged(
        &mut self,
        (message, acknowledged): (Unacknowledged, Result<PublishAck, PublishError>),
    ) -> Result<(), String> {
        let acknowledged = acknowledged.map_err(|error| error.to_string())?;
        if acknowledged.stream != nats::STREAM {
            return Err(format!("stream {:?} takes the subjects of {:?}", acknowledged.stream, nats::STREAM));
        }
        let Unacknowledged { stream, segment, end, bytes, .. } = message;
        if let Some(followed) = self.state.streams.get_mut(stream) {
            followed.acknowledge(segment, end);
            self.hold.confirm(followed.name(), segment);
        }
        self.counters.bytes.add(bytes);
        self.counters.messages.add(1);
        self.succeeded();
        Ok(())
    }

    /// Looks for new streams, for new segments, and for segments that were removed, once in a second.
    fn list(&mut self, now: Instant) -> Result<(), ReadError> {
        if self.state.listed.is_some_and(|listed| now < listed + LIST_EVERY) {
            return Ok(());
        }
        self.state.listed = Some(now);
        // The stream publishes each segment that was removed too early.
        self.counters.holes.add(self.hold.take_removed().len() as u64);
        let journal = JournalReader::open(self.directory.path())?;
        for name in journal.streams()? {
            if self.state.streams.iter().all(|known| known.name() != name) {
                self.state.streams.push(FollowedStream::new(journal.stream(&name)?, now));
            }
        }
        for followed in &mut self.state.streams {
            // A directory that cannot be listed now is listed at the next look.
            followed.set_listed(self.directory.segments(followed.name()).unwrap_or_default());
        }
        let behind = self.state.streams.iter().map(FollowedStream::behind_bytes).sum();
        self.counters.behind_bytes.set(behind);
        Ok(())
    }

    fn server(&self) -> String {
        self.config.nats.join(",")
    }

    fn succeeded(&mut self) {
        self.state.pause = PAUSES.0;
        self.counters.connected.set(1);
        if std::mem::replace(&mut self.state.is_failing, false) {
            self.health.clear(HEALTH);
            let bytes = self.state.streams.iter().map(FollowedStream::behind_bytes).sum();
            self.events.publish(ReplicatedAgain { server: self.server(), bytes });
        }
    }

    fn failed(&mut self, why: &str) {
        self.counters.connected.set(0);
        self.counters.failures.add(1);
        let why: String = why.chars().take(WHY_CHARS_MAX).collect();
        let text = format!("{} does not get the journal: {why}", self.server());
        self.health.degraded(HEALTH, text, SystemTime::now());
        if !std::mem::replace(&mut self.state.is_failing, true) {
            self.events.publish(NotReplicated { server: self.server(), why });
        }
    }
}

/// The next message that is acknowledged or refused, in the order in which they were published. Never, if there is none.
async fn next_acknowledgement(
    unacknowledged: &mut VecDeque<Unacknowledged>,
) -> (Unacknowledged, Result<PublishAck, PublishError>) {
    let acknowledged = match unacknowledged.front_mut() {
        Some(first) => first.acknowledgement.as_mut().await,
        None => std::future::pending().await,
    };
    match unacknowledged.pop_front() {
        Some(first) => (first, acknowledged),
        None => std::future::pending().await,
    }
}
