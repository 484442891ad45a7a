//! What the demo shows while it runs: tokens a second in and out, and what waits between.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use afterbay_sim::Progress;
use indicatif::ProgressBar;

use crate::commands::sim::tell::{count, style};

/// The last progress of one end, between threads.
#[derive(Clone, Default)]
pub(super) struct Shown(Arc<Mutex<Progress>>);

impl Shown {
    pub(super) fn set(&self, progress: &Progress) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *progress;
    }

    pub(super) fn get(&self) -> Progress {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How it goes: tokens a second in and out, and what waits between.
pub(super) struct Live {
    bar: Option<ProgressBar>,
    quiet: bool,
    began: Instant,
    last: Instant,
    before: (Progress, Progress),
}

impl Live {
    pub(super) fn new(requests: u64, quiet: bool) -> Live {
        let bar = (std::io::stderr().is_terminal() && !quiet).then(|| {
            ProgressBar::new(requests).with_style(style("{bar:24.cyan} {pos}/{len} requests  {msg}"))
        });
        let now = Instant::now();
        Live { bar, quiet, began: now, last: now, before: Default::default() }
    }

    pub(super) fn show(&mut self, sent: &Progress, received: &Progress) {
        let every = if self.bar.is_some() { Duration::from_millis(500) } else { Duration::from_secs(1) };
        let passed = self.last.elapsed();
        if self.quiet || passed < every {
            return;
        }
        self.last = Instant::now();
        let message = format!(
            "tokens/s in {:>7}, out {:>7}; backlog {:>6} tokens",
            per_second(sent, &self.before.0),
            per_second(received, &self.before.1),
            count(sent.tokens.saturating_sub(received.tokens)),
        );
        self.before = (*sent, *received);
        match &self.bar {
            Some(bar) => {
                bar.set_position(received.ended);
                bar.set_message(message);
            }
            None => {
                println!("{:4.1} s  {message}", self.began.elapsed().as_secs_f64());
                // Only a reader that went away could mind, and then the next print tells.
                let _flushed = std::io::stdout().flush();
            }
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// By each end's own clock: the two tell their progress at different times.
fn per_second(now: &Progress, before: &Progress) -> String {
    let seconds = now.elapsed.saturating_sub(before.elapsed).as_secs_f64();
    let tokens = now.tokens.saturating_sub(before.tokens);
    count((tokens as f64 / seconds.max(1e-3)) as u64)
}
