//! Asks the admin address once a second, in a thread of its own, so that a slow answer never stops the screen.
//!
//! Each question is a new connection, which finds the next process after a hand-over or a restart.

use serde::Deserialize;
use serde_json::Value;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::top::admin::Admin;
use crate::top::status::{RequestPage, Status};

/// The time between two questions.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// The answer that the open view needs beside the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Detail {
    #[default]
    Nothing,
    /// A page of the list of requests.
    Requests(Vec<(&'static str, String)>),
    /// The life of the request with this rid.
    Life(String),
}

/// An answer of the admin address, or the reason why there is none.
#[derive(Debug)]
pub(crate) enum Answer {
    Status(Result<Status, String>),
    Requests(Detail, Result<RequestPage, String>),
    Life(Detail, Result<Value, String>),
}

/// Tells the polling thread which answer the open view needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk(Arc<(Mutex<Order>, Condvar)>);

#[derive(Debug, Default)]
struct Order {
    detail: Detail,
    /// Set once the order differs from the one that was answered last.
    is_new: bool,
}

impl Desk {
    /// Orders an answer. The thread asks for it at once if it is another one than before.
    pub(crate) fn order(&self, detail: &Detail) {
        let (order, changed) = &*self.0;
        let mut order = order.lock().unwrap_or_else(PoisonError::into_inner);
        if order.detail != *detail {
            *order = Order { detail: detail.clone(), is_new: true };
            changed.notify_one();
        }
    }

    fn take(&self) -> Detail {
        let mut order = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        order.is_new = false;
        order.detail.clone()
    }

    /// Waits until `end` or for a new order. Returns whether there is a new order.
    fn wait_until(&self, end: Instant) -> bool {
        let (order, changed) = &*self.0;
        let mut order = order.lock().unwrap_or_else(PoisonError::into_inner);
        while !order.is_new {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            order = changed.wait_timeout(order, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// Asks until `send` returns false, because nobody receives the answers.
pub(crate) fn poll(admin: &impl Admin, desk: &Desk, send: impl Fn(Answer) -> bool) {
    loop {
        let next = Instant::now() + EVERY;
        if !send(Answer::Status(status(admin))) {
            return;
        }
        loop {
            let detail = desk.take();
            let answer = match &detail {
                Detail::Nothing => None,
                Detail::Requests(query) => {
                    let page = ask(admin, &["requests"], query).and_then(|page| parsed(&page));
                    Some(Answer::Requests(detail, page))
                }
                Detail::Life(rid) => {
                    let life = ask(admin, &["requests", rid], &[]);
                    Some(Answer::Life(detail, life))
                }
            };
            if answer.is_some_and(|answer| !send(answer)) {
                return;
            }
            if !desk.wait_until(next) {
                break;
            }
        }
    }
}

/// Asks for the status.
pub(crate) fn status(admin: &impl Admin) -> Result<Status, String> {
    parsed(&ask(admin, &["status"], &[])?)
}

/// GETs JSON. An answer that is no success is an error with its own words.
pub(crate) fn ask(admin: &impl Admin, path: &[&str], query: &[(&str, String)]) -> Result<Value, String> {
    let (is_done, said) = admin.get(path, query)?;
    if is_done {
        return Ok(said);
    }
    Err(said["error"].as_str().map_or_else(|| said.to_string(), str::to_owned))
}

fn parsed<'a, T: Deserialize<'a>>(said: &'a Value) -> Result<T, String> {
    T::deserialize(said).map_err(|error| format!("the answer has another form than expected: {error}"))
}
