//! PUSH: connects, sends frames in order, and knows which of them must be sent again.
//!
//! A frame is in the [`SendQueue`] from [`Push::send`] until it need never be sent again. The [`Link`] writes it, from a
//! memory that outlives the process. The [`CreditTracker`] reads the reader's credit page: it decides which frames are
//! finished, and which ones a new connection gets again. [`Push::adopt`] continues the connection of an earlier process.

mod credit_tracker;
mod inherited;
mod link;
mod notice;
mod options;
mod send_queue;

use std::collections::VecDeque;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::sockopt;

pub use self::inherited::InheritedPush;
pub use self::notice::{
    CreditPosition, LossReason, OutgoingFrame, Pending, PushNotice, PushTotals, Unconfirmed,
};
pub use self::options::{CreditOptions, KeepAs, PushOptions};

use self::credit_tracker::{CreditTracker, TrackerContext, TrackerWords};
use self::link::{Backoff, Link, LinkStage, WriteResult, loss, unread_bytes_max};
use self::send_queue::{QUEUE_WORDS, SendQueue};
use crate::bounds::CREDIT_POLL_IDLE;
use crate::conn::{Address, Conn, TokenRange};
use crate::credit::{CreditState, PageReader};
use crate::injected;
use crate::notices::NoticeQueue;
use afterbay_types::Endpoint;

/// The poll refused the socket.
#[derive(Debug, thiserror::Error)]
#[error("push to {endpoint}: {error}")]
pub struct PushError {
    endpoint: Endpoint,
    error: std::io::Error,
}

/// A connecting PUSH socket.
#[derive(Debug)]
pub struct Push {
    endpoint: Endpoint,
    registry: Registry,
    token: Token,
    options: PushOptions,
    queue: SendQueue,
    credit: Option<Credit>,
    link: Option<Link>,
    /// The time to connect. Ignored while there is a link.
    connect_at: Instant,
    /// Whether the owner lets the socket connect.
    is_held: bool,
    backoff: Backoff,
    /// Addresses not tried yet since the host name was last resolved.
    addresses: VecDeque<Address>,
    /// The last reason for having no connection that a notice reported.
    waits_for: Option<LossReason>,
    /// The generation of the credit page at the last [`Push::flush`]. Another reader gets no frame before the next one.
    flushed_for: Option<u64>,
    /// The connection is to be kept once the owner has taken the notices.
    keeps_later: bool,
    /// Frames are queued that no flush has tried to write.
    unflushed: bool,
    /// The latest time that a caller passed in. A deadline that is due at once is this time.
    now: Instant,
    notices: NoticeQueue<PushNotice>,
}

#[derive(Debug)]
struct Credit {
    tracker: CreditTracker,
    reader: PageReader,
    looked: Instant,
    checked_file: Instant,
    /// The page must be read before the next frame is written, because an earlier process read it last.
    is_due: bool,
}

impl Push {
    /// Starts to connect. An absent reader is no error: the socket connects when there is one.
    pub fn connect(
        registry: &Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PushOptions,
        now: Instant,
    ) -> Result<Push, PushError> {
        let registry =
            registry.try_clone().map_err(|error| PushError { endpoint: endpoint.clone(), error })?;
        let queue = SendQueue::new(options.taken);
        let credit = options.credit.as_ref().map(|credit| Credit {
            tracker: CreditTracker::new(credit, now),
            reader: PageReader::new(&credit.path),
            looked: now,
            checked_file: now,
            is_due: false,
        });
        let backoff = Backoff::new(options.backoff_min, options.backoff_max, options.jitter_seed);
        Ok(Push {
            endpoint: endpoint.clone(),
            registry,
            token: Token(tokens.first),
            options,
            queue,
            credit,
            link: None,
            connect_at: now,
            is_held: false,
            backoff,
            addresses: VecDeque::new(),
            waits_for: None,
            flushed_for: None,
            keeps_later: false,
            unflushed: false,
            now,
            notices: NoticeQueue::new(),
        })
    }

