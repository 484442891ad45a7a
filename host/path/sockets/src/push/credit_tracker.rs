//! Decides from the credit page which frames are finished, which ones are sent again, and which ones are unconfirmed.
//!
//! Page reads, connections and losses arrive in any order. The rule behind the table: a frame is sent again only if it
//! is certain that no reader finished it or still will. Every other frame is reported as unconfirmed.
//!
//! | event | what is known, and done |
//! |---|---|
//! | the connection is lost, then there is a new generation | the page has the old one's final count: the frames past it are sent again |
//! | a new connection, no new generation yet | nothing is written for `generation_wait` (a reader opens its page before it listens, so this is mostly the same reader) |
//! | … and the page's process is the connected one (ipc) | the same reader: it has what it read, so nothing is sent again. It lost what it did not read and will not count those frames, so from now on as many frames past the count may be finished too, and are not sent again either |
//! | … and there is no new generation in time, and the page is of another process | the connected reader has no page: continue without credit (stale) |
//! | … and there is no new generation in time, process unknown (tcp) | taken for the same reader |
//! | a new generation while connected | nothing is written until the connection is lost (then as in the first row). After `generation_wait` the generation is taken for the connected reader's |
//! | … and its process is the connected one (ipc) | the generation is the connected reader's, at once |
//! | a generation was missed, or the file is a new one | the final count is unknown: nothing is sent again, every frame is unconfirmed |
//! | the count exceeds the frames written | another sender sends too: continue without credit |
//! | the count falls | not used until a new generation |
//! | the page of a connected reader is empty, zeros, gone or being opened for `generation_wait` | no page: continue without credit. Without a connection this is waited for: the next reader opens the page before it listens |
//! | a doubtful count stands still for `stall` | continue without credit until the count moves, or until a new generation if frames may have been lost |
//!
//! A count is doubtful until it has once reached the number of frames written, since the page was first read or since a
//! new connection.

mod saved;

pub(crate) use saved::{TRACKER_WORDS, TrackerWords};

use std::time::{Duration, Instant};

use super::notice::{CreditPosition, PushNotice};
use super::options::CreditOptions;
use super::send_queue::SendQueue;
use crate::credit::{CreditState, Invalid, Page, PageStatus};
use crate::notices::NoticeQueue;

/// Everything that a tracker changes, and the time.
pub(crate) struct TrackerContext<'a> {
    pub(crate) queue: &'a mut SendQueue,
    pub(crate) notices: &'a mut NoticeQueue<PushNotice>,
    pub(crate) now: Instant,
}

