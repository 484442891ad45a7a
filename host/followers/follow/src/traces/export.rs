//! Sends spans to the collector from a thread of its own. The queue is bounded: when it is full, spans are dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use afterbay_config as config;
use afterbay_events::event::{TracesExported, TracesNotExported};
use afterbay_events::{Events, TracesCounters};
use afterbay_types::SpanLoss;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use reqwest::redirect::Policy;

/// Most spans that wait for the collector. A span takes about 1 KiB.
pub const QUEUE_SPANS_MAX: usize = 16_384;
/// Most spans of one message to the collector, beside those of one request.
const BATCH_SPANS: usize = 512;
/// Time for which spans wait for others, for one message.
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// Time limit of one message, with its retries.
const EXPORT_MAX: Duration = Duration::from_secs(5);
/// Characters of an error in an event.
const WHY_CHARS_MAX: usize = 300;

/// The reason why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("traces: {0}")]
pub struct TracesError(pub(crate) String);

/// The queue of spans. One thread adds, another one takes.
pub(crate) struct SpanQueue {
    sender: Sender<Vec<SpanData>>,
    queued: Arc<AtomicUsize>,
    counters: Arc<TracesCounters>,
}

impl SpanQueue {
    /// Queues the spans of a leg, or drops and counts them if there is no room.
    pub(crate) fn push(&self, spans: Vec<SpanData>) {
        let count = spans.len();
        let has_room = self.queued.load(Ordering::Relaxed) + count <= QUEUE_SPANS_MAX;
        // Counted first: the other thread may take the spans at once.
        self.queued.fetch_add(count, Ordering::Relaxed);
        if !has_room || self.sender.send(spans).is_err() {
            self.queued.fetch_sub(count, Ordering::Relaxed);
            self.counters.spans_dropped.add(SpanLoss::QueueFull, count as u64);
        }
    }
}

/// The part that sends.
pub(crate) struct Exporter {
    exporter: SpanExporter,
    endpoint: String,
    pub(crate) spans: Receiver<Vec<SpanData>>,
    queued: Arc<AtomicUsize>,
    counters: Arc<TracesCounters>,
    events: Events,
    /// Whether the last message failed.
    is_failing: bool,
}

/// Makes the queue and the part that sends.
///
/// # Errors
/// The client cannot be made, because of an environment variable of OpenTelemetry's SDK or the system's certificates.
pub(crate) fn open(
    traces: &config::Traces,
    counters: Arc<TracesCounters>,
    events: Events,
) -> Result<(SpanQueue, Exporter), TracesError> {
    let endpoint = format!("{}/v1/traces", traces.endpoint.trim_end_matches('/'));
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client(&endpoint)?)
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(EXPORT_MAX)
        .with_endpoint(&endpoint)
        .build()
        .map_err(|error| TracesError(error.to_string()))?;
    exporter.set_resource(&resource());
    let (sender, spans) = channel();
    let queued = Arc::<AtomicUsize>::default();
    let queue = SpanQueue { sender, queued: queued.clone(), counters: counters.clone() };
    Ok((queue, Exporter { exporter, endpoint, spans, queued, counters, events, is_failing: false }))
}

fn client(endpoint: &str) -> Result<reqwest::Client, TracesError> {
    // An error means that a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .user_agent(concat!("afterbay/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .timeout(EXPORT_MAX);
    // Without TLS, the certificates of the system are not needed and may be absent.
    let client = if endpoint.starts_with("http://") { client.tls_certs_only([]) } else { client };
    client.build().map_err(|error| TracesError(format!("the HTTP client cannot be made: {error}")))
}

/// This process. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` override the values.
fn resource() -> Resource {
    let builder =
        || Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let resource = builder().build();
    let is_named = resource
        .iter()
        .any(|(key, value)| key.as_str() == "service.name" && !value.as_str().starts_with("unknown_service"));
    if is_named { resource } else { builder().with_service_name("afterbay").build() }
}

impl Exporter {
    /// Sends until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return self.failed(0, &format!("no runtime: {error}")),
        };
        while let Some(batch) = self.batch() {
            let count = batch.len();
            let sent = runtime
                .block_on(async { tokio::time::timeout(EXPORT_MAX, self.exporter.export(batch)).await });
            // Until now the spans take room.
            self.queued.fetch_sub(count, Ordering::Relaxed);
            match sent {
                Ok(Ok(())) => self.exported(count),
                Ok(Err(error)) => self.failed(count, &error.to_string()),
                Err(_) => self.failed(count, &format!("no answer in {EXPORT_MAX:?}")),
            }
        }
    }

    /// The next spans. `None` at the end.
    fn batch(&self) -> Option<Vec<SpanData>> {
        let mut batch = self.spans.recv().ok()?;
        let until = Instant::now() + BATCH_EVERY;
        while batch.len() < BATCH_SPANS {
            match self.spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(more) => batch.extend(more),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Some(batch)
    }

    fn exported(&mut self, count: usize) {
        self.counters.spans_exported.add(count as u64);
        if std::mem::replace(&mut self.is_failing, false) {
            self.events.publish(TracesExported { endpoint: self.endpoint.clone() });
        }
    }

    fn failed(&mut self, count: usize, why: &str) {
        self.counters.spans_dropped.add(SpanLoss::NotTaken, count as u64);
        if !std::mem::replace(&mut self.is_failing, true) {
            let (endpoint, why) = (self.endpoint.clone(), why.chars().take(WHY_CHARS_MAX).collect());
            self.events.publish(TracesNotExported { endpoint, why });
        }
    }
}
