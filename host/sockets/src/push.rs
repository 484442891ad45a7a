//! PUSH: connects, sends frames in order, and knows what became of each.
//!
//! A frame is in the [`Custody`] from [`Push::send`] until it need never be sent again. The [`Link`] writes from there; the
//! [`Account`] says, from the reader's credit page, what is finished and what a new connection gets again.

mod account;
mod custody;
mod link;
mod notice;
mod options;

use std::collections::VecDeque;
use std::time::Instant;

use mio::event::Event;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use rustix::net::sockopt;

pub use self::notice::{CreditPosition, LossReason, Outgoing, Pending, PushNotice, Totals, Unconfirmed};
pub use self::options::{CreditOptions, PushOptions};

use self::account::{Account, Desk};
use self::custody::Custody;
use self::link::{Backoff, Link, Stage, Written, loss};
use crate::bounds::CREDIT_POLL_IDLE;
use crate::conn::{Address, Conn, TokenRange};
use crate::credit::{CreditState, PageReader};
use crate::endpoint::Endpoint;
use crate::notices::Notices;

/// A call for the poll failed when the socket was made.
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
    custody: Custody,
    credit: Option<Credit>,
    link: Option<Link>,
    /// When to connect; of no account while there is a link.
    connect_at: Instant,
    backoff: Backoff,
    /// Addresses not tried yet since the name was last looked up.
    addresses: VecDeque<Address>,
    /// The last reason told for there being no connection.
    waits_for: Option<LossReason>,
    /// Frames were queued since the last flush, or that one left some.
    unflushed: bool,
    /// The time as last told: what is due at once is due then.
    now: Instant,
    notices: Notices<PushNotice>,
}

#[derive(Debug)]
struct Credit {
    account: Account,
    reader: PageReader,
    looked: Instant,
    checked_file: Instant,
}

impl Push {
    /// Starts to connect. Never fails because the reader is absent: it is connected to when it comes.
    pub fn connect(
        registry: &Registry,
        tokens: TokenRange,
        endpoint: &Endpoint,
        options: PushOptions,
        now: Instant,
    ) -> Result<Push, PushError> {
        let registry =
            registry.try_clone().map_err(|error| PushError { endpoint: endpoint.clone(), error })?;
        let custody = Custody::new(options.taken);
        let credit = options.credit.as_ref().map(|credit| Credit {
            account: Account::new(credit, now),
            reader: PageReader::new(&credit.path),
            looked: now,
            checked_file: now,
        });
        let backoff = Backoff::new(options.backoff_min, options.backoff_max, options.jitter_seed);
        Ok(Push {
            endpoint: endpoint.clone(),
            registry,
            token: Token(tokens.first),
            options,
            custody,
            credit,
            link: None,
            connect_at: now,
            backoff,
            addresses: VecDeque::new(),
            waits_for: None,
            unflushed: false,
            now,
            notices: Notices::new(),
        })
    }

    /// Whether an event with this token is for this socket.
    pub fn owns(&self, token: Token) -> bool {
        token == self.token
    }

    /// Whether [`Push::send`] takes a further frame.
    pub fn room(&self) -> bool {
        self.room_after(Pending::default())
    }

    /// The same once it has taken so much more.
    pub fn room_after(&self, more: Pending) -> bool {
        let waiting = self.custody.waiting();
        let (frames, bytes) = (waiting.frames + more.frames, waiting.bytes + more.bytes);
        frames < self.options.max_queue_frames && bytes < self.options.max_queue_bytes
    }

    /// Queues a frame; without [room](Push::room) it is handed back. It leaves with the next [`Push::flush`].
    pub fn send(&mut self, frame: Outgoing) -> Result<(), Outgoing> {
        if !self.room() {
            return Err(frame);
        }
        self.custody.push(frame);
        self.unflushed = true;
        Ok(())
    }

