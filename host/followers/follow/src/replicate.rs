//! The journal as messages of NATS JetStream, and back.
//!
//! [`Replicate`] publishes every stream's segments as they grow: byte ranges of whole records, on one subject a stream. [`Mirror`]
//! makes a journal's directory of the messages of all instances. A message carries the position of its range, so that repeated
//! messages are harmless and missing ones are found.

mod range;

mod followed_stream;
mod nats;

mod copied;
mod mirror;

pub use copied::Hole;
pub use mirror::{Filter, Mirror, MirrorError, mirror};

use std::collections::VecDeque;
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use afterbay_config as config;
use afterbay_events::ReplicateCounters;
use afterbay_events::event::{ReplicaFound, ReplicaLost, ReplicaWeak};
use afterbay_journal::reader::{JournalReader, StreamReader};
use afterbay_journal::{Follower, SegmentId};
use async_nats::jetstream::stream::Stream;
use tokio::runtime::Runtime;

use crate::consumer::{Consumer, Failure, Look, Streams};
use crate::following::Telemetry;

pub use followed_stream::FollowedStream;
use followed_stream::LostAtServer;
use nats::{Credentials, Nats};

/// The name of the consumer.
pub const NAME: &str = "replicate";
/// Most bytes of the journal in one message. The server's `max_payload` may be less.
pub const MESSAGE_BYTES_MAX: usize = 512 << 10;
/// Room for a message's headers within the server's `max_payload`.
const HEADER_BYTES: usize = 4 << 10;
/// Time between two questions for servers of a cluster that are not known.
const DISCOVER_EVERY: Duration = Duration::from_secs(1);
/// Most messages without an acknowledgement.
pub const UNACKNOWLEDGED_MAX: usize = 16;

/// Publishes the journal.
pub struct Replicate {
    config: config::Replicate,
    credentials: Credentials,
    telemetry: Telemetry,
    counters: Arc<ReplicateCounters>,
    instance: String,
    connection: Option<(Nats, Stream)>,
    /// Number of connections so far. A stream asks each what NATS has.
    connections: u64,
    /// Servers that a server of the cluster has named.
    discovered: Vec<String>,
    /// The time of the last question for them.
    asked: Instant,
    /// Drives the connection between two steps, too. Dropped last.
    runtime: Runtime,
}

impl Replicate {
    /// Publishes to these servers.
    ///
    /// # Errors
    /// The credentials cannot be read, or the system refuses a runtime.
    pub fn new(config: &config::Replicate, telemetry: &Telemetry) -> Result<Replicate, String> {
        let credentials = Credentials::load(config.credentials.as_deref())?;
        credentials.options()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Ok(Replicate {
            config: config.clone(),
            credentials,
            telemetry: telemetry.clone(),
            counters: telemetry.metrics.replicate(),
            instance: String::new(),
            connection: None,
            connections: 0,
            discovered: Vec::new(),
            asked: Instant::now(),
            runtime: runtime.map_err(|error| error.to_string())?,
        })
    }

    /// All servers that are known.
    fn servers(&self) -> Vec<String> {
        let discovered = self.discovered.iter().filter(|server| !self.config.nats.contains(server));
        self.config.nats.iter().chain(discovered).cloned().collect()
    }

    /// Learns the other servers of the cluster, as the server names them at the beginning of a connection.
    fn discover(&mut self, nats: &Nats) {
        let scheme =
            self.config.nats.first().and_then(|server| server.split_once("://")).map_or("nats", |it| it.0);
        let urls = nats.client.server_info().connect_urls;
        self.discovered = urls.iter().map(|server| format!("{scheme}://{server}")).collect();
        self.asked = Instant::now();
    }

    /// Asks again for the servers of a cluster that has more: one that has just begun does not know them yet, and if it ends, nobody
    /// names them any more.
    fn discover_missing(&mut self) {
        let replicas = self.connection.as_ref().map_or(0, |(_, it)| it.cached_info().config.num_replicas);
        if self.servers().len() >= replicas || self.asked.elapsed() < DISCOVER_EVERY {
            return;
        }
        self.asked = Instant::now();
        let servers = self.servers();
        let handle = self.runtime.handle().clone();
        // Without an answer, it is asked again.
        if let Ok(nats) = handle.block_on(Nats::connect(&servers, &self.credentials)) {
            self.discover(&nats);
        }
    }

    async fn connect(&mut self) -> Result<(Nats, Stream), String> {
        let nats = Nats::connect(&self.servers(), &self.credentials).await?;
        let stream = nats.find_or_make_stream().await?;
        let info = nats.client.server_info();
        self.discover(&nats);
        if self.connections == 0 {
            let config = &stream.cached_info().config;
            let (server, version, replicas) = (self.config.nats.join(","), info.version, config.num_replicas);
            let events = &self.telemetry.events;
            events.publish(ReplicaFound { server, version, stream: nats::STREAM.into(), replicas });
            for why in nats::weaknesses(stream.cached_info()) {
                events.publish(ReplicaWeak { stream: nats::STREAM.into(), why });
            }
        }
        self.connections += 1;
        Ok((nats, stream))
    }