    /// Forgets all frames, and continues after the frame `taken`. Only while no reader is connected.
    pub fn begin_after(&mut self, taken: u64, now: Instant) {
        self.queue = SendQueue::new(taken);
        if let (Some(credit), Some(options)) = (&mut self.credit, &self.options.credit) {
            credit.tracker = CreditTracker::new(options, now);
        }
    }

    /// Drops the frames that a process which adopts the connection would not have. [`Push::last`] is then the last one that it
    /// has. The frames must be composed again.
    pub fn drop_unsaved(&mut self) {
        let is_connected = self.is_connected();
        self.queue.drop_unstaged(is_connected);
    }

    /// Sets whether the socket makes no connection for now. A connection that it has stays.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether the socket makes no connection for now.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Continues the connection of an earlier process: the frames that the earlier process was writing, and those that the
    /// reader has not finished. `options.taken` is not used.
    ///
    /// Neither reads nor writes the socket or its memory before the next [`Push::tick`], [`Push::ready`] or
    /// [`Push::flush`]: until then the earlier process may go on instead.
    pub fn adopt(
        registry: &Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PushOptions,
        inherited: InheritedPush,
        now: Instant,
    ) -> Result<Push, PushError> {
        let InheritedPush { conn, memory } = inherited;
        let mut push = Push::connect(registry, tokens, endpoint, options, now)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        conn.register(&push.registry, push.token, interest)
            .map_err(|error| PushError { endpoint: endpoint.clone(), error })?;
        let (mut of_queue, mut of_tracker) = ([0; QUEUE_WORDS], TrackerWords::default());
        let (first, rest) = memory.owner().split_at(QUEUE_WORDS);
        of_queue.copy_from_slice(first);
        of_tracker.copy_from_slice(rest);
        push.queue = SendQueue::adopted(&memory, &of_queue, unread_bytes_max(&conn));
        let mut link = Link::adopted(conn, memory, now);
        push.notices.push(PushNotice::Adopted {
            to: link.to.clone(),
            unfinished: push.queue.unfinished(),
            pending: push.queue.waiting(),
        });
        if let (Some(credit), Some(options)) = (&mut push.credit, &push.options.credit) {
            credit.tracker = CreditTracker::adopted(options, &of_tracker, link.pid(), now);
            credit.is_due = true;
        } else if let unconfirmed @ Some(_) = push.queue.stop_retaining() {
            push.notices.push(PushNotice::Settled { resent: 0, unconfirmed });
        }
        if let Some(keep) = &push.options.keep {
            link.keep(keep);
        }
        push.link = Some(link);
        push.unflushed = true;
        Ok(push)
    }

    /// Whether this socket owns the token.
    pub fn owns(&self, token: Token) -> bool {
        token == self.token
    }

    /// Whether [`Push::send`] takes a further frame.
    pub fn room(&self) -> bool {
        self.room_after(Pending::default())
    }

    /// Whether [`Push::send`] takes a further frame after `more`.
    pub fn room_after(&self, more: Pending) -> bool {
        let waiting = self.queue.waiting();
        let (frames, bytes) = (waiting.frames + more.frames, waiting.bytes + more.bytes);
        frames < self.options.max_queue_frames && bytes < self.options.max_queue_bytes
    }

    /// Queues a frame, or hands it back if there is no [room](Push::room). [`Push::flush`] sends it.
    pub fn send(&mut self, frame: OutgoingFrame) -> Result<(), OutgoingFrame> {
        if !self.room() {
            return Err(frame);
        }
        self.queue.push(frame);
        self.unflushed = true;
        Ok(())
    }

    /// Writes as much as the kernel takes. Call it after a round of sends, so that they share a system call. Otherwise
    /// [`Push::deadline`] is due at once, and [`Push::tick`] flushes.
    ///
    /// A new reader with credit gets its first frame by this call alone. A journal stores the [`Push::position`] before: after a
    /// death, the position says whose count tells which frames arrived.
    pub fn flush(&mut self, now: Instant) {
        self.flushed_for = self.generation();
        if self.keeps_later && !self.names_unconfirmed() {
            self.keeps_later = false;
            self.keep();
        }
        self.write(now);
    }

