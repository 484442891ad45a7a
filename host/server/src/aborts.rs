//! Ending a request in its scheduler: as the operator asks, and where a plugin has finished one.
//!
//! Owns the guards and the order. SGLang ends every request whose rid begins with the one it is told, and all of them by an
//! empty one; so the streams are asked first what is live. Then the scheduler is told, and only then does the stream make
//! the request's next row its last: an abort that went nowhere changes nothing for the reader. Everything here is off the
//! path of a batch: a stream is asked between two turns, and hands over what plugins finish by a bounded queue.

use crate::rendezvous::Rendezvous;
use afterbay_config as config;
use afterbay_events::event::{AbortFailed, AbortSent, AbortUnavailable};
use afterbay_events::{AbortBy, AbortCounters, Events, Metrics};
use afterbay_journal::reader::Ending;
use afterbay_stream::{ABORTED, Control, FinishedEarly, Looked, TellScheduler};
use afterbay_upstream::{ApiKey, HttpUpstream, PushUpstream, Upstream, UpstreamError};
use afterbay_wire::{AbortForm, AbortShape, is_health_check};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Requests that plugins of a stream have finished and the scheduler is yet to be told of; a further one is not told, which
/// is counted and said.
const FINISHED_MAX: usize = 256;
/// A stream that does not say by then what is live does not turn.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Who wanted it, in events.
const OPERATOR: &str = "the operator";

/// How the reader learns of the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reason {
    /// As of a request that has stopped: what came so far is the answer
    #[default]
    Stop,
    /// By the scheduler's own row for the abort, which clients take for an error
    Abort,
}

/// The ways to the schedulers of a process. Clones share them.
#[derive(Clone)]
pub(crate) struct Aborts(Arc<Shared>);

struct Shared {
    ways: Mutex<Vec<Arc<Way>>>,
    events: Events,
    metrics: Metrics,
}

/// The way from one stream to its scheduler.
struct Way {
    stream: String,
    control: Control,
    /// Or why there is none.
    upstream: Result<Arc<Upstream>, String>,
    /// As the connector says; else as the stream's batches are.
    form: Option<AbortForm>,
    counters: Arc<AbortCounters>,
}

/// A way that is open before its stream is.
pub(crate) struct Opened {
    upstream: Result<Arc<Upstream>, String>,
    form: Option<AbortForm>,
    finished: Option<mpsc::Receiver<FinishedEarly>>,
}

/// What was done about a request.
#[derive(Debug, Serialize)]
pub(crate) struct Sent {
    rid: String,
    stream: String,
    /// Where the abort went.
    to: String,
    reason: Reason,
    /// `matched` of the last row's finish reason; `null` where the scheduler's own row is the last.
    matched: Option<&'static str>,
    /// Who had ended the request for its reader before.
    ended_by: Option<String>,
}

/// Why nothing was done about a request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("the rid is empty, which to SGLang means every request")]
    Empty,
    #[error("request {rid:?} is a health check of SGLang, which is never ended")]
    HealthCheck { rid: String },
    #[error("request {rid:?} is not live: it has ended, or no row of it has come yet")]
    NotLive { rid: String },
    #[error("the rid of live request {other:?} begins with {rid:?}: SGLang would end both")]
    Prefix { rid: String, other: String },
    #[error("stream {stream:?}: its scheduler cannot be told to end a request: {why}")]
    NoWay { stream: String, why: String },
    #[error("stream {stream:?} does not say what is live in {} s", LOOK_MAX.as_secs())]
    NoAnswer { stream: String },
    #[error("request {rid:?} of stream {stream:?} goes on: {error}")]
    Failed { rid: String, stream: String, error: UpstreamError },
}

impl Opened {
    /// Opens what the configuration or the connector names.
    pub(crate) fn new(
        stream: &config::Stream,
        met: Option<&Rendezvous>,
        events: &Events,
    ) -> anyhow::Result<Opened> {
        let name = stream.name.as_str();
        let unavailable = |why: String| {
            events.publish(AbortUnavailable { stream: name.into(), why: why.clone() });
            why
        };
        let upstream = match (&stream.abort, met) {
            (Some(abort), met) => {
                if let (config::Abort::Push(push), Some(met)) = (abort, met)
                    && met.abort.as_deref() != Some(push.to_string().as_str())
                {
                    let connects =
                        met.abort.as_deref().or(met.abort_none.as_deref()).unwrap_or("nothing of it");
                    unavailable(format!("stream.abort.push is {push}, and the connector says {connects}"));
                }
                let context = || format!("stream {name:?}: abort");
                Ok(configured(abort).with_context(context)?)
            }
            // The scheduler is at the other end of the first.
            (None, _) if !stream.after.is_empty() => {
                Err(format!("it is after stream {:?}", stream.after[0].as_str()))
            }
            (None, Some(Rendezvous { abort: Some(endpoint), .. })) => {
                push(endpoint).map_err(|error| unavailable(format!("{endpoint}: {error:#}")))
            }
            (None, Some(met)) => {
                let why = met.abort_none.as_deref();
                Err(unavailable(why.unwrap_or("the connector is of a version without aborts").to_owned()))
            }
            (None, None) => Err("the configuration has no [stream.abort]".to_owned()),
        };
        let form = met.and_then(|met| Some((met, met.abort_req.as_ref()?)));
        let form = form.map(|(met, req)| AbortForm::from_json("the rendezvous file", req, &met.ipc_format));
        let (upstream, form) = match form.transpose() {
            Ok(form) => (upstream, form),
            Err(error) if matches!(upstream, Ok(Upstream::Push(_))) => {
                (Err(unavailable(error.to_string())), None)
            }
            Err(_) => (upstream, None),
        };
        Ok(Opened { upstream: upstream.map(Arc::new), form, finished: None })
    }

