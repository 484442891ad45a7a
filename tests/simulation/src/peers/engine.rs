//! A simulated engine: it dies and begins again, and goes on with the requests that wait for it, as its front end is asked to.

use crate::peers::Sender;
use afterbay_sim::frames::{Frame, FrameKind};
use afterbay_sim_disk::Random;
use afterbay_stream::Interruption;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{Barrier, BarrierKind, BatchKind, RequestRecord};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Requests that run at once.
const RUNNING_MAX: usize = 6;

/// Steps in which the stream reads an introduction, and says what waits.
const IDLE_STEPS: u32 = 50;

/// A request of a simulated engine.
#[derive(Clone, Debug)]
pub struct Request {
    /// The rid.
    pub rid: String,
    /// Tokens of the answer.
    pub tokens: u64,
    /// Whether the request goes on without its client.
    pub has_lease: bool,
    prompt: u64,
}

/// The token of a request at this place of its answer.
pub fn token(rid: &str, at: u64) -> i64 {
    let mut random = Random(u64::from(crc32fast::hash(rid.as_bytes())) << 20 | at);
    1 + (random.next() % 50_000) as i64
}

fn frame(bytes: impl Into<Bytes>, rows: u32) -> Frame {
    let (started, ended) = (Vec::new(), Vec::new());
    Frame {
        bytes: bytes.into(),
        rows,
        tokens: 0,
        kind: FrameKind::Batch { health_checks: 0 },
        started,
        ended,
    }
}

/// The stream's words about engines. Clones share them.
#[derive(Clone, Default)]
pub struct Waiting(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    /// The requests that wait for an engine, by number: the rid, and the tokens so far.
    requests: BTreeMap<u64, (String, u64)>,
    /// The engine that introduced itself last.
    introduced: Option<String>,
}

impl Waiting {
    /// Takes a change of the stream. Every request may wait.
    pub fn change(&self, change: Interruption) -> bool {
        let mut said = self.lock();
        match change {
            Interruption::Began(request) => {
                said.requests.insert(request.number, (request.rid, request.received));
                true
            }
            Interruption::Taken(number) | Interruption::Ended(number) => {
                said.requests.remove(&number).is_some()
            }
        }
    }

    /// Takes what a connector says.
    pub fn hear(&self, message: &Barrier) {
        if let BarrierKind::Introduction { introduction: Ok(introduction) } = &message.kind {
            self.lock().introduced = introduction.version.clone();
        }
    }

    fn all(&self) -> Vec<(String, u64)> {
        self.lock().requests.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A simulated engine, over all of its lives.
pub struct Engine {
    pub requests: Vec<Request>,
    pub waiting: Waiting,
    /// The number of deaths.
    pub deaths: u64,
    random: Random,
    has_introduced: bool,
    /// Steps in a row without a request.
    idle_steps: u32,
    /// The request that begins next.
    next: usize,
    /// The requests that run: which one, the tokens so far, and those of the engines before.
    running: Vec<(usize, u64, u64)>,
    /// The requests that this life has been asked to go on with.
    asked: BTreeSet<String>,
}

impl Engine {
    pub fn new(seed: u64) -> Engine {
        let mut random = Random(seed ^ 0xe791);
        let requests = (0..3 + random.below(12)).map(|number| Request {
            rid: format!("of-an-engine-{number}"),
            tokens: 1 + random.below(40),
            has_lease: !random.once_in(4),
            prompt: 1 + random.below(9),
        });
        let requests = requests.collect();
        Engine {
            requests,
            waiting: Waiting::default(),
            deaths: 0,
            random,
            has_introduced: false,
            idle_steps: 0,
            next: 0,
            running: Vec::new(),
            asked: BTreeSet::new(),
        }
    }

    /// Makes these many steps, whose frames wait for the sender.
    pub fn steps(&mut self, sender: &mut Sender, steps: usize) {
        if !self.has_introduced {
            self.has_introduced = true;
            let version = self.version();
            let introduction = format!(
                r#"{{"afterbay":"introduction","format":1,"engine":"sglang","version":"{version}","classes":{{}}}}"#
            );
            sender.add(frame(introduction, 0));
        }
        // An engine's HTTP server listens some time after its introduction.
        let is_known = self.waiting.lock().introduced == Some(self.version());
        let waiting = if is_known { self.waiting.all() } else { Vec::new() };
        for (rid, received) in waiting {
            if self.asked.insert(rid.clone())
                && let Some(which) = self.requests.iter().position(|request| request.rid == rid)
            {
                self.begin(which, received, sender);
            }
        }
        for _ in 0..steps {
            if self.next < self.requests.len() && self.running.len() < RUNNING_MAX {
                self.begin(self.next, 0, sender);
                self.next += 1;
            }
            self.step(sender);
        }
    }

    fn version(&self) -> String {
        format!("0.{}", self.deaths)
    }

    fn begin(&mut self, which: usize, before: u64, sender: &mut Sender) {
        let Request { rid, prompt, has_lease, .. } = &self.requests[which];
        let lease_ms = has_lease.then_some(60_000);
        let record = RequestRecord { rid: rid.clone(), lease_ms, ..RequestRecord::default() };
        let ids: Vec<u32> = (0..prompt + before).map(|at| at as u32).collect();
        sender.add(frame(record.with_prompt(&ids).to_frame(), 0));
        self.asked.insert(rid.clone());
        self.running.push((which, before, before));
    }

    fn step(&mut self, sender: &mut Sender) {
        let mut rows = Vec::new();
        for (which, so_far, before) in &mut self.running {
            let Request { rid, tokens, prompt, .. } = &self.requests[*which];
            let to = (*so_far + 1 + self.random.below(3)).min(*tokens);
            rows.push(SynthRow {
                rid: rid.clone(),
                ids: (*so_far..to).map(|at| token(rid, at)).collect(),
                completion_tokens: to - *before,
                prompt_tokens: *prompt + *before,
                finish: (to == *tokens).then(|| SynthFinish::Length(to - *before)),
                ..SynthRow::default()
            });
            *so_far = to;
        }
        let requests = &self.requests;
        self.running.retain(|(which, so_far, _)| *so_far < requests[*which].tokens);
        self.idle_steps = if rows.is_empty() { self.idle_steps + 1 } else { 0 };
        if rows.is_empty() {
            return;
        }
        let count = rows.len() as u32;
        let bytes = SynthBatch { rows }.encode(BatchKind::TokenId, SynthWire::Pickle).unwrap();
        sender.add(frame(bytes, count));
    }

    /// Dies. What the kernel does not have whole is lost, and so is every request that runs.
    pub fn die(&mut self, sender: &mut Sender) {
        sender.close();
        sender.forget_rest();
        self.deaths += 1;
        (self.has_introduced, self.idle_steps) = (false, 0);
        self.running.clear();
        self.asked.clear();
    }

    /// Whether every request has ended, and nobody has asked for another one for a while.
    pub fn is_done(&self) -> bool {
        self.has_introduced
            && self.idle_steps > IDLE_STEPS
            && self.waiting.lock().introduced == Some(self.version())
            && self.next == self.requests.len()
            && self.running.is_empty()
            && self.waiting.all().is_empty()
    }
}
