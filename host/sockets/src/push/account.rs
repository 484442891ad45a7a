//! Whose count the page's is, and so which frames are finished, which are sent again, and which cannot be known.
//!
//! Pure: looks, connections and losses come in, in any order; it moves the line in [`Custody`]. The rule behind all of it: a
//! frame is sent again only if it is certain that no reader finished it or still will; whatever cannot be certain is told.
//!
//! | what happens | what is known, and done |
//! |---|---|
//! | connection lost, then a new generation | the old one's final count is in the page: the frames past it are sent again |
//! | a new connection, generation not new yet | nothing is written for `generation_wait` (a reader opens its page before it can be connected to, so this is mostly the same reader) |
//! | … and the page's process is the one connected to (ipc) | the same reader: it has what it read; nothing is sent again. What it did not read is lost and not counted, so from now on as many frames past the count may be finished as well, and are not sent again either |
//! | … and it stays old, the page known to be of another process | that reader has no page: on without credit (stale) |
//! | … and it stays old, process unknown (tcp) | taken for the same reader |
//! | a new generation while connected | nothing is written until the connection is lost (as in the first row), or for `generation_wait`: then it is that of the connected reader |
//! | … and its process is the one connected to (ipc) | the same, at once |
//! | a generation was missed, or the file is a new one | the final count is not known: nothing is sent again, all is told |
//! | the count runs past what was written | somebody else sends too: credit is not used any more |
//! | the count went back | not used until a new generation |
//! | the count stands still for `stall`, in doubt | on without credit until it moves, or, if frames may have been lost, until a new generation |
//!
//! In doubt: since the page was first seen, or since a new connection, the count has not once come up to what was written.

use std::time::{Duration, Instant};

use super::custody::Custody;
use super::notice::{CreditPosition, PushNotice};
use super::options::CreditOptions;
use crate::credit::{CreditState, Invalid, Look, Page};
use crate::notices::Notices;

/// Where an account changes things and tells them.
pub(crate) struct Desk<'a> {
    pub(crate) custody: &'a mut Custody,
    pub(crate) notices: &'a mut Notices<PushNotice>,
    pub(crate) now: Instant,
}

#[derive(Debug)]
pub(crate) struct Account {
    generation_wait: Duration,
    stall: Duration,
    standing: Standing,
    /// The generation that the kept frames were written to.
    known: Option<Known>,
    link: Option<Link>,
    /// Once a connection's process was the page's: both are of one pid namespace, and another pid is another process.
    pids_agree: bool,
    /// Counts to come that belong to frames which are not kept, and were written before those that are.
    absorb: u64,
    /// Counted frames that a reader which lives may have lost with a connection: so many frames past the count may be
    /// finished as well.
    slack: u64,
    /// The first count seen was not 0: it may run ahead for frames of an earlier process, for this generation.
    joined_midway: bool,
    doubt: Option<Doubt>,
    /// When the count moved last, or the first frame became unfinished.
    moved: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Absent,
    Invalid(Invalid),
    Usable,
    /// Not the connected reader's, or still for too long: until its generation changes, or (`heals`) its count.
    Stale {
        heals: bool,
    },
    RanAhead {
        by: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Known {
    file: (u64, u64),
    pid: u32,
    generation: u64,
    /// The highest count seen.
    count: u64,
}

#[derive(Debug)]
struct Link {
    pid: Option<u32>,
    hold: Option<Hold>,
    /// There was no page when the connection was there already: the first one's counts are all of this connection.
    saw_absent: bool,
}

/// Why the count may never come up to what was written. Until it has, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// The page may not be the connected reader's. If it is, it counts all of it some time.
    Page,
    /// The reader may have lost frames with a connection. It does not count those.
    Loss,
}

/// What is waited for, while nothing is written.
#[derive(Debug)]
enum Hold {
    /// The connection is new, the generation is not.
    Generation { until: Instant, foreign: bool },
    /// The generation is new, the connection is not.
    /// `clean`: nothing was written to it.
    Loss { until: Instant, page: Page, clean: bool },
}

impl Account {
    pub(crate) fn new(options: &CreditOptions, now: Instant) -> Account {
        Account {
            generation_wait: options.generation_wait,
            stall: options.stall,
            standing: Standing::Absent,
            known: None,
            link: None,
            pids_agree: false,
            absorb: 0,
            slack: 0,
            joined_midway: false,
            doubt: Some(Doubt::Page),
            moved: now,
        }
    }