    /// Asks what NATS has of a stream, and continues behind it.
    async fn position(&self, followed: &mut FollowedStream) -> Result<(), Failure> {
        let Some((nats, stream)) = &self.connection else { return Err(Failure::outside("not connected")) };
        let held = nats::last_range(stream, &range::subject(&self.instance, followed.name())).await;
        let held = held.map_err(|why| Failure::outside(nats.explain(why)))?;
        if let Some(LostAtServer { segment, offset }) = followed.continue_behind(held.as_ref())? {
            let stream = followed.name().into();
            self.counters.holes.add(1);
            self.telemetry.events.publish(ReplicaLost { stream, segment: segment.to_string(), offset });
        }
        followed.connection = self.connections;
        Ok(())
    }

    /// Publishes what is final, at most [`UNACKNOWLEDGED_MAX`] messages, and waits until NATS has them. Returns whether more is
    /// likely to follow at once.
    async fn publish(&self, followed: &mut FollowedStream, look: Look) -> Result<bool, Failure> {
        let Some((nats, _)) = &self.connection else { return Err(Failure::outside("not connected")) };
        let most = MESSAGE_BYTES_MAX.min(nats.client.max_payload().saturating_sub(HEADER_BYTES).max(1));
        let subject = range::subject(&self.instance, followed.name());
        let lost = |why: String| Failure::outside(nats.explain(why));
        let (mut sent, mut has_more) = (VecDeque::new(), true);
        while has_more && sent.len() < UNACKNOWLEDGED_MAX {
            let Some(range) = followed.next(most, look.now_unix_ns, &self.telemetry)? else {
                has_more = false;
                break;
            };
            has_more = range.is_full(most) || look.is_last;
            let message = range.to_message(&self.instance, followed.name());
            let published = nats.context.send_publish(subject.clone(), message).await;
            let published = published.map_err(|error| lost(error.to_string()))?;
            sent.push_back((range.segment, range.end(), range.bytes.len() as u64, published.into_future()));
        }
        for (segment, end, bytes, acknowledgement) in sent {
            let acknowledged = acknowledgement.await.map_err(|error| lost(error.to_string()))?;
            if acknowledged.stream != nats::STREAM {
                let (other, ours) = (acknowledged.stream, nats::STREAM);
                return Err(lost(format!("stream {other:?} takes the subjects of {ours:?}")));
            }
            followed.acknowledge(segment, end);
            self.counters.bytes.add(bytes);
            self.counters.messages.add(1);
        }
        Ok(has_more)
    }
}

/// The follower that publishes to these servers.
#[must_use]
pub fn follower(replicate: &config::Replicate) -> Follower {
    Follower { name: NAME, copy: replicate.nats.join(","), needs_ended_segments: false }
}

impl Consumer for Replicate {
    type Stream = FollowedStream;

    /// Records wait for others this long, for one message.
    const LOOK_EVERY: Duration = Duration::from_millis(100);

    fn follower(&self) -> Follower {
        follower(&self.config)
    }

    fn open(&mut self, journal: &JournalReader) -> Result<(), Failure> {
        self.counters.connected.set(0);
        self.connection = None;
        self.instance =
            journal.instance()?.ok_or_else(|| Failure::outside("the journal has no identity yet"))?;
        let handle = self.runtime.handle().clone();
        self.connection = Some(handle.block_on(self.connect()).map_err(Failure::outside)?);
        self.counters.connected.set(1);
        Ok(())
    }

    fn begin(
        &mut self,
        reader: StreamReader,
        _from: Option<SegmentId>,
    ) -> Result<Option<FollowedStream>, Failure> {
        Ok(Some(FollowedStream::new(reader)))
    }

    fn step(&mut self, followed: &mut FollowedStream, look: Look) -> Result<bool, Failure> {
        followed.list()?;
        let step = async {
            if followed.connection != self.connections {
                self.position(followed).await?;
            }
            self.publish(followed, look).await
        };
        let done = self.runtime.block_on(step);
        if done.is_err() {
            self.counters.connected.set(0);
        }
        done
    }

    fn commit(&mut self, streams: &mut Streams<FollowedStream>, _look: Look) -> Result<(), Failure> {
        self.discover_missing();
        self.counters.behind_bytes.set(streams.values().flatten().map(FollowedStream::behind_bytes).sum());
        Ok(())
    }

    fn needed(&mut self, followed: &mut FollowedStream) -> Option<SegmentId> {
        followed.oldest_needed()
    }
}