    fn write(&mut self, now: Instant) {
        self.unflushed = false;
        self.now = now;
        if self.credit.as_ref().is_some_and(|credit| credit.is_due) {
            self.look(now);
        }
        let (window, tracker) = (self.window(), self.tracker_words());
        let Some(link) = self.link.as_mut().filter(|link| link.stage != LinkStage::Connecting) else {
            return;
        };
        match link.write(&mut self.queue, window, &tracker) {
            WriteResult::Done => {}
            WriteResult::LimitReached => self.unflushed = true,
            WriteResult::Broken(error) => {
                // The reader may have sent the reason; and over ipc only a read distinguishes a reset from an orderly
                // end.
                let why = match link.read() {
                    Err(why) if error != Errno::CONNRESET => why,
                    _ => loss(error),
                };
                self.lose(why, now);
            }
        }
    }

    /// Handles one event of the poll, and flushes.
    pub fn ready(&mut self, event: &Event, now: Instant) {
        let Some(link) = &mut self.link else { return };
        if event.is_writable() {
            link.writable();
        }
        if link.stage == LinkStage::Connecting {
            match link.conn.connected() {
                None => return,
                Some(Err(error)) => return self.lose(loss(error), now),
                Some(Ok(())) => {
                    link.stage = LinkStage::Handshake;
                    link.at = now + self.options.handshake_timeout;
                }
            }
        }
        // An event for writing alone needs no read: earlier reads went on until they blocked.
        if event.is_readable() || event.is_read_closed() || event.is_write_closed() || event.is_error() {
            match link.read() {
                Err(why) => return self.lose(why, now),
                Ok(true) => self.up(now),
                Ok(false) => {}
            }
        }
        self.write(now);
    }