    /// Whether frames may be written now.
    pub(crate) fn may_write(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.hold.is_none())
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.standing == Standing::Usable
    }

    /// Whether a look at the page would change anything soon.
    pub(crate) fn is_waiting(&self, custody: &Custody) -> bool {
        self.link.as_ref().is_some_and(|link| link.hold.is_some() || custody.counted() > 0 || self.absorb > 0)
    }

    pub(crate) fn state(&self) -> CreditState {
        match &self.standing {
            Standing::Absent => CreditState::Absent,
            Standing::Invalid(why) => CreditState::Invalid(why.clone()),
            Standing::Usable => {
                let known = self.known.map_or((0, 0), |known| (known.generation, known.count));
                CreditState::Usable { generation: known.0, count: known.1 }
            }
            Standing::Stale { .. } => CreditState::Stale,
            Standing::RanAhead { by } => CreditState::RanAhead { by: *by },
        }
    }

    /// The count that stands for "everything up to `taken` is finished, and nothing after it".
    pub(crate) fn position(&self) -> Option<CreditPosition> {
        let known = self.known.filter(|_| self.is_usable())?;
        // Of a count that has yet to pass frames that are not kept, the place where it will have.
        Some(CreditPosition { generation: known.generation, count: known.count + self.absorb })
    }

    /// A look at the page.
    pub(crate) fn saw(&mut self, look: Look, desk: &mut Desk<'_>) {
        if desk.custody.counted() == 0 {
            self.moved = desk.now;
        }
        match look {
            Look::Changing => {}
            Look::Absent => self.saw_none(desk),
            Look::Invalid(why) => {
                if self.standing != Standing::Invalid(why.clone()) {
                    self.give_up(Standing::Invalid(why), desk);
                    self.known = None;
                }
            }
            Look::Page(page) => match self.known {
                None => self.adopt_first(page, desk),
                Some(known) if is_same(&known, &page) => self.saw_count(known, page, desk),
                Some(known) => self.saw_generation(known, page, desk),
            },
        }
        self.check_pids();
    }

    /// A connection is there; its process, where the kernel knows it.
    pub(crate) fn up(&mut self, pid: Option<u32>, desk: &mut Desk<'_>) {
        self.link = Some(Link { pid, hold: None, saw_absent: self.standing == Standing::Absent });
        self.doubt.get_or_insert(Doubt::Page);
        self.check_pids();
        if desk.custody.unfinished().frames == 0 {
            return;
        }
        if self.is_page_of_link() {
            return self.same_reader(desk);
        }
        let foreign = pid.is_some() && self.pids_agree;
        self.hold(Hold::Generation { until: desk.now + self.generation_wait, foreign });
    }

    /// The connection is lost.
    pub(crate) fn lost(&mut self, desk: &mut Desk<'_>) {
        if let Some(Hold::Loss { page, clean, .. }) = self.link.take().and_then(|link| link.hold) {
            self.new_generation(page, clean || page.count == 0, desk);
        }
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, desk: &mut Desk<'_>) {
        if self.stalls_at(desk.custody).is_some_and(|at| at <= desk.now) {
            // A page that was only slow to prove itself counts them yet; one that lost frames cannot be told from it.
            let heals = self.doubt == Some(Doubt::Page);
            return self.give_up(Standing::Stale { heals }, desk);
        }
        match self.link.as_mut().and_then(|link| link.hold.take()) {
            Some(Hold::Generation { until, foreign: true }) if until <= desk.now => {
                self.give_up(Standing::Stale { heals: false }, desk);
            }
            Some(Hold::Generation { until, .. }) if until <= desk.now => self.same_reader(desk),
            Some(Hold::Loss { until, page, clean }) if until <= desk.now => {
                self.new_generation(page, clean, desk)
            }
            None => {}
            Some(hold) => self.hold(hold),
        }
    }

