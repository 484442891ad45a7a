//! Aborts requests in their scheduler, when an operator asks for it or a plugin has finished a request.
//!
//! Afterbay first asks the streams which requests are live, then sends the abort, and only then lets the stream make the request's
//! next row its last: an abort that could not be sent changes nothing for the reader. Nothing here delays a batch. A stream answers
//! between two batches, and passes the requests that plugins finish through a bounded queue.

mod by_id;

pub(crate) use by_id::AbortAnswer;

use crate::refusal::Refusal;
use crate::rendezvous::RendezvousFile;
use afterbay_config as config;
use afterbay_events::event::{AbortFailed, AbortSent, AbortUnavailable};
use afterbay_events::{AbortBy, AbortCounters, Events, Metrics};
use afterbay_journal::reader::OperatorAbort;
use afterbay_scheduler::upstream::{SchedulerSocket, SocketUpstream, UpstreamError};
use afterbay_stream::{ABORTED, AbortSender, FinishedEarly, RequestStatus, StreamHandle};
use afterbay_supervision::fdstore::{FdName, FdStore, Kept};
use afterbay_wire::{AbortForm, AbortShape, FinishReason, is_health_check};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Most requests of a stream that plugins finished and whose abort is not yet sent. A further one is not aborted; the stream
/// counts it and publishes an event.
const FINISHED_MAX: usize = 256;
/// Time for a stream to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at the aborts under way.
const SETTLE_EVERY: Duration = Duration::from_millis(1);
/// The name of the operator in events.
const OPERATOR: &str = "the operator";
/// The name in events of a lease that is over.
const LEASE: &str = "the end of its lease";

/// How the reader learns of the abort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reason {
    /// The request stops: the output so far is the answer.
    #[default]
    Stop,
    /// The reader gets the scheduler's own row for the abort, which clients take for an error.
    Abort,
}

/// The channels to the schedulers of a process. Clones share them.
#[derive(Clone)]
pub(crate) struct Aborts(Arc<Shared>);

struct Shared {
    channels: Mutex<Vec<Arc<Channel>>>,
    events: Events,
    metrics: Metrics,
}

/// The channel from one stream to its scheduler.
struct Channel {
    stream: String,
    handle: StreamHandle,
    /// The error is the reason why there is none.
    upstream: Result<Arc<SocketUpstream>, String>,
    /// The form of an abort by the rendezvous file or by the engine; else it follows the form of the stream's batches.
    form: Option<AbortForm>,
    /// Aborts of requests that plugins finished, queued or being sent.
    under_way: Arc<AtomicUsize>,
    /// The entry of the bound socket in the store of descriptors.
    _kept: Option<Kept>,
    counters: Arc<AbortCounters>,
}

/// A channel that is open before its stream starts.
pub(crate) struct OpenChannel {
    upstream: Result<Arc<SocketUpstream>, String>,
    form: Option<AbortForm>,
    finished: Option<mpsc::Receiver<FinishedEarly>>,
    under_way: Arc<AtomicUsize>,
    kept: Option<Kept>,
}

/// The store for the bound socket of a channel, and the socket that an earlier process left.
pub(crate) struct AbortSocket<'a> {
    pub(crate) store: &'a FdStore,
    pub(crate) inherited: Option<OwnedFd>,
}

/// The answer to a request that was aborted.
#[derive(Debug, Serialize)]
pub(crate) struct Aborted {
    rid: String,
    stream: String,
    /// The address that the abort was sent to.
    to: String,
    reason: Reason,
    /// `matched` of the last row's finish reason; `null` if the scheduler's own row is the last.
    matched: Option<&'static str>,
    /// Plugin or operator that had already ended the request for its reader.
    ended_by: Option<String>,
}

/// The code of the refusal for a request that is not live.
const NOT_LIVE: &str = "not_live";

fn no_answer(stream: &str) -> Refusal {
    let why = format!("stream {stream:?} does not answer in {} s", ANSWER_MAX.as_secs());
    Refusal::unavailable("no_answer", why)
}

