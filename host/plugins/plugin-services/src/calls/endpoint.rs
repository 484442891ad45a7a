//! One endpoint: its bound on calls at once, its circuit breaker, its counters, and the way of a call through these.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use afterbay_config as config;
use afterbay_events::event::{CallsResumed, CallsStopped};
use afterbay_events::{CallCounters, CallResult, Event, Events, Health, Name};
use bytes::Bytes;

use crate::calls::breaker::{Breaker, Change};
use crate::calls::exchange::{CallError, Exchanger, ServiceAnswer};

/// An endpoint with one configuration. A changed configuration makes another one with the same status.
pub(crate) struct Endpoint {
    pub(crate) config: config::Call,
    exchanger: Exchanger,
    pub(crate) status: Arc<Status>,
    /// The number of this configuration among those of the endpoint.
    generation: u64,
}

/// The part of an endpoint that outlives a change of its configuration.
pub(crate) struct Status {
    name: Name,
    counters: Arc<CallCounters>,
    events: Events,
    health: Health,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_flight: usize,
    breaker: Breaker,
    generation: u64,
}

/// The outcome of a call. It counts as a call under way until its place is dropped.
pub struct CallOutcome {
    /// The answer, or the reason why there is none.
    pub result: Result<ServiceAnswer, CallError>,
    /// The call's place among the calls under way. `None` if the call was not made.
    pub place: Option<Place>,
}

/// A place among the calls under way.
pub struct Place(Arc<Status>);

/// A call under way. Dropped without a result, the call counts as cancelled.
pub(crate) struct PlacedCall {
    endpoint: Arc<Endpoint>,
    place: Option<Place>,
    started: Instant,
    is_trial: bool,
    has_result: bool,
}

impl Status {
    pub(crate) fn new(name: Name, counters: Arc<CallCounters>, events: Events, health: Health) -> Status {
        Status { name, counters, events, health, state: Mutex::default() }
    }

    /// Locks the state. The counters are written only under this lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn condition(&self) -> String {
        format!("call:{}", self.name)
    }

    /// Forgets the failures: the configuration changed, or the endpoint was removed.
    pub(crate) fn reset(&self) -> u64 {
        let mut state = self.lock();
        (state.breaker, state.generation) = (Breaker::default(), state.generation + 1);
        self.counters.breaker_open.set(0);
        self.health.clear(&self.condition());
        state.generation
    }

    fn publish(&self, change: Change, config: &config::Call, why: String) {
        let endpoint = self.name.clone();
        let event: Event = match change {
            Change::None => return,
            Change::Opened(failures) => {
                let text = format!("calls are refused, because {failures} in a row failed: {why}");
                self.health.degraded(&self.condition(), text, SystemTime::now());
                let open_ms = u64::try_from(config.breaker.open.as_millis()).unwrap_or(u64::MAX);
                CallsStopped { endpoint, failures: failures as u64, open_ms, why }.into()
            }
            Change::Closed(stopped) => {
                self.health.clear(&self.condition());
                let stopped_ms = u64::try_from(stopped.as_millis()).unwrap_or(u64::MAX);
                CallsResumed { endpoint, stopped_ms }.into()
            }
        };
        self.events.publish(event);
    }
}

impl Endpoint {
    /// An endpoint with a fresh circuit breaker.
    pub(crate) fn new(config: config::Call, exchanger: Exchanger, status: Arc<Status>) -> Endpoint {
        let generation = status.reset();
        Endpoint { config, exchanger, status, generation }
    }

    /// Takes a place for a call. The error is the outcome of a call that is not made.
    pub(crate) fn place(self: &Arc<Endpoint>, now: Instant) -> Result<PlacedCall, CallError> {
        let mut state = self.status.lock();
        let counters = &self.status.counters;
        if state.in_flight >= self.config.max_in_flight {
            counters.results.add(CallResult::Full, 1);
            return Err(CallError::Overloaded);
        }
        let Some(is_trial) = state.breaker.admit(now) else {
            counters.results.add(CallResult::Broken, 1);
            return Err(CallError::Overloaded);
        };
        state.in_flight += 1;
        counters.in_flight.set(state.in_flight as u64);
        let place = Some(Place(self.status.clone()));
        Ok(PlacedCall { endpoint: self.clone(), place, started: now, is_trial, has_result: false })
    }
}

impl PlacedCall {
    /// Makes the call.
    pub(crate) async fn run(mut self, body: Bytes) -> CallOutcome {
        let Endpoint { config, exchanger, .. } = &*self.endpoint;
        let result = exchanger.run(config, body).await;
        self.record(&result);
        CallOutcome { result, place: self.place.take() }
    }

    fn record(&mut self, result: &Result<ServiceAnswer, CallError>) {
        self.has_result = true;
        let (now, endpoint) = (Instant::now(), &self.endpoint);
        let (label, why) = match result {
            Ok(_) => (CallResult::Answered, String::new()),
            Err(CallError::TimedOut) => {
                (CallResult::TimedOut, format!("no answer in {:?}", endpoint.config.timeout))
            }
            Err(CallError::Failed(why) | CallError::Refused(why)) => (CallResult::Failed, why.clone()),
            Err(CallError::Overloaded) => (CallResult::Failed, String::new()),
        };
        let status = &endpoint.status;
        let mut state = status.lock();
        status.counters.results.add(label, 1);
        status.counters.seconds.observe(now.saturating_duration_since(self.started));
        if state.generation != endpoint.generation {
            return;
        }
        let change = match result {
            Ok(_) => state.breaker.succeeded(self.is_trial, now),
            Err(_) => state.breaker.failed(self.is_trial, endpoint.config.breaker, now),
        };
        status.counters.breaker_open.set(u64::from(state.breaker.is_open()));
        drop(state);
        status.publish(change, &endpoint.config, why);
    }
}

impl Drop for PlacedCall {
    fn drop(&mut self) {
        if self.has_result {
            return;
        }
        let status = &self.endpoint.status;
        let mut state = status.lock();
        status.counters.results.add(CallResult::Cancelled, 1);
        if self.is_trial && state.generation == self.endpoint.generation {
            state.breaker.trial_cancelled(Instant::now());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        self.0.counters.in_flight.set(state.in_flight as u64);
    }
}

impl CallOutcome {
    /// The outcome of a call that was not made.
    pub fn not_made(error: CallError) -> CallOutcome {
        CallOutcome { result: Err(error), place: None }
    }
}

impl std::fmt::Debug for CallOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CallOutcome({:?})", self.result)
    }
}
