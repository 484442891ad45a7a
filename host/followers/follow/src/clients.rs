//! Reads of streams by clients: whoever has lost a connection reads the tokens of its request from any token on, as its reader got them.
//!
//! The address is served here, in the process that follows the journal: thousands of readers cost the path nothing. A reader's tokens come
//! from the journal; those of a live request come from one reading of its stream for all readers.

mod index;
mod pages;
mod reading;
mod routes;
mod stream;
mod watch;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use afterbay_config as config;
use afterbay_events::event::ClientsListening;
use afterbay_events::{ClientsCounters, Events};
use afterbay_http::{HttpListener, ServerBounds, serve};
use afterbay_journal::reader::StreamReader;
use afterbay_journal::storage::Storage;
use afterbay_journal::{Follower, SegmentId};
use rustix::net::listen;
use tokio::runtime::Runtime;

use crate::consumer::{Consumer, Failure, Look, Streams};
use crate::following::Telemetry;
use reading::Source;
use routes::{Clients as Routed, Counts, routes};
use stream::{INDEX_BYTES_MAX, ReadStream};

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
        let source =
            Source::new(storage, config.journal.dir.clone(), clients.keep, named.collect(), INDEX_BYTES_MAX);
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
}

impl Consumer for Clients {
    type Stream = Arc<ReadStream>;

    /// The time that a token waits for its reader, at most.
    const LOOK_EVERY: Duration = Duration::from_millis(20);

    fn follower(&self) -> Follower {
        Follower { name: NAME, copy: self.config.listen.to_string(), needs_ended_segments: false }
    }

    fn begin(
        &mut self,
        reader: StreamReader,
        _: Option<SegmentId>,
    ) -> Result<Option<Arc<ReadStream>>, Failure> {
        Ok(Some(self.source.open(reader)))
    }

    fn step(&mut self, stream: &mut Arc<ReadStream>, _: Look) -> Result<bool, Failure> {
        Ok(stream.advance()?)
    }

    fn commit(&mut self, _: &mut Streams<Arc<ReadStream>>, _: Look) -> Result<(), Failure> {
        // The streams are known now.
        if self.server.is_none() {
            let failed = |error| Failure::outside(format!("clients.listen {}: {error}", self.config.listen));
            self.server = Some(self.serve().map_err(failed)?);
        }
        self.counters.readers.set(self.counts.readers.load(Ordering::Relaxed));
        self.counters.reads.set(self.counts.reads.load(Ordering::Relaxed));
        self.counters.refused.set(self.counts.refused.load(Ordering::Relaxed));
        Ok(())
    }

    /// Clients hold nothing back.
    fn needed(&mut self, _: &mut Arc<ReadStream>) -> Option<SegmentId> {
        None
    }
}

#[cfg(test)]
mod tests;