impl OpenChannel {
    /// Opens the channel that the configuration or the rendezvous file names.
    pub(crate) fn new(
        stream: &config::Stream,
        rendezvous: Option<&RendezvousFile>,
        events: &Events,
        mut socket: AbortSocket<'_>,
    ) -> anyhow::Result<OpenChannel> {
        let name = stream.name.as_str();
        let unavailable = |why: String| {
            events.publish(AbortUnavailable { stream: name.into(), why: why.clone() });
            why
        };
        let upstream = match (&stream.abort, rendezvous) {
            (Some(push), rendezvous) => {
                if let Some(rendezvous) = rendezvous
                    && rendezvous.abort.as_deref() != Some(push.to_string().as_str())
                {
                    let connects = rendezvous
                        .abort
                        .as_deref()
                        .or(rendezvous.abort_none.as_deref())
                        .unwrap_or("nothing of it");
                    unavailable(format!("stream.abort.push is {push}, and the connector says {connects}"));
                }
                let context = || format!("stream {name:?}: abort");
                Ok(bind(&push.to_string(), stream.engine, &mut socket).with_context(context)?)
            }
            // The scheduler is connected to the first leg.
            (None, _) if !stream.after.is_empty() => {
                Err(format!("it is after stream {:?}, which has the scheduler", stream.after[0].as_str()))
            }
            (None, Some(RendezvousFile { abort: Some(endpoint), .. })) => {
                bind(endpoint, stream.engine, &mut socket)
                    .map_err(|error| unavailable(format!("{endpoint}: {error:#}")))
            }
            (None, Some(rendezvous)) => {
                let why = rendezvous.abort_none.as_deref();
                Err(unavailable(why.unwrap_or("the connector is of a version without aborts").to_owned()))
            }
            (None, None) => Err("the configuration has no [stream.abort]".to_owned()),
        };
        let described = rendezvous.and_then(|rendezvous| rendezvous.abort_req.as_ref());
        let ipc_format = rendezvous.map_or("", |rendezvous| &rendezvous.ipc_format);
        let form = AbortForm::described(stream.engine, "the rendezvous file", described, ipc_format);
        let (upstream, form) = match form {
            Ok(form) => (upstream, form),
            Err(error) if upstream.is_ok() => (Err(unavailable(error.to_string())), None),
            Err(_) => (upstream, None),
        };
        let kept = match &upstream {
            Ok(bound) => {
                let fd = bound.descriptor().with_context(|| format!("stream {name:?}: abort"))?;
                Some(socket.store.keep(FdName::abort(name), &[fd.as_fd()]))
            }
            _ => None,
        };
        let under_way = Arc::default();
        Ok(OpenChannel { upstream: upstream.map(Arc::new), form, finished: None, under_way, kept })
    }

    /// The function by which the stream passes on requests that plugins finish. `None` if there is no channel.
    pub(crate) fn tell_scheduler(&mut self) -> Option<AbortSender> {
        self.upstream.as_ref().ok()?;
        let (sender, finished) = mpsc::channel(FINISHED_MAX);
        self.finished = Some(finished);
        let under_way = self.under_way.clone();
        Some(Box::new(move |finished| {
            under_way.fetch_add(1, Ordering::AcqRel);
            let is_queued = sender.try_send(finished).is_ok();
            if !is_queued {
                under_way.fetch_sub(1, Ordering::AcqRel);
            }
            is_queued
        }))
    }
}

fn bind(
    endpoint: &str,
    engine: config::Engine,
    socket: &mut AbortSocket<'_>,
) -> anyhow::Result<SocketUpstream> {
    let endpoint = endpoint.parse()?;
    let peer = match engine.traits().takes_aborts_as_dealer {
        true => SchedulerSocket::Dealer,
        false => SchedulerSocket::Pull,
    };
    Ok(match socket.inherited.take() {
        Some(listener) => SocketUpstream::adopt(&endpoint, peer, listener)?,
        None => SocketUpstream::bind(&endpoint, peer)?,
    })
}

impl Aborts {
    pub(crate) fn new(events: &Events, metrics: &Metrics) -> Aborts {
        let (events, metrics) = (events.clone(), metrics.clone());
        Aborts(Arc::new(Shared { channels: Mutex::default(), events, metrics }))
    }

    /// Adds the channel of a stream, or replaces it.
    pub(crate) fn add(&self, stream: &str, handle: StreamHandle, opened: OpenChannel) {
        let OpenChannel { upstream, form, finished, under_way, kept } = opened;
        let counters = self.0.metrics.aborts(stream);
        let stream = stream.to_owned();
        let channel = Arc::new(Channel { stream, handle, upstream, form, under_way, _kept: kept, counters });
        if let Some(finished) = finished {
            // The task ends with the stream, which owns the sending end of the queue.
            tokio::spawn(self.clone().abort_finished(channel.clone(), finished));
        }
        let mut channels = self.lock();
        match channels.iter_mut().find(|known| known.stream == channel.stream) {
            Some(known) => *known = channel,
            None => channels.push(channel),
        }
    }