    /// For the stream: where it hands over what plugins finish. `None` where there is no way.
    pub(crate) fn tell_scheduler(&mut self) -> Option<TellScheduler> {
        self.upstream.as_ref().ok()?;
        let (sender, finished) = mpsc::channel(FINISHED_MAX);
        self.finished = Some(finished);
        Some(Box::new(move |finished| sender.try_send(finished).is_ok()))
    }
}

fn configured(abort: &config::Abort) -> anyhow::Result<Upstream> {
    match abort {
        config::Abort::Push(endpoint) => push(&endpoint.to_string()),
        config::Abort::Http { url, api_key } => {
            let key = api_key.as_ref().map(read_key).transpose()?;
            Ok(Upstream::Http(HttpUpstream::new(url, key)?))
        }
    }
}

fn push(endpoint: &str) -> anyhow::Result<Upstream> {
    Ok(Upstream::Push(PushUpstream::bind(&endpoint.parse()?)?))
}

fn read_key(from: &config::ApiKeyFrom) -> anyhow::Result<ApiKey> {
    let (key, place) = match from {
        config::ApiKeyFrom::Env(name) => (std::env::var(name).context(name.clone()), name.clone()),
        config::ApiKeyFrom::File(path) => {
            let shown = path.display().to_string();
            (std::fs::read_to_string(path).context(shown.clone()), shown)
        }
    };
    ApiKey::new(&key?).context(place)
}

impl Aborts {
    /// No way yet.
    pub(crate) fn new(events: &Events, metrics: &Metrics) -> Aborts {
        let (events, metrics) = (events.clone(), metrics.clone());
        Aborts(Arc::new(Shared { ways: Mutex::default(), events, metrics }))
    }

    /// A stream runs, or has another way from now on.
    pub(crate) fn add(&self, stream: &str, control: Control, opened: Opened) {
        let Opened { upstream, form, finished } = opened;
        let counters = self.0.metrics.aborts(stream);
        let way = Arc::new(Way { stream: stream.to_owned(), control, upstream, form, counters });
        if let Some(finished) = finished {
            // It ends with its stream, which has the queue's other end.
            tokio::spawn(self.clone().tell(way.clone(), finished));
        }
        let mut ways = self.lock();
        match ways.iter_mut().find(|known| known.stream == way.stream) {
            Some(known) => *known = way,
            None => ways.push(way),
        }
    }

    /// A stream has ended.
    pub(crate) fn remove(&self, stream: &str) {
        self.lock().retain(|way| way.stream != stream);
    }

    /// Every stream has ended.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Way>>> {
        self.0.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a request as the operator asks.
    pub(crate) async fn abort(&self, rid: &str, reason: Reason) -> Result<Sent, Refused> {
        if rid.is_empty() {
            return Err(Refused::Empty);
        }
        if is_health_check(rid.as_bytes()) {
            return Err(Refused::HealthCheck { rid: rid.to_owned() });
        }
        let looked = self.look(rid).await?;
        let other = looked.iter().find_map(|(way, looked)| Some((way, looked.longer.clone()?)));
        let mut live =
            looked.iter().filter_map(|(way, looked)| Some((way, looked.live.clone()?, looked.shape)));
        let first = live.next().ok_or_else(|| Refused::NotLive { rid: rid.to_owned() })?;
        // One that passes several streams is told by the first of them that can.
        let can = |(way, ..): &(&Arc<Way>, _, _)| way.upstream.is_ok();
        let (way, live, shape) = if can(&first) { first } else { live.find(can).unwrap_or(first) };
        if let Some((_, other)) = other {
            way.counters.refused.add(1);
            return Err(Refused::Prefix { rid: rid.to_owned(), other });
        }
        let ready = way.ready(shape).map_err(|why| Refused::NoWay { stream: way.stream.clone(), why });
        let (upstream, form) = ready.inspect_err(|_| way.counters.refused.add(1))?;
        let matched = (reason == Reason::Stop && live.ended_by.is_none()).then_some(ABORTED);
        let end = async |ending| matched.is_none() || way.end(rid, live.number, ending).await;
        // The scheduler's own row for it may be here before it is known that it was told.
        if !end(Ending::Expected).await {
            // It may come to it yet.
            way.control.end(rid, live.number, Ending::No, || {});
            return Err(Refused::NoAnswer { stream: way.stream.clone() });
        }
        if let Err(error) = self.send(way, upstream, &form, rid, OPERATOR, AbortBy::Operator).await {
            end(Ending::No).await;
            return Err(Refused::Failed { rid: rid.to_owned(), stream: way.stream.clone(), error });
        }
        end(Ending::Due).await;
        let (stream, to) = (way.stream.clone(), upstream.to_string());
        Ok(Sent { rid: rid.to_owned(), stream, to, reason, matched, ended_by: live.ended_by })
    }

