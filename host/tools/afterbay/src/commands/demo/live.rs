//! The demo's progress display: for each side the tokens read, the rate, and the backlog.

use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use afterbay_sim::Progress;
use indicatif::{MultiProgress, ProgressBar};

use super::act::Both;
use crate::commands::sim::output::style;
use afterbay_terminal::count;

/// The last progress of one end, shared between threads.
#[derive(Clone, Default)]
pub(super) struct SharedProgress(Arc<Mutex<Progress>>);

impl SharedProgress {
    pub(super) fn set(&self, progress: &Progress) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = *progress;
    }

    pub(super) fn get(&self) -> Progress {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bar for each side on a terminal, else a line for both.
pub(super) struct Live {
    bars: Option<(MultiProgress, Both<ProgressBar>)>,
    quiet: bool,
    began: Instant,
    last: Instant,
    /// Progress of each side when the last line was printed.
    before: Both<Progress>,
}

impl Live {
    pub(super) fn new(requests: u64, quiet: bool) -> Live {
        let bars = (std::io::stderr().is_terminal() && !quiet).then(|| {
            let all = MultiProgress::new();
            let bar = |name: &'static str| {
                let bar = all.add(ProgressBar::new(requests).with_prefix(name));
                bar.with_style(style("  {prefix:16} {bar:8.cyan} {pos:>6} of {len}  {msg}"))
            };
            let bars = Both { direct: bar("direct"), afterbay: bar("through Afterbay") };
            (all, bars)
        });
        let now = Instant::now();
        Live { bars, quiet, began: now, last: now, before: Both::default() }
    }

    /// Shows what each side has sent and read.
    pub(super) fn show(&mut self, sides: Both<(Progress, Progress)>) {
        let every = if self.bars.is_some() { Duration::from_millis(500) } else { Duration::from_secs(1) };
        if self.quiet || self.last.elapsed() < every {
            return;
        }
        self.last = Instant::now();
        let message = |(sent, received): (Progress, Progress), before: Progress| {
            let waiting = sent.tokens.saturating_sub(received.tokens);
            format!("{:>7} tokens/s, {:>7} wait", per_second(&received, &before), count(waiting))
        };
        let direct = message(sides.direct, self.before.direct);
        let afterbay = message(sides.afterbay, self.before.afterbay);
        self.before = sides.map(|(_, received)| received);
        match &self.bars {
            Some((_, bars)) => {
                bars.direct.set_position(sides.direct.1.ended);
                bars.direct.set_message(direct);
                bars.afterbay.set_position(sides.afterbay.1.ended);
                bars.afterbay.set_message(afterbay);
            }
            None => {
                let at = self.began.elapsed().as_secs_f64();
                println!("{at:4.1} s  direct: {direct}   through Afterbay: {afterbay}");
                // If nobody reads the output, the next print ends the process.
                let _flushed = std::io::stdout().flush();
            }
        }
    }

    pub(super) fn end(&self) {
        if let Some((all, bars)) = &self.bars {
            bars.direct.finish();
            bars.afterbay.finish();
            // An error means that the terminal is gone.
            let _cleared = all.clear();
        }
    }
}

/// The reader's rate, by the clock of its progress reports.
fn per_second(now: &Progress, before: &Progress) -> String {
    let seconds = now.elapsed.saturating_sub(before.elapsed).as_secs_f64();
    let tokens = now.tokens.saturating_sub(before.tokens);
    if seconds <= 0.0 { count(0) } else { count((tokens as f64 / seconds) as u64) }
}