    /// When [`Account::tick`] is due.
    pub(crate) fn deadline(&self, custody: &Custody) -> Option<Instant> {
        match &self.link.as_ref()?.hold {
            Some(Hold::Generation { until, .. } | Hold::Loss { until, .. }) => Some(*until),
            None => self.stalls_at(custody),
        }
    }

    fn saw_none(&mut self, desk: &mut Desk<'_>) {
        // Otherwise its file is just being replaced: one whose path is gone goes on being read.
        if self.known.is_none() {
            self.stand(Standing::Absent, desk);
        }
        if let Some(link) = &mut self.link {
            link.saw_absent = true;
        }
    }

    fn adopt_first(&mut self, page: Page, desk: &mut Desk<'_>) {
        let is_new = page.generation == 1 && self.link.as_ref().is_some_and(|link| link.saw_absent);
        let base = if is_new { 0 } else { page.count };
        // What was written before, if this generation was known already and could not be read for a while.
        let absorb = self.absorb + desk.custody.take_passed();
        self.begin(&page, desk);
        self.joined_midway = base > 0;
        self.absorb = absorb;
        self.apply(page.count, page.count - base, desk);
    }

    fn saw_count(&mut self, known: Known, page: Page, desk: &mut Desk<'_>) {
        if page.count < known.count && self.is_usable() {
            let why = Invalid::WentBack { from: known.count, to: page.count };
            return self.give_up(Standing::Invalid(why), desk);
        }
        if page.count <= known.count {
            return;
        }
        if self.standing == (Standing::Stale { heals: true }) {
            self.absorb += desk.custody.take_passed();
            desk.custody.keep();
            self.stand(Standing::Usable, desk);
        }
        self.moved = desk.now;
        self.apply(page.count, page.count - known.count, desk);
    }

    fn saw_generation(&mut self, known: Known, page: Page, desk: &mut Desk<'_>) {
        let wait = desk.now + self.generation_wait;
        if self.is_off_for_good() {
            return self.begin(&page, desk);
        }
        let Some(link) = &mut self.link else { return self.settle(known, page, desk) };
        let (until, clean) = match link.hold.take() {
            Some(Hold::Generation { .. }) => (wait, true),
            Some(Hold::Loss { until, clean, .. }) => (until, clean),
            None => (wait, false),
        };
        // Two generations of one process (readers restarted within it) cannot be told apart by it.
        if link.pid != Some(page.pid) || known.pid == page.pid {
            link.hold = Some(Hold::Loss { until, page, clean });
        } else if clean {
            self.settle(known, page, desk);
        } else {
            self.adopt_on_link(page, desk);
        }
    }

    /// After the wait for the loss. `clean`: nothing can have been written to the new generation.
    fn new_generation(&mut self, page: Page, clean: bool, desk: &mut Desk<'_>) {
        match self.known {
            Some(known) if clean => self.settle(known, page, desk),
            Some(known) if follows(&known, &page) => {
                self.finish_last(&known, &page, desk);
                self.adopt_on_link(page, desk);
            }
            // Of what is kept some may have been finished by the generation before.
            _ => {
                self.adopt_on_link(page, desk);
                self.give_up(Standing::Stale { heals: false }, desk);
            }
        }
    }

    /// The kept frames were written to `known`, which is gone; nothing was written to `page`'s generation.
    fn settle(&mut self, known: Known, page: Page, desk: &mut Desk<'_>) {
        if follows(&known, &page) {
            self.finish_last(&known, &page, desk);
            let unconfirmed = desk.custody.pass(self.slack.saturating_sub(self.absorb));
            let resent = desk.custody.requeue();
            if resent > 0 || unconfirmed.is_some() {
                desk.notices.push(PushNotice::Settled { resent, unconfirmed });
            }
        } else {
            self.tell_unconfirmed(desk);
        }
        self.begin(&page, desk);
        self.apply(page.count, page.count, desk);
    }

    /// What is kept and was passed since the connection is there was written to `page`'s generation.
    fn adopt_on_link(&mut self, page: Page, desk: &mut Desk<'_>) {
        self.begin(&page, desk);
        self.absorb = desk.custody.take_passed();
        self.apply(page.count, page.count, desk);
    }

