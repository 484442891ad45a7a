//! Reads of streams by clients: whoever has lost a connection reads the tokens of its request from any token on, as its reader got them.
//!
//! The address is served here, in the process that follows the journal: thousands of readers cost the path nothing. A reader's tokens come
//! from the journal; those of a live request come from one reading of its stream for all readers.

mod reading;
mod routes;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterbay_config as config;
use afterbay_events::event::ClientsListening;
use afterbay_events::{ClientsCounters, Events};
use afterbay_http::{HttpListener, ServerBounds, serve};
use afterbay_journal::reader::{JournalReader, RequestRecord, SegmentRequests, StreamReader};
use afterbay_journal::storage::Storage;
use afterbay_journal::{Follower, FrameNo, Outcome, Position, SegmentId};
use afterbay_journal_view::sent_rows::SentReader;
use rustix::net::listen;
use tokio::runtime::Runtime;

use crate::consumer::{Consumer, Failure, Look, RECORDS_AT_ONCE, Streams, layouts};
use crate::following::Telemetry;
use reading::Source;
use routes::{Clients as Routed, Counts, routes};
use watch::Watch;

/// The name of the consumer.
pub const NAME: &str = "clients";
/// Connections that wait in the kernel, up to its own limit.
const BACKLOG: i32 = 4096;
/// Time to receive a request's head.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Time for an answer in JSON.
const EXCHANGE_MAX: Duration = Duration::from_secs(60);
/// Time for server-sent events. A browser connects again by itself.
const LASTING_MAX: Duration = Duration::from_secs(3600);
/// Most frames without an outcome whose place is kept.
const PLACES_MAX: usize = 65_536;

/// The address for clients, as the configuration describes it.
pub struct Clients {
    config: config::Clients,
    source: Arc<Source>,
    counters: Arc<ClientsCounters>,
    counts: Arc<Counts>,
    events: Events,
    /// `None` before the first attempt to listen, and after a failed one.
    server: Option<Runtime>,
}

/// The requests with a lease that clients read.
pub struct Leased(Arc<Source>);

impl Leased {
    /// Their rids, as the journal stores them.
    #[must_use]
    pub fn rids(&self) -> Vec<String> {
        self.0.watches.leased()
    }
}

/// A stream whose new rows are read.
pub struct ReadStream {
    reader: StreamReader,
    /// `None`: the stream has no segment that can be read.
    segment: Option<SegmentRequests>,
    /// The places of frames without an outcome.
    places: BTreeMap<u64, Position>,
}

impl Clients {
    /// Does not listen yet.
    #[must_use]
    pub fn new(
        clients: &config::Clients,
        config: &config::FollowerConfig,
        storage: Arc<dyn Storage>,
        telemetry: &Telemetry,
    ) -> Clients {
        let named = config.streams.iter().filter_map(|stream| {
            let tokenizer = stream.sinks.iter().find_map(|sink| sink.tokenizer.clone())?;
            Some((stream.name.to_string(), tokenizer))
        });
        let source = Source::new(storage, config.journal.dir.clone(), clients.keep, named.collect());
        Clients::with_source(clients, source, telemetry)
    }

    fn with_source(clients: &config::Clients, source: Source, telemetry: &Telemetry) -> Clients {
        Clients {
            config: clients.clone(),
            source: Arc::new(source),
            counters: telemetry.metrics.clients(),
            counts: Arc::default(),
            events: telemetry.events.clone(),
            server: None,
        }
    }

    /// The requests with a lease that clients read, at any time.
    #[must_use]
    pub fn leased(&self) -> Leased {
        Leased(self.source.clone())
    }

    fn serve(&self) -> std::io::Result<Runtime> {
        let listener = TcpListener::bind(self.config.listen)?;
        // The standard library takes 128.
        listen(&listener, BACKLOG)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.to_string();
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let runtime = threads.worker_threads(1).thread_name(NAME).enable_all().build()?;
        let listener = {
            let _of_runtime = runtime.enter();
            HttpListener::Tcp(tokio::net::TcpListener::from_std(listener)?)
        };
        let bounds = ServerBounds {
            connections: self.config.connections,
            is_probe: |request| request.uri().path() == "/healthz",
            head: HEAD_MAX,
            exchange: EXCHANGE_MAX,
            lasting: LASTING_MAX,
        };
        let routes = routes(Routed {
            source: self.source.clone(),
            key_file: self.config.key_file.clone(),
            counts: self.counts.clone(),
        });
        runtime.spawn(serve(listener, bounds, move |_| routes.clone()));
        self.events.publish(ClientsListening { address });
        Ok(runtime)
    }

