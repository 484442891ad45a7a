//! Counts the requests that are being answered, and refuses changes during a hand-over: a change that this process accepted
//! after its state went over would be lost.

use crate::refusal::Refusal;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Time between two looks at the requests that are being answered.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The gate of all admin addresses. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    is_closed: AtomicBool,
    changes: AtomicUsize,
    reads: AtomicUsize,
}

/// A request that is being answered.
struct Answering<'a>(&'a AtomicUsize);

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Gate {
    /// Refuses changes from now on, and waits until those that were accepted are done. False: some are not done after `within`.
    pub(crate) async fn close(&self, within: Duration) -> bool {
        self.0.is_closed.store(true, Ordering::Release);
        self.are_done(&[&self.0.changes], within).await
    }

    /// Accepts changes again.
    pub(crate) fn open(&self) {
        self.0.is_closed.store(false, Ordering::Release);
    }

    /// Waits until every request is answered, at most `within`.
    pub(crate) async fn settle(&self, within: Duration) {
        // A request that is cut gets no answer, as at any end of a process.
        let _done = self.are_done(&[&self.0.changes, &self.0.reads], within).await;
    }

    async fn are_done(&self, counts: &[&AtomicUsize], within: Duration) -> bool {
        let done = async {
            while counts.iter().any(|count| count.load(Ordering::Acquire) > 0) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(within, done).await.is_ok()
    }
}

/// Passes a request on, unless it is a change during a hand-over.
pub(crate) async fn check(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let count = if is_read { &gate.0.reads } else { &gate.0.changes };
    if !is_read && gate.0.is_closed.load(Ordering::Acquire) {
        let why = "a hand-over to a new process is under way: ask again in a second";
        let mut refused = Refusal::unavailable("hand_over", why).into_response();
        refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        return refused;
    }
    count.fetch_add(1, Ordering::AcqRel);
    let _answering = Answering(count);
    next.run(request).await
}