    /// Connects again, reads the credit page, flushes. Call it when [`Push::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        match &self.link {
            None if self.connect_at <= now && !self.is_held => self.attempt(now),
            Some(link) if link.stage != LinkStage::Up && link.at <= now => {
                let (what, limit) = match link.stage {
                    LinkStage::Connecting => ("connection", self.options.connect_timeout),
                    _ => ("handshake", self.options.handshake_timeout),
                };
                self.lose(LossReason::Timeout { what, limit }, now);
            }
            _ => {}
        }
        if self.look_at().is_some_and(|at| at <= now) {
            self.look(now);
        }
        if let Some(credit) = &mut self.credit {
            credit.tracker.tick(&mut TrackerContext {
                queue: &mut self.queue,
                notices: &mut self.notices,
                now,
            });
        }
        self.save();
        self.write(now);
        if let Some(link) = self.link.as_mut().filter(|link| link.give_back_at().is_some_and(|at| at <= now))
        {
            link.give_back(now);
        }
    }

    /// The time at which [`Push::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let link = match &self.link {
            None => Some(self.connect_at).filter(|_| !self.is_held),
            Some(link) => Some(link.at).filter(|_| link.stage != LinkStage::Up),
        };
        let tracker = self.credit.as_ref().and_then(|credit| credit.tracker.deadline(&self.queue));
        let is_writable = self.window().is_some() && self.link.as_ref().is_some_and(Link::is_writable);
        let flush = Some(self.now).filter(|_| self.unflushed && is_writable);
        let give_back = self.link.as_ref().and_then(Link::give_back_at);
        [link, tracker, self.look_at(), flush, give_back].into_iter().flatten().min()
    }

    /// The number up to which no frame need be sent again. Each of these frames was finished by the reader (with
    /// credit), taken whole by the kernel (without credit), or reported as unconfirmed. The number never falls. A
    /// journal stores it with [`Push::position`].
    pub fn taken(&self) -> u64 {
        self.queue.taken()
    }

    /// The last frame that [`Push::send`] took, or that an earlier process was writing to the adopted connection.
    pub fn last(&self) -> u64 {
        self.queue.last()
    }

    /// The last frame that the kernel has whole. It falls when frames are to be sent again.
    pub fn written(&self) -> u64 {
        self.queue.last_written()
    }

    /// The last finished frame, with a usable credit page. (An uncounted frame is finished with the counted one before
    /// it, once the kernel has it.)
    pub fn finished(&self) -> Option<u64> {
        self.credit.as_ref().filter(|credit| credit.tracker.is_usable()).map(|_| self.queue.taken())
    }

    /// The count at which exactly the frames up to [`Push::taken`] are finished, with a usable credit page.
    pub fn position(&self) -> Option<CreditPosition> {
        self.credit.as_ref().and_then(|credit| credit.tracker.position())
    }

    /// Frames that the kernel does not have yet.
    pub fn pending(&self) -> Pending {
        self.queue.waiting()
    }

    /// Frames that the kernel has and the reader has not finished, with a usable credit page: the reader's lag.
    pub fn unfinished(&self) -> Pending {
        self.queue.unfinished()
    }

    /// The sums since the start.
    pub fn totals(&self) -> PushTotals {
        self.queue.totals()
    }

    /// Whether the kernel has every frame and, with credit, the reader has finished every frame.
    pub fn is_drained(&self) -> bool {
        self.pending().frames == 0 && self.unfinished().frames == 0
    }

    /// Whether a reader's handshake is complete.
    pub fn is_connected(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.stage == LinkStage::Up)
    }

    /// Whether the reader of an ipc connection has little unread: at most a quarter of the kernel's buffer (about 50
    /// KB) before the last frame. True for other connections. Costs a system call. The poll has an event when the
    /// answer becomes true.
    pub fn has_little_unread(&self) -> bool {
        self.link.as_ref().is_none_or(|link| !link.conn.is_ipc() || link.conn.polls_writable())
    }

    /// The state of the credit page.
    pub fn credit(&self) -> CreditState {
        self.credit.as_ref().map_or(CreditState::Off, |credit| credit.tracker.state())
    }

    /// Whether [`Push::next_notice`] returns one.
    pub fn has_notices(&self) -> bool {
        !self.notices.is_empty()
    }

    /// Returns the oldest notice that was not taken yet.
    pub fn next_notice(&mut self) -> Option<PushNotice> {
        self.notices.next(|count| PushNotice::Missed { count })
    }

    /// The endpoint that the socket connects to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The limits of unfinished frames and of their bytes. `None`: no frame may be written now.
    fn window(&self) -> Option<(usize, usize)> {
        if !self.is_connected() || self.keeps_later || self.flushed_for != self.generation() {
            return None;
        }
        match (&self.credit, &self.options.credit) {
            (Some(credit), Some(options)) => {
                credit.tracker.may_write().then_some((options.max_window_frames, options.max_window_bytes))
            }
            _ => Some((usize::MAX, usize::MAX)),
        }
    }

    /// The generation of a usable credit page.
    fn generation(&self) -> Option<u64> {
        self.position().map(|position| position.generation)
    }

    fn attempt(&mut self, now: Instant) {
        match self.begin(now) {
            // An ipc connection is made at once.
            Ok(()) => self.write(now),
            Err(why) => self.wait(why, now),
        }
    }

    fn begin(&mut self, now: Instant) -> Result<(), LossReason> {
        if self.addresses.is_empty() {
            let found =
                Address::resolve(&self.endpoint).map_err(|error| LossReason::NoAddress(error.to_string()))?;
            self.addresses = found.into();
        }
        let address = self.addresses.pop_front().ok_or(LossReason::NoListener)?;
        let (conn, is_made) = Conn::connect(&address).map_err(|error| match error {
            // The error of a non-blocking unix socket whose listener's backlog is full.
            Errno::AGAIN => LossReason::Io("the listener's backlog is full".to_owned()),
            error => loss(error),
        })?;
        if let Some(bytes) = self.options.send_buffer_bytes.or(injected::send_buffer()) {
            sockopt::set_socket_send_buffer_size(conn.fd(), bytes).map_err(loss)?;
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        conn.register(&self.registry, self.token, interest)
            .map_err(|error| LossReason::Io(error.to_string()))?;
        let limit = if is_made { self.options.handshake_timeout } else { self.options.connect_timeout };
        self.link = Some(Link::new(conn, is_made, now + limit));
        Ok(())
    }

    /// Handles the end of the handshake.
    fn up(&mut self, now: Instant) {
        // The reader opened its page before it bound its socket, so this read shows whose count the page has.
        self.look(now);
        let Some(link) = &mut self.link else { return };
        if let Err(error) = link.remember(&self.endpoint, &self.queue) {
            return self.lose(LossReason::Io(error.to_string()), now);
        }
        link.stage = LinkStage::Up;
        link.at = now;
        link.to = link.conn.peer_address();
        self.queue.connected(unread_bytes_max(&link.conn));
        self.waits_for = None;
        self.addresses.clear();
        self.notices.push(PushNotice::Connected { to: link.to.clone() });
        let pid = link.pid();
        if let Some(credit) = &mut self.credit {
            credit
                .tracker
                .up(pid, &mut TrackerContext { queue: &mut self.queue, notices: &mut self.notices, now });
        }
        self.save();
        // A connection that outlived this process would know nothing of frames that nobody has named as unconfirmed yet.
        self.keeps_later = self.options.keep.is_some() && self.names_unconfirmed();
        if !self.keeps_later {
            self.keep();
        }
    }

    fn keep(&mut self) {
        if let (Some(link), Some(keep)) = (&mut self.link, &self.options.keep) {
            link.keep(keep);
        }
    }

    /// Whether a notice that the owner has not taken names unconfirmed frames.
    fn names_unconfirmed(&self) -> bool {
        self.notices.any(|notice| matches!(notice, PushNotice::Settled { unconfirmed: Some(_), .. }))
    }

    fn lose(&mut self, why: LossReason, now: Instant) {
        let Some(link) = self.link.take() else { return };
        self.keeps_later = false;
        link.conn.deregister(&self.registry);
        // The store of descriptors may hold the socket a little longer.
        link.conn.shutdown(Shutdown::Both);
        if link.stage != LinkStage::Up {
            return self.wait(why, now);
        }
        // The page's last count for this connection.
        self.look(now);
        let cut = self.queue.cut(link.is_within_frame());
        let unread =
            Some(&mut self.queue).filter(|_| why != LossReason::Closed).and_then(|queue| queue.recent());
        self.notices.push(PushNotice::Lost { why, cut });
        if unread.is_some() {
            self.notices.push(PushNotice::Settled { resent: 0, unconfirmed: unread });
        }
        if let Some(credit) = &mut self.credit {
            credit.tracker.lost(&mut TrackerContext {
                queue: &mut self.queue,
                notices: &mut self.notices,
                now,
            });
        }
        // A reader that accepts connections and ends them at once does not reset the backoff.
        if link.wrote || now >= link.at + self.backoff.max() {
            self.backoff.reset();
        }
        self.connect_at = now + self.backoff.wait();
    }

    fn wait(&mut self, why: LossReason, now: Instant) {
        self.connect_at = now + self.backoff.wait();
        if self.waits_for.as_ref() != Some(&why) {
            self.waits_for = Some(why.clone());
            self.notices.push(PushNotice::Waiting { why });
        }
    }

    fn look_at(&self) -> Option<Instant> {
        let credit = self.credit.as_ref()?;
        let poll = self.options.credit.as_ref()?.poll;
        let is_waiting = credit.tracker.is_waiting(&self.queue);
        Some(
            credit.looked
                + match () {
                    () if credit.is_due => Duration::ZERO,
                    () if is_waiting => poll,
                    () => CREDIT_POLL_IDLE.max(poll),
                },
        )
    }

    fn look(&mut self, now: Instant) {
        let Some(credit) = &mut self.credit else { return };
        (credit.looked, credit.is_due) = (now, false);
        if now >= credit.checked_file + CREDIT_POLL_IDLE {
            credit.checked_file = now;
            credit.reader.check_file();
        }
        let look = credit.reader.look();
        credit
            .tracker
            .saw(look, &mut TrackerContext { queue: &mut self.queue, notices: &mut self.notices, now });
        self.save();
    }

    /// Saves the progress in the connection's memory.
    fn save(&mut self) {
        let tracker = self.tracker_words();
        if let Some(link) = &mut self.link {
            link.save(&self.queue, &tracker);
        }
    }

    fn tracker_words(&self) -> TrackerWords {
        self.credit.as_ref().map_or(TrackerWords::default(), |credit| credit.tracker.saved())
    }
}