    /// Makes sockets that an earlier process left this process's own, after that process has released them.
    pub(crate) fn claim(&self) {
        for channel in &*self.lock() {
            if let Ok(socket) = &channel.upstream {
                socket.claim();
            }
        }
    }

    /// Waits until the aborts of requests that plugins finished are sent, at most `within`.
    pub(crate) async fn settle(&self, within: Duration) {
        let is_idle = async {
            while self.lock().iter().any(|channel| channel.under_way.load(Ordering::Acquire) > 0) {
                tokio::time::sleep(SETTLE_EVERY).await;
            }
        };
        // An abort that is cut costs work of the scheduler, and no token.
        let _settled = tokio::time::timeout(within, is_idle).await;
    }

    /// Forgets a stream that has ended.
    pub(crate) fn remove(&self, stream: &str) {
        self.lock().retain(|channel| channel.stream != stream);
    }

    /// Forgets every stream, after all have ended.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Channel>>> {
        self.0.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts a request for the operator.
    pub(crate) async fn abort(&self, rid: &str, reason: Reason) -> Result<Aborted, Refusal> {
        if rid.is_empty() {
            return Err(Refusal::bad_request(
                "empty",
                "the rid is empty, which to an engine may mean every request",
            ));
        }
        if is_health_check(rid.as_bytes()) {
            let why = format!("request {rid:?} is a health check of the engine, which is never aborted");
            return Err(Refusal::bad_request("health_check", why));
        }
        let looked = self.look(rid).await?;
        let mut live =
            looked.iter().filter_map(|(channel, looked)| Some((channel, looked.live.clone()?, looked.shape)));
        let first = live.next().ok_or_else(|| {
            let why =
                format!("request {rid:?} is not live: it has ended, or no row of it has been received yet");
            Refusal::not_found(NOT_LIVE, why)
        })?;
        // A request on several streams is aborted by the first stream that can.
        let can = |(channel, ..): &(&Arc<Channel>, _, _)| channel.upstream.is_ok();
        let (channel, live, shape) = if can(&first) { first } else { live.find(can).unwrap_or(first) };
        let stream = &channel.stream;
        let continues = format!("request {rid:?} of stream {stream:?} continues");
        let is_answered = shape.is_none_or(|shape| shape.engine().traits().answers_aborts);
        if !is_answered && reason == Reason::Abort {
            channel.counters.refused.add(1);
            let why = "its engine answers an abort with no row of its own, must be reason stop";
            return Err(Refusal::bad_request("no_own_row", format!("{continues}: {why}")));
        }
        let ready = channel.ready(shape).map_err(|why| {
            let why = format!("stream {stream:?}: no abort can be sent to its scheduler: {why}");
            Refusal::unavailable("no_way", why)
        });
        let (upstream, form) = ready.inspect_err(|_| channel.counters.refused.add(1))?;
        let matched = (reason == Reason::Stop && live.finished_by.is_none()).then_some(ABORTED);
        let end = async |ending| matched.is_none() || channel.end(rid, live.number, ending).await;
        // The scheduler's own row for the abort may arrive before the send returns.
        if !end(OperatorAbort::Expected).await {
            // The stream may still process that call later.
            channel.handle.record_abort(rid, live.number, OperatorAbort::No, || {});
            return Err(no_answer(stream));
        }
        // If the engine sends no further row, the stream sends the abort once it has made the last row.
        if is_answered
            && let Err(error) =
                self.send(channel, upstream, &form, (rid, None), OPERATOR, AbortBy::Operator).await
        {
            end(OperatorAbort::No).await;
            return Err(Refusal::unavailable("failed", format!("{continues}: {error}")));
        }
        end(OperatorAbort::Due).await;
        let (stream, to) = (channel.stream.clone(), upstream.endpoint().to_owned());
        Ok(Aborted { rid: rid.to_owned(), stream, to, reason, matched, ended_by: live.finished_by })
    }

    /// Asks the scheduler of a stream to end the live request with this number, whose client has left. The scheduler then ends the
    /// request as it does for each client that leaves. Returns whether nothing is left to do: the scheduler was asked, or the
    /// request has ended.
    pub(crate) async fn end_lease(&self, stream: &str, rid: &str, number: u64) -> bool {
        let channel = self.lock().iter().find(|channel| channel.stream == stream).cloned();
        let Some(channel) = channel else { return false };
        let Ok(Ok(looked)) = tokio::time::timeout(ANSWER_MAX, channel.look(rid)).await else { return false };
        if looked.live.is_none_or(|live| live.number != number) {
            return true;
        }
        match channel.ready(looked.shape) {
            Ok((upstream, form)) => {
                self.send(&channel, upstream, &form, (rid, None), LEASE, AbortBy::Lease).await.is_ok()
            }
            Err(why) => {
                channel.counters.failed.add(AbortBy::Lease, 1);
                let (stream, rid) = (stream.into(), rid.to_owned());
                self.0.events.publish(AbortFailed { stream, rid, by: LEASE.into(), why });
                false
            }
        }
    }

