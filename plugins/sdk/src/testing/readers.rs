//! A model of how Afterbay applies verdicts, for tests of plugins that hold rows.

use std::collections::BTreeMap;

use super::{Harness, TestRow};
use crate::{Action, Ending, FinishKind, Plugin, RequestId, TokenId};

/// A [`Harness`] and the readers of its requests. It applies the plugin's verdicts like Afterbay: held rows
/// wait, released rows leave in order, and rows after a finish are swallowed. It fills
/// [`Row::waiting`](crate::Row::waiting).
///
/// Rows with text are rows after the detokenizer. Verdicts that concern no tokens (notes, routes) have no
/// effect. Before a detokenizer Afterbay may release a row later than this model, with the request's next row,
/// because text must be whole.
pub struct Readers<P> {
    plugin: Harness<P>,
    requests: BTreeMap<RequestId, Received>,
    batches: u32,
}

/// The output of one request.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The ids that the reader has.
    pub ids: Vec<TokenId>,
    /// The text that the reader has, if the rows have text.
    pub text: String,
    /// The verdict that ended the request.
    pub end: Option<Action>,
    /// For each row of the request, the number of the batch that brought the row and of the batch with which the
    /// row left, both from 0.
    pub times: Vec<(u32, u32)>,
    held: Vec<TestRow>,
}

impl<P: Plugin> Readers<P> {
    /// Readers of the requests of this plugin.
    #[must_use]
    pub fn new(plugin: Harness<P>) -> Self {
        Self { plugin, requests: BTreeMap::new(), batches: 0 }
    }

    /// The harness.
    pub fn plugin(&mut self) -> &mut Harness<P> {
        &mut self.plugin
    }

    /// Opens a request.
    pub fn open(&mut self, request: RequestId) {
        self.plugin.open(request);
        self.requests.insert(request, Received::default());
    }

    /// Closes a request and returns its output.
    pub fn close(&mut self, request: RequestId) -> Received {
        self.plugin.close(request);
        self.requests.remove(&request).unwrap_or_default()
    }

    /// The output of an open request. Empty for other requests.
    #[must_use]
    pub fn received(&self, request: RequestId) -> Received {
        self.requests.get(&request).cloned().unwrap_or_default()
    }

    /// The text that the request's reader has: the rows' text, or the bytes of the ids.
    #[must_use]
    pub fn text(&self, request: RequestId) -> String {
        let Some(received) = self.requests.get(&request) else { return String::new() };
        if received.text.is_empty() {
            return String::from_utf8_lossy(&crate::tokenizer::decode(&received.ids)).into_owned();
        }
        received.text.clone()
    }

    /// Releases the request's held rows unchanged, as if their time had passed.
    pub fn time_out(&mut self, request: RequestId) {
        if let Some(received) = self.requests.get_mut(&request) {
            received.release(self.batches);
        }
    }

    /// Processes a batch of these rows and applies the verdicts. Rows of requests that the plugin has finished are
    /// swallowed.
    ///
    /// # Panics
    /// If a row's request is not open.
    pub fn process(&mut self, rows: &[TestRow]) {
        let mut seen = Vec::new();
        for row in rows {
            let received = self.requests.get(&row.request());
            #[expect(clippy::panic, reason = "an error in the test that calls this")]
            let Some(received) = received else { panic!("request {} is not open", row.request()) };
            if received.end.is_none() {
                seen.push(row.clone().waiting(received.held.len() as u32));
            }
        }
        if seen.is_empty() {
            return;
        }
        let verdicts = self.plugin.process(&seen);
        let mut actions: Vec<Option<Action>> = vec![None; seen.len()];
        for verdict in verdicts {
            if let Some(action) = actions.get_mut(verdict.row as usize) {
                *action = Some(verdict.action);
            }
        }
        for (row, action) in seen.into_iter().zip(actions) {
            if let Some(received) = self.requests.get_mut(&row.request()) {
                received.apply(row, action, self.batches);
            }
        }
        self.batches += 1;
    }
}

impl Received {
    fn apply(&mut self, mut row: TestRow, action: Option<Action>, batch: u32) {
        self.times.push((batch, u32::MAX));
        let is_last = row.finish_kind() != FinishKind::Running;
        let mut is_held = !self.held.is_empty();
        match action {
            None | Some(Action::Annotate(_) | Action::Route(_) | Action::SkipText) => {}
            Some(Action::Replace(new)) => row.set(new.ids, new.text),
            Some(Action::Drop(_)) => row.set(Vec::new(), Some(String::new())),
            Some(Action::Hold(_)) => is_held = true,
            Some(Action::Release) => is_held = false,
            Some(Action::ReleaseAs(new)) => {
                let text =
                    self.held.drain(..).map(|held| held.text_of()).collect::<String>() + &row.text_of();
                row.set(new.ids, Some(new.text.unwrap_or(text)));
                is_held = false;
            }
            Some(Action::ReleaseAndHold(_)) => {
                if !is_last {
                    let arrived = self.times.pop();
                    self.release(batch);
                    self.times.extend(arrived);
                }
                is_held = true;
            }
            Some(end) => {
                if let Action::Finish(Ending { replacement: Some(new), .. }) = &end {
                    // The tokens stand for those of the held rows too.
                    let held: String = self.held.drain(..).map(|held| held.text_of()).collect();
                    let text = if held.is_empty() { None } else { Some(held + &row.text_of()) };
                    row.set(new.ids.clone(), new.text.clone().or(text));
                }
                self.end = Some(end);
            }
        }
        self.held.push(row);
        if !is_held || is_last || self.end.is_some() {
            self.release(batch);
        }
    }

    fn release(&mut self, batch: u32) {
        for row in self.held.drain(..) {
            self.ids.extend(row.ids_of());
            self.text.push_str(&row.text_of());
        }
        for (_, left) in self.times.iter_mut().rev().take_while(|(_, left)| *left == u32::MAX) {
            *left = batch;
        }
    }
}
