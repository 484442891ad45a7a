//! The listener and the senders that an earlier process left.

use std::os::fd::OwnedFd;

use afterbay_supervision::fdstore::FdName;

use super::notice::PullNotice;
use super::options::PullOptions;
use super::sender::{Keeper, Sender};
use crate::conn::Conn;
use crate::lasting::{Lasting, ReceiveBuffer};
use crate::listener::{BindError, Listener};
use crate::notices::NoticeQueue;
use crate::peers::PeerId;
use afterbay_types::Endpoint;

/// The listeners of a socket at its start.
pub(super) struct Listeners {
    pub(super) present: Listener,
    /// An earlier process listened here, and the configuration now names another endpoint.
    pub(super) retired: Option<Listener>,
}

impl Listeners {
    /// Takes the earlier process's listener if it serves the endpoint, and otherwise binds.
    pub(super) fn open(
        endpoint: &Endpoint,
        options: &PullOptions,
        lasting: Option<&mut Lasting<'_>>,
        notices: &mut NoticeQueue<PullNotice>,
    ) -> Result<Listeners, BindError> {
        let mut retired = None;
        if let Some(lasting) = lasting {
            let name = FdName::listener(lasting.stream);
            match lasting.inherited.take(&name).map(|fds| one(fds).and_then(Listener::adopt)) {
                None => {}
                Some(Ok(mut listener)) => {
                    if listener.serves(endpoint, options.listen_mode) {
                        return Ok(Listeners { present: listener, retired: None });
                    }
                    let why = format!("it listens on {}", listener.endpoint());
                    notices.push(PullNotice::NotAdopted { name: name.to_string(), why, lost: 0 });
                    retired = Some(listener);
                }
                Some(Err(why)) => {
                    notices.push(PullNotice::NotAdopted { name: name.to_string(), why, lost: 0 });
                }
            }
        }
        let present = Listener::bind(endpoint, options.listen_mode, options.receive_buffer_bytes)?;
        Ok(Listeners { present, retired })
    }
}

/// A sender that is not continued.
pub(super) struct NotAdopted {
    pub(super) why: String,
    /// Received bytes that nobody has read.
    pub(super) lost: u64,
}

/// Continues a sender of an earlier process, except for its registration with the poll. Reads and writes nothing.
pub(super) fn sender(
    name: &FdName,
    fds: Vec<OwnedFd>,
    options: &PullOptions,
    keeper: &Keeper,
) -> Result<Sender, NotAdopted> {
    let damaged = |why: String| NotAdopted { why, lost: 0 };
    let id = name.sender_id().ok_or_else(|| damaged("its name has no sender's id".to_owned()))?;
    let [socket, memory] = <[OwnedFd; 2]>::try_from(fds)
        .map_err(|fds| damaged(format!("{} descriptors, expected a socket and its memory", fds.len())))?;
    let conn = Conn::adopt(socket)
        .ok_or_else(|| damaged("the descriptor is no socket of unix or TCP".to_owned()))?;
    match ReceiveBuffer::adopt(memory, options.last_frame) {
        Ok(buffer) => Ok(Sender::adopt(PeerId(id), conn, options.max_message_bytes, buffer, keeper)),
        Err(why) => Err(NotAdopted { why: why.to_string(), lost: conn.unread_bytes() }),
    }
}

/// The only descriptor of an entry.
fn one(fds: Vec<OwnedFd>) -> Result<OwnedFd, String> {
    <[OwnedFd; 1]>::try_from(fds)
        .map(|[fd]| fd)
        .map_err(|fds| format!("{} descriptors, expected a listening socket", fds.len()))
}