    /// Asks every stream what it knows of a rid. One that has ended knows nothing.
    async fn look(&self, rid: &str) -> Result<Vec<(Arc<Way>, Looked)>, Refused> {
        let ways = self.lock().clone();
        let asked: Vec<_> = ways.into_iter().map(|way| (way.look(rid), way)).collect();
        let mut looked = Vec::new();
        for (answer, way) in asked {
            match tokio::time::timeout(LOOK_MAX, answer).await {
                Ok(Ok(answer)) => looked.push((way, answer)),
                Ok(Err(_)) => {}
                Err(_) => return Err(Refused::NoAnswer { stream: way.stream.clone() }),
            }
        }
        Ok(looked)
    }

    /// Tells the scheduler of the requests that plugins of a stream finish.
    async fn tell(self, way: Arc<Way>, mut finished: mpsc::Receiver<FinishedEarly>) {
        while let Some(FinishedEarly { rid, plugin, shape }) = finished.recv().await {
            let by = format!("plugin {plugin}");
            let failed = |why: String| {
                way.counters.failed.add(AbortBy::Plugin, 1);
                let (stream, rid, by) = (way.stream.as_str().into(), rid.clone(), by.as_str().into());
                self.0.events.publish(AbortFailed { stream, rid, by, why });
            };
            let (upstream, form) = match way.ready(shape) {
                Ok(ready) => ready,
                Err(why) => {
                    failed(why);
                    continue;
                }
            };
            // The stream has looked at its own. An HTTP server tells every scheduler that it has.
            if matches!(**upstream, Upstream::Http(_)) && self.lock().len() > 1 {
                match self.look(&rid).await.map(|looked| looked.into_iter().find_map(|(_, it)| it.longer)) {
                    Ok(None) => {}
                    Ok(Some(other)) => {
                        failed(Refused::Prefix { rid: rid.clone(), other }.to_string());
                        continue;
                    }
                    Err(refused) => {
                        failed(refused.to_string());
                        continue;
                    }
                }
            }
            // What went wrong was told.
            let _told = self.send(&way, upstream, &form, &rid, &by, AbortBy::Plugin).await;
        }
    }

    async fn send(
        &self,
        way: &Way,
        upstream: &Upstream,
        form: &AbortForm,
        rid: &str,
        by: &str,
        label: AbortBy,
    ) -> Result<(), UpstreamError> {
        let (stream, by) = (way.stream.as_str().into(), by.into());
        match upstream.abort(rid, form).await {
            Ok(()) => {
                way.counters.sent.add(label, 1);
                let to = upstream.to_string();
                self.0.events.publish(AbortSent { stream, rid: rid.to_owned(), by, to });
                Ok(())
            }
            Err(error) => {
                way.counters.failed.add(label, 1);
                let why = error.to_string();
                self.0.events.publish(AbortFailed { stream, rid: rid.to_owned(), by, why });
                Err(error)
            }
        }
    }
}

impl Way {
    fn look(&self, rid: &str) -> oneshot::Receiver<Looked> {
        let (reply, answer) = oneshot::channel();
        // Nobody waits any more where it fails.
        self.control.look(rid, move |looked| drop(reply.send(looked)));
        answer
    }

    /// Says what becomes of a request, and waits until the stream's journal has it. False: the stream has ended, or does not turn.
    async fn end(&self, rid: &str, number: u64, ending: Ending) -> bool {
        let (reply, done) = oneshot::channel();
        // Nobody waits any more where it fails.
        self.control.end(rid, number, ending, move || {
            let _told = reply.send(());
        });
        matches!(tokio::time::timeout(LOOK_MAX, done).await, Ok(Ok(())))
    }

    /// Where an abort goes and how it is written, or why it cannot be.
    fn ready(&self, shape: Option<AbortShape>) -> Result<(&Arc<Upstream>, AbortForm), String> {
        let upstream = self.upstream.as_ref().map_err(Clone::clone)?;
        let form = self.form.clone().or_else(|| shape.map(AbortForm::of));
        match (&**upstream, form) {
            (_, Some(form)) => Ok((upstream, form)),
            // Written in no form: it is JSON.
            (Upstream::Http(_), None) => Ok((upstream, AbortForm::of(AbortShape::Struct))),
            (Upstream::Push(_), None) => {
                Err("no batch has come since the start, and by its batches is known how it reads".to_owned())
            }
        }
    }
}