    /// Writes what the kernel takes. Call it after a round of sends, so that they leave in one call; if it is forgotten,
    /// [`Push::deadline`] is due at once, and [`Push::tick`] does it.
    pub fn flush(&mut self, now: Instant) {
        self.unflushed = false;
        self.now = now;
        let window = self.window();
        let Some(link) = self.link.as_mut().filter(|link| link.stage != Stage::Connecting) else { return };
        match link.write(&mut self.custody, window) {
            Written::Done => {}
            Written::Used => self.unflushed = true,
            Written::Broken(error) => {
                // It may have said why, and over ipc only reading tells a reset from an orderly end.
                let why = match link.read() {
                    Err(why) if error != Errno::CONNRESET => why,
                    _ => loss(error),
                };
                self.lose(why, now);
            }
        }
    }

    /// Notes what an event of the poll says, and goes on.
    pub fn ready(&mut self, event: &Event, now: Instant) {
        let Some(link) = &mut self.link else { return };
        if event.is_writable() {
            link.writable();
        }
        if link.stage == Stage::Connecting {
            match link.conn.connected() {
                None => return,
                Some(Err(error)) => return self.lose(loss(error), now),
                Some(Ok(())) => {
                    link.stage = Stage::Shaking;
                    link.at = now + self.options.handshake_timeout;
                }
            }
        }
        // Not on every room for a write: what was there before was read until it blocked.
        if event.is_readable() || event.is_read_closed() || event.is_write_closed() || event.is_error() {
            match link.read() {
                Err(why) => return self.lose(why, now),
                Ok(true) => self.up(now),
                Ok(false) => {}
            }
        }
        self.flush(now);
    }

    /// Connects again, looks at the credit page, flushes. Call it when [`Push::deadline`] is due.
    pub fn tick(&mut self, now: Instant) {
        match &self.link {
            None if self.connect_at <= now => self.attempt(now),
            Some(link) if link.stage != Stage::Up && link.at <= now => {
                let (what, limit) = match link.stage {
                    Stage::Connecting => ("connection", self.options.connect_timeout),
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
            credit.account.tick(&mut Desk { custody: &mut self.custody, notices: &mut self.notices, now });
        }
        self.flush(now);
    }

    /// When [`Push::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let link = match &self.link {
            None => Some(self.connect_at),
            Some(link) => Some(link.at).filter(|_| link.stage != Stage::Up),
        };
        let account = self.credit.as_ref().and_then(|credit| credit.account.deadline(&self.custody));
        let is_writable = self.window().is_some() && self.link.as_ref().is_some_and(Link::is_writable);
        let flush = Some(self.now).filter(|_| self.unflushed && is_writable);
        [link, account, self.look_at(), flush].into_iter().flatten().min()
    }

    /// Every frame numbered up to this need never be sent again: the reader finished it (credit), or, without credit, the
    /// kernel has it whole, or it was told as unconfirmed. Never goes back. This is what a journal keeps, with
    /// [`Push::position`].
    pub fn taken(&self) -> u64 {
        self.custody.taken()
    }

    /// The last frame that the kernel has whole. Goes back when frames are to be sent again.
    pub fn written(&self) -> u64 {
        self.custody.last_written()
    }

    /// With a usable credit page: every frame up to this is finished. (An uncounted frame passes with the counted one before
    /// it, once the kernel has it.)
    pub fn finished(&self) -> Option<u64> {
        self.credit.as_ref().filter(|credit| credit.account.is_usable()).map(|_| self.custody.taken())
    }

    /// With a usable credit page: the count that stands for everything up to [`Push::taken`] being finished, and nothing
    /// after it.
    pub fn position(&self) -> Option<CreditPosition> {
        self.credit.as_ref().and_then(|credit| credit.account.position())
    }

    /// Not yet in the kernel.
    pub fn pending(&self) -> Pending {
        self.custody.waiting()
    }

    /// In the kernel and not finished, with a usable credit page: the reader's lag.
    pub fn unfinished(&self) -> Pending {
        self.custody.unfinished()
    }

    /// What has been written and finished since the start.
    pub fn totals(&self) -> Totals {
        self.custody.totals()
    }

    /// Everything is in the kernel and, where there is credit, finished.
    pub fn is_drained(&self) -> bool {
        self.pending().frames == 0 && self.unfinished().frames == 0
    }