    /// The old generation's final count, where the page tells it.
    fn finish_last(&mut self, known: &Known, page: &Page, desk: &mut Desk<'_>) {
        if follows(known, page) && self.is_usable() {
            self.finish(page.last_count.saturating_sub(known.count), desk);
        }
    }

    /// A generation is known, and nothing of it is applied yet.
    fn begin(&mut self, page: &Page, desk: &mut Desk<'_>) {
        let Page { file, pid, generation, .. } = *page;
        self.known = Some(Known { file, pid, generation, count: 0 });
        self.absorb = 0;
        self.slack = 0;
        self.doubt = Some(Doubt::Page);
        self.moved = desk.now;
        if self.is_off_for_good() {
            return;
        }
        self.joined_midway = false;
        desk.custody.keep();
        if self.is_usable() {
            desk.notices.push(PushNotice::Credit { state: self.state() });
        } else {
            self.stand(Standing::Usable, desk);
        }
    }

    /// The count is seen, and so many frames of ours more are finished by it.
    fn apply(&mut self, count: u64, finished: u64, desk: &mut Desk<'_>) {
        if let Some(known) = &mut self.known {
            known.count = count;
        }
        if self.is_usable() {
            self.finish(finished, desk);
        }
    }

    /// So many counted frames more are finished.
    fn finish(&mut self, count: u64, desk: &mut Desk<'_>) {
        let absorbed = count.min(self.absorb);
        self.absorb -= absorbed;
        let left = desk.custody.finish(count - absorbed);
        if left > 0 {
            return self.give_up(Standing::RanAhead { by: left }, desk);
        }
        if count > 0 && desk.custody.counted() == 0 && self.absorb == 0 {
            self.doubt = None;
            self.slack = 0;
        }
    }

    /// The reader is the one that had the connection before. What it read it has; whether it read all is not known.
    fn same_reader(&mut self, desk: &mut Desk<'_>) {
        self.doubt = Some(Doubt::Loss);
        self.slack = self.absorb + desk.custody.counted();
        desk.notices.push(PushNotice::Settled { resent: 0, unconfirmed: desk.custody.kept() });
    }

    /// Goes on without the count; what was kept for it is told.
    fn give_up(&mut self, standing: Standing, desk: &mut Desk<'_>) {
        self.absorb += desk.custody.counted();
        self.tell_unconfirmed(desk);
        if let Some(link) = &mut self.link {
            link.hold = None;
        }
        self.stand(standing, desk);
    }

    /// Keeps no more what is kept, and tells it.
    fn tell_unconfirmed(&self, desk: &mut Desk<'_>) {
        if let unconfirmed @ Some(_) = desk.custody.release() {
            desk.notices.push(PushNotice::Settled { resent: 0, unconfirmed });
        }
    }

    fn stand(&mut self, standing: Standing, desk: &mut Desk<'_>) {
        if self.standing != standing {
            self.standing = standing;
            desk.notices.push(PushNotice::Credit { state: self.state() });
        }
    }

    fn hold(&mut self, hold: Hold) {
        if let Some(link) = &mut self.link {
            link.hold = Some(hold);
        }
    }

    /// The count ran ahead, and not because of frames of an earlier process.
    fn is_off_for_good(&self) -> bool {
        matches!(self.standing, Standing::RanAhead { .. }) && !self.joined_midway
    }

    fn is_page_of_link(&self) -> bool {
        let page = self.known.map(|known| known.pid);
        page.is_some() && self.link.as_ref().and_then(|link| link.pid) == page
    }

    fn check_pids(&mut self) {
        self.pids_agree |= self.is_page_of_link();
    }

    fn stalls_at(&self, custody: &Custody) -> Option<Instant> {
        let waits_for_count = self.link.as_ref()?.hold.is_none() && custody.counted() > 0;
        (waits_for_count && self.doubt.is_some() && self.is_usable()).then(|| self.moved + self.stall)
    }
}

fn is_same(known: &Known, page: &Page) -> bool {
    (known.file, known.generation) == (page.file, page.generation)
}

/// The page's generation is the one right after, so that the known one's final count is in the page.
fn follows(known: &Known, page: &Page) -> bool {
    (known.file, known.generation) == (page.file, page.last_generation)
}

#[cfg(test)]
mod tests;