    /// Gives the rows of these outcomes to those who read their requests.
    fn give(
        stream: &StreamReader,
        watched: &HashMap<u64, Arc<Watch>>,
        outcomes: &[(Outcome<'static>, Option<Position>)],
    ) -> Result<(), Failure> {
        if outcomes.is_empty() {
            return Ok(());
        }
        let mut reader = SentReader::new(stream, layouts(stream)?);
        for (outcome, place) in outcomes {
            let rid_of = |number: u64| watched.get(&number).map(|watch| &*watch.rid);
            for (row, sent) in reader.outcome(outcome, place.as_ref(), rid_of)? {
                let number = outcome.requests.get(row).map(|request| request.0);
                if let Some(watch) = number.and_then(|number| watched.get(&number)) {
                    watch.push(sent);
                }
            }
        }
        Ok(())
    }
}

impl Consumer for Clients {
    type Stream = ReadStream;

    /// The time that a token waits for its reader, at most.
    const LOOK_EVERY: Duration = Duration::from_millis(20);

    fn follower(&self) -> Follower {
        Follower { name: NAME, copy: self.config.listen.to_string(), needs_ended_segments: false }
    }

    fn open(&mut self, _: &JournalReader) -> Result<(), Failure> {
        if self.server.is_none() {
            let failed = |error| Failure::outside(format!("clients.listen {}: {error}", self.config.listen));
            self.server = Some(self.serve().map_err(failed)?);
        }
        Ok(())
    }

    fn begin(&mut self, reader: StreamReader, _: Option<SegmentId>) -> Result<Option<ReadStream>, Failure> {
        let newest = reader.segments()?.pop();
        let segment = newest.map(|newest| reader.segment_changes(newest)).transpose()?.flatten();
        if let Some(newest) = newest {
            // Whoever reads a request already reads the journal up to here.
            self.source.watches.miss(reader.name(), FrameNo(newest.first.0.saturating_sub(1)));
        }
        Ok(Some(ReadStream { reader, segment, places: BTreeMap::new() }))
    }

    fn step(&mut self, stream: &mut ReadStream, _: Look) -> Result<bool, Failure> {
        // Listed first: the writer has left a segment before it begins the next.
        let listed = stream.reader.segments()?;
        let ReadStream { reader, segment, places } = stream;
        let Some(current) = segment else {
            let newest = listed.last().map(|newest| reader.segment_changes(*newest)).transpose()?;
            *segment = newest.flatten();
            return Ok(segment.is_some());
        };
        let watched = self.source.watches.of_stream(reader.name());
        let (mut outcomes, mut closed) = (Vec::new(), Vec::new());
        let has_more = current.read_records(RECORDS_AT_ONCE, &mut |record| match record {
            RequestRecord::Frame(position, _) => {
                places.insert(position.frame.0, position);
                if places.len() > PLACES_MAX {
                    places.pop_first();
                }
            }
            RequestRecord::Outcome(outcome) => {
                let place = places.remove(&outcome.frame.0);
                if outcome.requests.iter().any(|request| watched.contains_key(&request.0)) {
                    outcomes.push((outcome.clone(), place));
                }
            }
            RequestRecord::Closed(info, _) => closed.extend(watched.get(&info.number.0)),
            _ => {}
        })?;
        Clients::give(reader, &watched, &outcomes)?;
        closed.into_iter().for_each(|watch| watch.end());
        if has_more {
            return Ok(true);
        }
        let Some(next) = listed.into_iter().find(|id| *id > current.id()) else { return Ok(false) };
        // `None`: retention was faster, or its header is not complete yet.
        let Some(next) = reader.segment_changes(next)? else { return Ok(false) };
        *segment = Some(next);
        Ok(true)
    }

    fn commit(&mut self, _: &mut Streams<ReadStream>, _: Look) -> Result<(), Failure> {
        self.counters.readers.set(self.counts.readers.load(Ordering::Relaxed));
        self.counters.reads.set(self.counts.reads.load(Ordering::Relaxed));
        self.counters.refused.set(self.counts.refused.load(Ordering::Relaxed));
        Ok(())
    }

    /// Clients hold nothing back.
    fn needed(&mut self, _: &mut ReadStream) -> Option<SegmentId> {
        None
    }
}

#[cfg(test)]
mod tests;