    /// A reader's handshake is done.
    pub fn is_connected(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.stage == Stage::Up)
    }

    /// Of an ipc connection: whether the kernel holds little that the reader has not read, at most a quarter of its buffer (some 50
    /// KB) before the last frame. A system call; when it becomes so again, the poll has an event. Else: true.
    pub fn has_little_unread(&self) -> bool {
        self.link.as_ref().is_none_or(|link| !link.conn.is_ipc() || link.conn.polls_writable())
    }

    /// What is known of the credit page.
    pub fn credit(&self) -> CreditState {
        self.credit.as_ref().map_or(CreditState::Off, |credit| credit.account.state())
    }

    /// What happened, oldest first.
    pub fn next_notice(&mut self) -> Option<PushNotice> {
        self.notices.next(|count| PushNotice::Missed { count })
    }

    /// Where it connects to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How many unfinished frames, of how many bytes, there may be. `None`: no frame may be written now.
    fn window(&self) -> Option<(usize, usize)> {
        if !self.is_connected() {
            return None;
        }
        match (&self.credit, &self.options.credit) {
            (Some(credit), Some(options)) => {
                credit.account.may_write().then_some((options.max_window_frames, options.max_window_bytes))
            }
            _ => Some((usize::MAX, usize::MAX)),
        }
    }

    fn attempt(&mut self, now: Instant) {
        match self.begin(now) {
            // Over ipc it is made at once.
            Ok(()) => self.flush(now),
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
            // Of a unix socket that does not block.
            Errno::AGAIN => LossReason::Io("the listener's backlog is full".to_owned()),
            error => loss(error),
        })?;
        if let Some(bytes) = self.options.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size(conn.fd(), bytes).map_err(loss)?;
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        conn.register(&self.registry, self.token, interest)
            .map_err(|error| LossReason::Io(error.to_string()))?;
        let limit = if is_made { self.options.handshake_timeout } else { self.options.connect_timeout };
        self.link = Some(Link::new(conn, is_made, now + limit));
        Ok(())
    }

    /// The handshake is done.
    fn up(&mut self, now: Instant) {
        // The reader opened its page before it bound its socket, so this look tells whose count it is.
        self.look(now);
        let Some(link) = &mut self.link else { return };
        link.stage = Stage::Up;
        link.at = now;
        link.to = link.conn.peer_address();
        self.custody.connected(link.unread_bytes_max());
        self.waits_for = None;
        self.addresses.clear();
        self.notices.push(PushNotice::Connected { to: link.to.clone() });
        let pid = link.pid();
        if let Some(credit) = &mut self.credit {
            credit.account.up(pid, &mut Desk { custody: &mut self.custody, notices: &mut self.notices, now });
        }
    }

    fn lose(&mut self, why: LossReason, now: Instant) {
        let Some(link) = self.link.take() else { return };
        link.conn.deregister(&self.registry);
        if link.stage != Stage::Up {
            return self.wait(why, now);
        }
        // The last word of the page on what this connection was given.
        self.look(now);
        let cut = self.custody.cut();
        let unread = Some(&mut self.custody)
            .filter(|_| why != LossReason::Closed)
            .and_then(|custody| custody.recent());
        self.notices.push(PushNotice::Lost { why, cut });
        if unread.is_some() {
            self.notices.push(PushNotice::Settled { resent: 0, unconfirmed: unread });
        }
        if let Some(credit) = &mut self.credit {
            credit.account.lost(&mut Desk { custody: &mut self.custody, notices: &mut self.notices, now });
        }
        // A reader that takes a connection and ends it at once, again and again, is not hurried.
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
        let is_waiting = credit.account.is_waiting(&self.custody);
        Some(credit.looked + if is_waiting { poll } else { CREDIT_POLL_IDLE.max(poll) })
    }

    fn look(&mut self, now: Instant) {
        let Some(credit) = &mut self.credit else { return };
        credit.looked = now;
        if now >= credit.checked_file + CREDIT_POLL_IDLE {
            credit.checked_file = now;
            credit.reader.check_file();
        }
        let look = credit.reader.look();
        credit.account.saw(look, &mut Desk { custody: &mut self.custody, notices: &mut self.notices, now });
    }
}