#[derive(Debug)]
pub(crate) struct CreditTracker {
    generation_wait: Duration,
    stall: Duration,
    trust: PageTrust,
    /// The generation that the retained frames were written to.
    known: Option<Generation>,
    connection: Option<Connection>,
    /// Whether a connection's process once was the page's: then both are of one pid namespace, and another pid is
    /// another process.
    pids_agree: bool,
    /// Counts still to come for frames that were written before the retained ones and are not retained themselves.
    unretained_counts: u64,
    /// Counted frames that a live reader may have lost with a connection: this many frames past the count may be
    /// finished too.
    slack: u64,
    /// Whether the first count read was not 0. Within this generation it may include frames of an earlier process.
    joined_midway: bool,
    doubt: Option<Doubt>,
    /// The time at which the count last moved, or the first frame became unfinished.
    moved: Instant,
    /// The first of the reads in a row, on this connection, that found an unsettled page.
    unsettled_since: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PageTrust {
    Absent,
    Invalid(Invalid),
    Usable,
    /// Not the connected reader's page, or still for too long. Trusted again with a new generation or, if `heals`, a
    /// new count.
    Stale {
        heals: bool,
    },
    RanAhead {
        by: u64,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Generation {
    file: (u64, u64),
    pid: u32,
    number: u64,
    /// The highest count read.
    count: u64,
}

#[derive(Debug)]
struct Connection {
    pid: Option<u32>,
    wait: Option<WriteWait>,
    /// Whether the page did not exist when the connection was made: all counts of the first generation are of this
    /// connection.
    saw_absent: bool,
}

/// The reason why the count may never reach the number of frames written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The page may be of another reader. If it is the connected reader's, it counts every frame in the end.
    Page,
    /// The reader may have lost frames with a connection. It does not count those.
    Loss,
}

/// The event that writing waits for.
#[derive(Debug)]
enum WriteWait {
    /// A new generation: the connection is new.
    Generation { until: Instant, foreign: bool },
    /// The loss of the connection: the generation is new. `clean`: nothing was written to the connection.
    Loss { until: Instant, page: Page, clean: bool },
}

impl CreditTracker {
    pub(crate) fn new(options: &CreditOptions, now: Instant) -> CreditTracker {
        CreditTracker {
            generation_wait: options.generation_wait,
            stall: options.stall,
            trust: PageTrust::Absent,
            known: None,
            connection: None,
            pids_agree: false,
            unretained_counts: 0,
            slack: 0,
            joined_midway: false,
            doubt: Some(Doubt::Page),
            moved: now,
            unsettled_since: None,
        }
    }

    pub(crate) fn may_write(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.wait.is_none())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.trust == PageTrust::Usable
    }

    /// Whether a page read may change anything soon.
    pub(crate) fn is_waiting(&self, queue: &SendQueue) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            connection.wait.is_some() || queue.counted() > 0 || self.unretained_counts > 0
        })
    }

    pub(crate) fn state(&self) -> CreditState {
        match &self.trust {
            PageTrust::Absent => CreditState::Absent,
            PageTrust::Invalid(why) => CreditState::Invalid(why.clone()),
            PageTrust::Usable => {
                let known = self.known.map_or((0, 0), |known| (known.number, known.count));
                CreditState::Usable { generation: known.0, count: known.1 }
            }
            PageTrust::Stale { .. } => CreditState::Stale,
            PageTrust::RanAhead { by } => CreditState::RanAhead { by: *by },
        }
    }

    /// The count at which exactly the frames up to `taken` are finished.
    pub(crate) fn position(&self) -> Option<CreditPosition> {
        let known = self.known.filter(|_| self.is_usable())?;
        // Includes the counts still to come for frames that are not retained.
        Some(CreditPosition { generation: known.number, count: known.count + self.unretained_counts })
    }

    /// Handles a read of the page.
    pub(crate) fn saw(&mut self, look: PageStatus, context: &mut TrackerContext<'_>) {
        if context.queue.counted() == 0 {
            self.moved = context.now;
        }
        // A known page is absent only if its file was replaced and removed.
        let look = match look {
            PageStatus::Absent if self.known.is_some() => PageStatus::Unsettled(Invalid::Gone),
            look => look,
        };
        if !matches!(look, PageStatus::Unsettled(_)) {
            self.unsettled_since = None;
        }
        match look {
            PageStatus::Unsettled(why) => self.saw_unsettled(why, context),
            PageStatus::Absent => self.saw_none(context),
            PageStatus::Invalid(why) => self.saw_invalid(why, context),
            PageStatus::Page(page) => match self.known {
                None => self.adopt_first(page, context),
                Some(known) if is_same(&known, &page) => self.saw_count(known, page, context),
                Some(known) => self.saw_generation(known, page, context),
            },
        }
        self.check_pids();
    }

    /// Handles a new connection. `pid`: its process, if the kernel knows it.
    pub(crate) fn up(&mut self, pid: Option<u32>, context: &mut TrackerContext<'_>) {
        self.connection = Some(Connection { pid, wait: None, saw_absent: self.trust == PageTrust::Absent });
        self.doubt.get_or_insert(Doubt::Page);
        self.unsettled_since = None;
        self.check_pids();
        if context.queue.unfinished().frames == 0 {
            return;
        }
        if self.is_page_of_connection() {
            return self.same_reader(context);
        }
        let foreign = pid.is_some() && self.pids_agree;
        self.set_wait(WriteWait::Generation { until: context.now + self.generation_wait, foreign });
    }

    /// Handles the loss of the connection.
    pub(crate) fn lost(&mut self, context: &mut TrackerContext<'_>) {
        if let Some(WriteWait::Loss { page, clean, .. }) =
            self.connection.take().and_then(|connection| connection.wait)
        {
            self.new_generation(page, clean || page.count == 0, context);
        }
    }

    /// Handles the passing of time.
    pub(crate) fn tick(&mut self, context: &mut TrackerContext<'_>) {
        if self.stalls_at(context.queue).is_some_and(|at| at <= context.now) {
            // A slow page may still count the frames. A page whose reader lost frames looks the same and never will.
            let heals = self.doubt == Some(Doubt::Page);
            return self.give_up(PageTrust::Stale { heals }, context);
        }
        match self.connection.as_mut().and_then(|connection| connection.wait.take()) {
            Some(WriteWait::Generation { until, foreign: true }) if until <= context.now => {
                self.give_up(PageTrust::Stale { heals: false }, context);
            }
            Some(WriteWait::Generation { until, .. }) if until <= context.now => self.same_reader(context),
            Some(WriteWait::Loss { until, page, clean }) if until <= context.now => {
                self.new_generation(page, clean, context)
            }
            None => {}
            Some(wait) => self.set_wait(wait),
        }
    }

    /// The time at which [`CreditTracker::tick`] is due.
    pub(crate) fn deadline(&self, queue: &SendQueue) -> Option<Instant> {
        match &self.connection.as_ref()?.wait {
            Some(WriteWait::Generation { until, .. } | WriteWait::Loss { until, .. }) => Some(*until),
            None => self.stalls_at(queue),
        }
    }

    /// Waits for the writer of the page, and refuses a page that stays so while a reader is connected.
    fn saw_unsettled(&mut self, why: Invalid, context: &mut TrackerContext<'_>) {
        if self.connection.is_none() {
            return;
        }
        let since = *self.unsettled_since.get_or_insert(context.now);
        if context.now >= since + self.generation_wait {
            self.saw_invalid(why, context);
        } else if why == Invalid::Unfilled && self.known.is_none() {
            self.saw_none(context);
        }
    }

    fn saw_none(&mut self, context: &mut TrackerContext<'_>) {
        self.set_trust(PageTrust::Absent, context);
        if let Some(connection) = &mut self.connection {
            connection.saw_absent = true;
        }
    }

    fn saw_invalid(&mut self, why: Invalid, context: &mut TrackerContext<'_>) {
        if self.trust != PageTrust::Invalid(why.clone()) {
            self.give_up(PageTrust::Invalid(why), context);
            self.known = None;
        }
    }

    fn adopt_first(&mut self, page: Page, context: &mut TrackerContext<'_>) {
        if matches!(self.trust, PageTrust::Stale { .. }) {
            // An earlier process wrote to this connection without a count.
            self.known = Some(generation(&page));
            return;
        }
        let is_new =
            page.generation == 1 && self.connection.as_ref().is_some_and(|connection| connection.saw_absent);
        let base = if is_new { 0 } else { page.count };
        // Frames written earlier, if this generation was known before and unreadable for a while.
        let unretained_counts = self.unretained_counts + context.queue.take_settled();
        self.begin(&page, context);
        self.joined_midway = base > 0;
        self.unretained_counts = unretained_counts;
        self.apply(page.count, page.count - base, context);
    }

    fn saw_count(&mut self, known: Generation, page: Page, context: &mut TrackerContext<'_>) {
        if page.count < known.count && self.is_usable() {
            let why = Invalid::WentBack { from: known.count, to: page.count };
            return self.give_up(PageTrust::Invalid(why), context);
        }
        if page.count <= known.count {
            return;
        }
        if self.trust == (PageTrust::Stale { heals: true }) {
            self.unretained_counts += context.queue.take_settled();
            context.queue.retain_written();
            self.set_trust(PageTrust::Usable, context);
        }
        self.moved = context.now;
        self.apply(page.count, page.count - known.count, context);
    }

    fn saw_generation(&mut self, known: Generation, page: Page, context: &mut TrackerContext<'_>) {
        let wait = context.now + self.generation_wait;
        if self.is_off_for_good() {
            return self.begin(&page, context);
        }
        let Some(connection) = &mut self.connection else { return self.settle(known, page, context) };
        let (until, clean) = match connection.wait.take() {
            Some(WriteWait::Generation { .. }) => (wait, true),
            Some(WriteWait::Loss { until, clean, .. }) => (until, clean),
            None => (wait, false),
        };
        // Two generations of one process (readers restarted within it) have the same pid.
        if connection.pid != Some(page.pid) || known.pid == page.pid {
            connection.wait = Some(WriteWait::Loss { until, page, clean });
        } else if clean {
            self.settle(known, page, context);
        } else {
            self.adopt_on_connection(page, context);
        }
    }

    /// Adopts the generation after the wait for a loss. `clean`: nothing can have been written to the new generation.
    fn new_generation(&mut self, page: Page, clean: bool, context: &mut TrackerContext<'_>) {
        match self.known {
            Some(known) if clean => self.settle(known, page, context),
            Some(known) if follows(&known, &page) => {
                self.finish_last(&known, &page, context);
                self.adopt_on_connection(page, context);
            }
            // The generation between may have finished some of the retained frames.
            _ => {
                self.adopt_on_connection(page, context);
                self.give_up(PageTrust::Stale { heals: false }, context);
            }
        }
    }

    /// The retained frames were written to `known`, which has ended. Nothing was written to the generation of `page`.
    fn settle(&mut self, known: Generation, page: Page, context: &mut TrackerContext<'_>) {
        if follows(&known, &page) {
            self.finish_last(&known, &page, context);
            let unconfirmed = context.queue.settle_counted(self.slack.saturating_sub(self.unretained_counts));
            let resent = context.queue.requeue();
            if resent > 0 || unconfirmed.is_some() {
                context.notices.push(PushNotice::Settled { resent, unconfirmed });
            }
        } else {
            self.report_unconfirmed(context);
        }
        self.begin(&page, context);
        self.apply(page.count, page.count, context);
    }

    /// The frames retained or taken on this connection were written to the generation of `page`.
    fn adopt_on_connection(&mut self, page: Page, context: &mut TrackerContext<'_>) {
        self.begin(&page, context);
        self.unretained_counts = context.queue.take_settled();
        self.apply(page.count, page.count, context);
    }

    /// Applies the old generation's final count, if the page has it.
    fn finish_last(&mut self, known: &Generation, page: &Page, context: &mut TrackerContext<'_>) {
        if follows(known, page) && self.is_usable() {
            self.finish(page.last_count.saturating_sub(known.count), context);
        }
    }

    /// Starts a generation with a count of 0.
    fn begin(&mut self, page: &Page, context: &mut TrackerContext<'_>) {
        self.known = Some(Generation { count: 0, ..generation(page) });
        self.unretained_counts = 0;
        self.slack = 0;
        self.doubt = Some(Doubt::Page);
        self.moved = context.now;
        if self.is_off_for_good() {
            return;
        }
        self.joined_midway = false;
        context.queue.retain_written();
        if self.is_usable() {
            context.notices.push(PushNotice::Credit { state: self.state() });
        } else {
            self.set_trust(PageTrust::Usable, context);
        }
    }

    /// Records the count, and finishes this many more of our frames.
    fn apply(&mut self, count: u64, finished: u64, context: &mut TrackerContext<'_>) {
        if let Some(known) = &mut self.known {
            known.count = count;
        }
        if self.is_usable() {
            self.finish(finished, context);
        }
    }

    /// Finishes this many more counted frames.
    fn finish(&mut self, count: u64, context: &mut TrackerContext<'_>) {
        let absorbed = count.min(self.unretained_counts);
        self.unretained_counts -= absorbed;
        let left = context.queue.finish(count - absorbed);
        if left > 0 {
            return self.give_up(PageTrust::RanAhead { by: left }, context);
        }
        if count > 0 && context.queue.counted() == 0 && self.unretained_counts == 0 {
            self.doubt = None;
            self.slack = 0;
        }
    }

    /// The reader is still the one of the last connection. It has the frames that it read, and may have lost others.
    fn same_reader(&mut self, context: &mut TrackerContext<'_>) {
        self.doubt = Some(Doubt::Loss);
        self.slack = self.unretained_counts + context.queue.counted();
        context.notices.push(PushNotice::Settled { resent: 0, unconfirmed: context.queue.retained() });
    }

    /// Continues without the count. The retained frames become unconfirmed.
    fn give_up(&mut self, trust: PageTrust, context: &mut TrackerContext<'_>) {
        self.unretained_counts += context.queue.counted();
        self.report_unconfirmed(context);
        if let Some(connection) = &mut self.connection {
            connection.wait = None;
        }
        self.set_trust(trust, context);
    }

    /// Stops retaining frames, and reports the retained ones as unconfirmed.
    fn report_unconfirmed(&self, context: &mut TrackerContext<'_>) {
        if let unconfirmed @ Some(_) = context.queue.stop_retaining() {
            context.notices.push(PushNotice::Settled { resent: 0, unconfirmed });
        }
    }

    fn set_trust(&mut self, trust: PageTrust, context: &mut TrackerContext<'_>) {
        if self.trust != trust {
            self.trust = trust;
            context.notices.push(PushNotice::Credit { state: self.state() });
        }
    }

    fn set_wait(&mut self, wait: WriteWait) {
        if let Some(connection) = &mut self.connection {
            connection.wait = Some(wait);
        }
    }

    /// Whether the count exceeded the frames written, and not because of an earlier process's frames.
    fn is_off_for_good(&self) -> bool {
        matches!(self.trust, PageTrust::RanAhead { .. }) && !self.joined_midway
    }

    fn is_page_of_connection(&self) -> bool {
        let page = self.known.map(|known| known.pid);
        page.is_some() && self.connection.as_ref().and_then(|connection| connection.pid) == page
    }

    fn check_pids(&mut self) {
        self.pids_agree |= self.is_page_of_connection();
    }

    fn stalls_at(&self, queue: &SendQueue) -> Option<Instant> {
        let waits_for_count = self.connection.as_ref()?.wait.is_none() && queue.counted() > 0;
        (waits_for_count && self.doubt.is_some() && self.is_usable()).then(|| self.moved + self.stall)
    }
}

fn generation(page: &Page) -> Generation {
    Generation { file: page.file, pid: page.pid, number: page.generation, count: page.count }
}

fn is_same(known: &Generation, page: &Page) -> bool {
    (known.file, known.number) == (page.file, page.generation)
}

/// Whether the page's generation is the next one, so that the page has the final count of `known`.
fn follows(known: &Generation, page: &Page) -> bool {
    (known.file, known.number) == (page.file, page.last_generation)
}

#[cfg(test)]
mod tests;