    /// Asks every stream for the status of a rid. A stream that has ended is left out.
    async fn look(&self, rid: &str) -> Result<Vec<(Arc<Channel>, RequestStatus)>, Refusal> {
        let channels = self.lock().clone();
        let asked: Vec<_> = channels.into_iter().map(|channel| (channel.look(rid), channel)).collect();
        let mut looked = Vec::new();
        for (answer, channel) in asked {
            match tokio::time::timeout(ANSWER_MAX, answer).await {
                Ok(Ok(answer)) => looked.push((channel, answer)),
                Ok(Err(_)) => {}
                Err(_) => return Err(no_answer(&channel.stream)),
            }
        }
        Ok(looked)
    }

    /// Aborts the requests that plugins of a stream finish.
    async fn abort_finished(self, channel: Arc<Channel>, mut finished: mpsc::Receiver<FinishedEarly>) {
        while let Some(finished) = finished.recv().await {
            self.abort_one_finished(&channel, finished).await;
            channel.under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }

    async fn abort_one_finished(&self, channel: &Channel, finished: FinishedEarly) {
        let FinishedEarly { rid, plugin, reason, shape } = finished;
        let (by, label) = match &plugin {
            Some(plugin) => (format!("plugin {plugin}"), AbortBy::Plugin),
            None => (OPERATOR.to_owned(), AbortBy::Operator),
        };
        let failed = |why: String| {
            channel.counters.failed.add(label, 1);
            let (stream, rid, by) = (channel.stream.as_str().into(), rid.clone(), by.as_str().into());
            self.0.events.publish(AbortFailed { stream, rid, by, why });
        };
        let (upstream, form) = match channel.ready(shape) {
            Ok(ready) => ready,
            Err(why) => return failed(why),
        };
        // A failure was published.
        let _published = self.send(channel, upstream, &form, (&rid, reason.as_ref()), &by, label).await;
    }

    async fn send(
        &self,
        channel: &Channel,
        upstream: &SocketUpstream,
        form: &AbortForm,
        (rid, reason): (&str, Option<&FinishReason>),
        by: &str,
        label: AbortBy,
    ) -> Result<(), UpstreamError> {
        let (stream, by) = (channel.stream.as_str().into(), by.into());
        match upstream.abort(rid, reason, form).await {
            Ok(()) => {
                channel.counters.sent.add(label, 1);
                let to = upstream.endpoint().to_owned();
                self.0.events.publish(AbortSent { stream, rid: rid.to_owned(), by, to });
                Ok(())
            }
            Err(error) => {
                channel.counters.failed.add(label, 1);
                let why = error.to_string();
                self.0.events.publish(AbortFailed { stream, rid: rid.to_owned(), by, why });
                Err(error)
            }
        }
    }
}

impl Channel {
    fn look(&self, rid: &str) -> oneshot::Receiver<RequestStatus> {
        let (reply, answer) = oneshot::channel();
        // The send fails if nobody waits any more.
        self.handle.request_status(rid, move |looked| drop(reply.send(looked)));
        answer
    }

    /// Tells the stream how a request ends, and waits until the stream's journal has it. False: the stream has ended, or does not
    /// answer in time.
    async fn end(&self, rid: &str, number: u64, ending: OperatorAbort) -> bool {
        let (reply, done) = oneshot::channel();
        // The send fails if nobody waits any more.
        self.handle.record_abort(rid, number, ending, move || {
            let _sent = reply.send(());
        });
        matches!(tokio::time::timeout(ANSWER_MAX, done).await, Ok(Ok(())))
    }

    /// The receiver and the form of an abort, or the reason why none can be sent.
    fn ready(&self, shape: Option<AbortShape>) -> Result<(&SocketUpstream, AbortForm), String> {
        let upstream = self.upstream.as_ref().map_err(Clone::clone)?;
        let form = self.form.clone().or_else(|| shape.map(AbortForm::of));
        let why = "no batch has been received since the start, and the form of an abort follows that of the batches";
        Ok((upstream, form.ok_or(why)?))
    }
}
