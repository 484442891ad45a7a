//! Every bound of this crate, with what happens when it is reached. What an operator may change is in the options,
//! of which these are the defaults.

use std::time::Duration;

/// The longest name of a unix socket, by the kernel's `sockaddr_un`. A longer one is refused when it is parsed.
pub const IPC_PATH_BYTES_MAX: usize = 107;

/// The biggest message a [`Pull`](crate::Pull) takes. A bigger one closes its peer, before anything is allocated for it.
pub const MESSAGE_BYTES_MAX: usize = 512 << 20;

/// Peers of one [`Pull`](crate::Pull). A further one is closed as soon as it connects, and told.
pub const PEERS_MAX: usize = 256;

/// A peer that has not finished its handshake by then is closed, and told.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Peers of one [`Pull`](crate::Pull) that are in their handshake. Where one more connects, the oldest of these is closed, and
/// told: an honest handshake takes a few turns, and so many others do not connect in these.
pub const HANDSHAKES_MAX: usize = 128;

/// A TCP connection that is not there by then is given up and tried again.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);

/// One peer's buffer for small messages; it is allocated when the peer first sends.
pub const READ_BUFFER_BYTES: usize = 64 << 10;

/// Read from one peer in a row without completing a message; then the next one has its turn. A single read may take more:
/// what the kernel's buffer of that connection holds.
pub const READ_TURN_BYTES: usize = 64 << 10;

/// Commands (PING and the like) taken from one peer in a row; then the next one has its turn. An honest sender has one or
/// two to send in the time of a turn.
pub const COMMANDS_TURN: usize = 16;

/// Read in one call of [`Pull::receive`](crate::Pull::receive) without completing a message; then it returns `None`
/// and [`Pull::has_more`](crate::Pull::has_more) says so. It does so too when every peer has had a turn.
pub const READ_CALL_BYTES: usize = 1 << 20;

/// Connections taken from the listener in a row; then peers that are there have their turn.
pub const ACCEPT_TURN: usize = 16;

/// From [`Pull::close`](crate::Pull::close) on, a sender may go on writing for so long, until nothing of it is unread between
/// two messages. Then it sees our end whatever it writes.
pub const CLOSE_SHUT_MAX: Duration = Duration::from_millis(500);

/// A sender that has seen our end, does not end its connection and writes nothing for so long is closed: what it writes
/// later fails. libzmq ends its connection within a millisecond; a process that is stopped never does. A sender that goes
/// on writing is closed so long after [`CLOSE_SHUT_MAX`].
pub const CLOSE_QUIET: Duration = Duration::from_millis(200);

/// Refused connections are told at most that often, with their number.
pub const REFUSED_TOLD_EVERY: Duration = Duration::from_secs(1);

/// Connections the kernel keeps for us until they are accepted; a further one fails or waits at the sender.
pub const LISTEN_BACKLOG: i32 = 1024;

/// Notices waiting to be taken. Further ones are dropped and counted, and the next one to be taken says how many.
pub const NOTICES_MAX: usize = 256;

/// Frames waiting in a [`Push`](crate::Push) for the kernel to take them. [`Push::send`](crate::Push::send) hands a further one back.
/// A [`Pub`](crate::Pub) holds as many for each subscriber, and drops a further one for this subscriber.
pub const QUEUE_FRAMES_MAX: usize = 1024;

/// Bytes likewise. A frame that is bigger than this goes through alone.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Frames that the kernel has and the reader has not counted as finished. At the bound nothing is written until it counts.
pub const WINDOW_FRAMES_MAX: usize = 1024;

/// Bytes likewise. A frame that is bigger than this goes through alone.
pub const WINDOW_BYTES_MAX: usize = 256 << 20;

/// Subscribers of one [`Pub`](crate::Pub). A further one is closed as soon as it connects, and told.
pub const SUBSCRIBERS_MAX: usize = 64;

/// Read of one subscriber in one turn of [`Pub::flush`](crate::Pub::flush); then the others have theirs.
pub const SUBSCRIBER_TURN_BYTES: usize = 64 << 10;

/// The first wait before connecting again; doubled at each failure up to [`BACKOFF_MAX`], and shortened by up to half at random.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);

/// The longest wait before connecting again.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Handed to the kernel in one call.
pub const WRITE_CALL_BYTES: usize = 1 << 20;

/// Frames handed to the kernel in one call, two slices each: below the kernel's 1,024 slices.
pub const WRITE_CALL_FRAMES: usize = 256;

/// Written in one turn of [`Push::flush`](crate::Push::flush); then it returns, and [`Push::deadline`](crate::Push::deadline) is due at once.
pub const WRITE_TURN_BYTES: usize = 8 << 20;

/// Frames remembered after the kernel has taken them, to name those that a reset may have lost.
pub const RECENT_FRAMES_MAX: usize = 4096;

/// Between two looks at the credit page while frames are unfinished.
pub const CREDIT_POLL: Duration = Duration::from_millis(1);

/// Between two looks at the credit page otherwise, and between two looks whether its file was replaced.
pub const CREDIT_POLL_IDLE: Duration = Duration::from_millis(50);

/// Looks in a row at a page that changes while it is read; then the next poll tries again.
pub const CREDIT_READS_MAX: usize = 8;

/// How long a new connection with unfinished frames behind it waits for the new reader's generation.
pub const GENERATION_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a count that is in doubt (see [`credit`](crate::credit)) may stand still before its frames are given up.
pub const CREDIT_STALL_MAX: Duration = Duration::from_secs(30);
