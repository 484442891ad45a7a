//! Asks the admin address once a second, in a thread of its own, so that a slow answer never stops the screen.
//!
//! Each question is a new connection, which finds the next process after a hand-over or a restart.

use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two questions.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// The admin address of a running Afterbay.
pub trait Admin: Send + 'static {
    /// GETs JSON from `/v1/` and the parts of `path`, which are encoded by the implementation, as is the query. Each call
    /// is a new connection. Returns whether the call succeeded, and the answer; a refusal has its words in `error`.
    ///
    /// # Errors
    /// There is no answer, or the answer is no JSON. The text says why, in one line.
    fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<(bool, Value), String>;
}

/// A question to the admin address beside that for the status: the path behind `/v1/requests`, and the query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) rid: Option<String>,
    pub(crate) query: Vec<(String, String)>,
}

/// An answer of the admin address, or the reason why there is none. Without a question it is the status.
pub(crate) type Answer = (Option<Question>, Result<Value, String>);

/// The question that the open view has, for the thread that asks.
pub(crate) type Desk = Arc<Mutex<Option<Question>>>;

/// The question on the desk.
pub(crate) fn on_desk(desk: &Desk) -> Option<Question> {
    desk.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Asks until `send` returns false, because nobody receives the answers. A new question is asked when the thread is unparked.
pub(crate) fn poll(admin: &impl Admin, desk: &Desk, send: impl Fn(Answer) -> bool) {
    loop {
        let next = Instant::now() + EVERY;
        if !send((None, status(admin))) {
            return;
        }
        let mut asked = None;
        while Instant::now() < next {
            let question = on_desk(desk);
            if let Some(question) = question.filter(|question| asked.as_ref() != Some(question)) {
                let path: Vec<&str> = ["requests"].into_iter().chain(question.rid.as_deref()).collect();
                let query: Vec<_> =
                    question.query.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
                asked = Some(question.clone());
                if !send((asked.clone(), ask(admin, &path, &query))) {
                    return;
                }
                continue;
            }
            std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// The figure of the curve, and the seconds of it that are asked for: the widest curve.
pub(crate) const CURVE: (&str, usize) = ("tokens_received", 300);

/// Asks for the status. The sinks of all streams are also a list of its own, each with the name of its stream, and `history` has the
/// last seconds of the curve.
pub(crate) fn status(admin: &impl Admin) -> Result<Value, String> {
    let mut status = ask(admin, &["status"], &[])?;
    let (figure, seconds) = CURVE;
    let query = [("by", "second".to_owned()), ("last", seconds.to_string()), ("figure", figure.to_owned())];
    // Without an answer the curve begins now.
    let history = ask(admin, &["status", "history"], &query).unwrap_or_default();
    let mut all = Vec::new();
    for stream in status["streams"].as_array().into_iter().flatten() {
        for sink in stream["sinks"].as_array().into_iter().flatten() {
            let mut sink = sink.clone();
            if let Some(fields) = sink.as_object_mut() {
                fields.insert("stream".to_owned(), stream["name"].clone());
            }
            all.push(sink);
        }
    }
    if let Some(fields) = status.as_object_mut() {
        fields.insert("sinks".to_owned(), all.into());
        fields.insert("history".to_owned(), history);
    }
    Ok(status)
}

/// GETs JSON. An answer that is no success is an error with its own words.
pub(crate) fn ask(admin: &impl Admin, path: &[&str], query: &[(&str, String)]) -> Result<Value, String> {
    let (is_done, said) = admin.get(path, query)?;
    if is_done {
        return Ok(said);
    }
    Err(said["error"].as_str().map_or_else(|| said.to_string(), str::to_owned))
}
