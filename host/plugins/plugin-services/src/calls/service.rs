//! The endpoints of a process, and the thread on which calls run.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use bytes::Bytes;
use thiserror::Error;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::calls::endpoint::{CallOutcome, Endpoint, Status};
use crate::calls::exchange::{CallError, Exchanger, REQUEST_BYTES_MAX};

/// Threads that look up names of hosts at once. Further look-ups wait, within the time limit of their calls.
const LOOKUPS_MAX: usize = 8;

/// The endpoints of a process. Clones share them.
#[derive(Clone)]
pub struct Calls(Arc<Shared>);

struct Shared {
    endpoints: Mutex<BTreeMap<String, Arc<Endpoint>>>,
    /// Started with the first endpoint.
    thread: Mutex<Option<Thread>>,
    events: Events,
    metrics: Metrics,
    health: Health,
}

/// The thread of the calls. It ends when this is dropped, and cancels the calls under way.
struct Thread {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

/// The reason why endpoints cannot be used.
#[derive(Debug, Error)]
pub enum CallsError {
    /// The client of an endpoint cannot be made.
    #[error("call {endpoint:?}: {why}")]
    Client {
        /// The endpoint.
        endpoint: String,
        /// The reason, without the URL and the headers.
        why: String,
    },
    /// The thread of the calls cannot be started.
    #[error("calls: the thread cannot be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// A call under way. Dropping this cancels the call, whose callback is then dropped.
#[derive(Debug)]
pub struct RunningCall(Option<AbortHandle>);

impl Drop for RunningCall {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Calls {
    /// Calls without an endpoint. Each call is refused.
    pub fn new(events: Events, metrics: Metrics, health: Health) -> Calls {
        let (endpoints, thread) = Default::default();
        Calls(Arc::new(Shared { endpoints, thread, events, metrics, health }))
    }

    /// Replaces the endpoints. An unchanged endpoint stays as it is. Calls under way end by the terms with which they began.
    ///
    /// # Errors
    /// A client cannot be made, or the thread cannot be started. Then nothing has changed.
    pub fn set_endpoints(&self, endpoints: &[config::Call]) -> Result<(), CallsError> {
        if !endpoints.is_empty() {
            self.start_thread()?;
        }
        let mut known = self.lock();
        let mut next = BTreeMap::new();
        let mut changed = Vec::new();
        for config in endpoints {
            let name = config.name.to_string();
            match known.get(&name) {
                Some(same) if same.config == *config => _ = next.insert(name, same.clone()),
                _ => {
                    let exchanger = Exchanger::new(config);
                    let exchanger =
                        exchanger.map_err(|why| CallsError::Client { endpoint: name.clone(), why })?;
                    changed.push((name, config, exchanger));
                }
            }
        }
        for (name, config, exchanger) in changed {
            let status = match known.get(&name) {
                Some(before) => before.status.clone(),
                None => Arc::new(self.status(config)),
            };
            next.insert(name, Arc::new(Endpoint::new(config.clone(), exchanger, status)));
        }
        for (name, endpoint) in known.iter().filter(|(name, _)| !next.contains_key(*name)) {
            endpoint.status.reset();
            self.0.metrics.forget_call(name);
        }
        *known = next;
        Ok(())
    }

    fn status(&self, config: &config::Call) -> Status {
        let Shared { events, metrics, health, .. } = &*self.0;
        let counters = metrics.call(config.name.as_str());
        Status::new(config.name.as_str().into(), counters, events.clone(), health.clone())
    }

    /// Starts a POST of this body to the endpoint of this name. Does not block. `done` gets the outcome on another thread, or
    /// at once if the call is not made.
    pub fn send(
        &self,
        endpoint: &str,
        body: Bytes,
        done: impl FnOnce(CallOutcome) + Send + 'static,
    ) -> RunningCall {
        let placed = match self.lock().get(endpoint) {
            None => Err(CallError::Refused(format!("the configuration has no endpoint {endpoint:?}"))),
            Some(_) if body.len() > REQUEST_BYTES_MAX => {
                let bytes = body.len();
                Err(CallError::Refused(format!(
                    "the body has {bytes} bytes, the limit is {REQUEST_BYTES_MAX}"
                )))
            }
            Some(endpoint) => endpoint.place(Instant::now()),
        };
        let call = match placed {
            Ok(call) => call,
            Err(error) => {
                done(CallOutcome::not_made(error));
                return RunningCall(None);
            }
        };
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread runs as soon as there is an endpoint.
        let task =
            thread.as_ref().map(|thread| thread.handle.spawn(async move { done(call.run(body).await) }));
        RunningCall(task.map(|task| task.abort_handle()))
    }

    fn start_thread(&self) -> Result<(), CallsError> {
        let mut thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return Ok(());
        }
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(LOOKUPS_MAX).build()?;
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        std::thread::Builder::new().name("calls".into()).spawn(move || {
            // An error means that the sender was dropped.
            let _stopped = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        *thread = Some(Thread { handle, _stop: stop });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Endpoint>>> {
        self.0.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
