//! Every bound of this crate, and what happens when it is reached. The options' defaults are these values.

use std::time::Duration;

/// The biggest message that a [`Pull`](crate::Pull) receives. A bigger one closes its peer before anything is allocated. All parts
/// of a message together have this bound, each with 9 bytes more than its own, and their number has
/// [`PARTS_MAX`](afterbay_types::parts::PARTS_MAX).
pub const MESSAGE_BYTES_MAX: usize = 512 << 20;

/// Peers of one [`Pull`](crate::Pull). A further one is closed as soon as it connects, and a notice says so.
pub const PEERS_MAX: usize = 256;

/// A peer whose handshake takes longer is closed, and a notice says so.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Peers of one [`Pull`](crate::Pull) that are in their handshake. One more closes the oldest of them: an honest handshake
/// takes a few turns, and fewer than this many other peers connect meanwhile.
pub const HANDSHAKES_MAX: usize = 128;

/// A TCP connection that takes longer is given up and tried again.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Bytes that one call reads from a sender, unless a bigger message is incomplete.
pub const READ_BUFFER_BYTES: usize = 64 << 10;

/// Bytes that one call reads of a bigger message.
pub const READ_DIRECT_BYTES: usize = 128 << 10;

/// Memory that a sender's receive buffer keeps. What a bigger message took goes back to the system once no message needed it
/// for [`BUFFER_KEPT_FOR`].
pub const BUFFER_KEPT_BYTES: usize = 1 << 20;

/// How long a sender's receive buffer keeps more than [`BUFFER_KEPT_BYTES`] after the last message that needed it, at least. At
/// most, it keeps it twice as long.
pub const BUFFER_KEPT_FOR: Duration = Duration::from_secs(1);

/// Bytes read from one peer without completing a message before the next peer has its turn. The read that reaches the bound
/// may return more: all that the kernel's buffer of the connection holds.
pub const READ_TURN_BYTES: usize = 64 << 10;

/// Commands (PING and the like) read from one peer before the next peer has its turn. An honest sender has one or two to
/// send in the time of a turn.
pub const COMMANDS_TURN: usize = 16;

/// Bytes that one call of [`Pull::receive`](crate::Pull::receive) reads without completing a message. Then, or once every
/// peer has had a turn, it returns `None`, and [`Pull::has_more`](crate::Pull::has_more) returns true.
pub const READ_CALL_BYTES: usize = 1 << 20;

/// Connections accepted in a row before connected peers have their turn.
pub const ACCEPT_TURN: usize = 16;

/// How long after [`Pull::close`](crate::Pull::close) a sender may keep writing without a pause between two messages. Then
/// our end is shut down in the middle of whatever it writes.
pub const CLOSE_SHUT_MAX: Duration = Duration::from_millis(500);

/// How long a sender may stay silent and connected after it has seen our end. Then it is closed, and its later writes fail.
/// libzmq closes within a millisecond; a stopped process never does. A sender that keeps writing is closed this long after
/// [`CLOSE_SHUT_MAX`].
pub const CLOSE_QUIET: Duration = Duration::from_millis(200);

/// The shortest time between two notices about refused connections. Each notice counts the refusals since the last one.
pub const REFUSED_NOTICE_INTERVAL: Duration = Duration::from_secs(1);

/// Connections that the kernel queues until they are accepted. A further one fails or waits at the sender.
pub const LISTEN_BACKLOG: i32 = 1024;

/// NoticeQueue in the queue of one socket. Further ones are dropped, and a last notice counts them.
pub const NOTICES_MAX: usize = 256;

/// Frames in the queue of a [`Push`](crate::Push). [`Push::send`](crate::Push::send) hands a further one back.
pub const QUEUE_FRAMES_MAX: usize = 1024;

/// Bytes in the same queue. A bigger frame is queued when the queue is empty.
pub const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Frames that the kernel has and that the reader has not counted as finished. At the bound nothing is written until the
/// reader counts one.
pub const WINDOW_FRAMES_MAX: usize = 1024;

/// Bytes of the same frames. A bigger frame is written when no other frame is unfinished.
pub const WINDOW_BYTES_MAX: usize = 256 << 20;

/// The first wait before connecting again. It doubles at each failure up to [`BACKOFF_MAX`]; jitter shortens it by up to half.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);

/// The longest wait before connecting again.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Bytes handed to the kernel in one call. A [`Push`](crate::Push) adds frames below the bound, so the last one may exceed it.
pub const WRITE_CALL_BYTES: usize = 1 << 20;

/// Frames of a connection to a reader that are in its memory: the unfinished ones, and those that are about to be written. At
/// the bound nothing more is written until the reader finishes one.
pub const SEND_ENTRIES_MAX: usize = 2048;

/// The address space for the bytes of these frames. Three of the biggest frames that Afterbay receives find room, so no frame
/// is refused. Pages take memory when they are first used.
pub const SEND_MEMORY_BYTES: usize = 4 << 30;

/// Bytes of pages that a connection to a reader retains. What bigger frames used beyond is given back to the system after 1 to 2
/// seconds without such frames.
pub const SEND_RESIDENT_BYTES: usize = 8 << 20;

/// How often a connection looks for pages to give back, after big frames.
pub const SEND_GIVE_BACK_EVERY: Duration = Duration::from_secs(1);

/// Once the bytes of a connection would pass this place in its memory, the rest of them moves to the front if the rest is a
/// quarter of what lies before it or less. So the memory in use stays in the processor's cache.
pub const SEND_RESTART_BYTES: usize = 1 << 20;

/// Bytes written in one call of [`Push::flush`](crate::Push::flush). Then it returns, and
/// [`Push::deadline`](crate::Push::deadline) is due at once.
pub const WRITE_TURN_BYTES: usize = 8 << 20;

/// Written frames that are remembered, to name those that a reset may have lost. Older ones are forgotten.
pub const RECENT_FRAMES_MAX: usize = 4096;

/// How often the credit page is read while frames are unfinished.
pub const CREDIT_POLL: Duration = Duration::from_millis(1);

/// How often the credit page is read otherwise, and how often its path is checked for another file.
pub const CREDIT_POLL_IDLE: Duration = Duration::from_millis(50);

/// Reads in a row of a page that changes while it is read. Then the next poll tries again.
pub const CREDIT_READS_MAX: usize = 8;

/// How long a new connection waits for the new reader's generation if frames of the last connection are unfinished.
pub const GENERATION_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a doubtful count may stand still. Then the frames that it should have counted are given up as unconfirmed.
pub const CREDIT_STALL_MAX: Duration = Duration::from_secs(30);
