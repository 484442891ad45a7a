//! The hook of a simulation in the system calls of connections: short reads and writes, and the death of the process at a
//! chosen call. Only in builds with debug assertions; otherwise every call passes as it is.

/// A system call of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketCall {
    /// Before a read of up to this many bytes.
    Read(usize),
    /// After a read that took this many bytes.
    HasRead(usize),
    /// Before a write of this many bytes.
    Write(usize),
    /// After a write of which the kernel took this many bytes.
    HasWritten(usize),
}

/// Gets each call. Returns the most bytes that the call may transfer, at least 1; ignored after a call. May unwind, which
/// stands for the death of the process at this call.
///
/// A call that would transfer bytes is never refused as if it would block: an edge-triggered poll reports only a change, so a
/// kernel does not do so either.
pub type SocketHook = Box<dyn FnMut(SocketCall) -> usize>;

#[cfg(not(debug_assertions))]
mod inject {
    use super::SocketCall;

    #[inline(always)]
    pub(crate) fn at(_call: SocketCall) -> usize {
        usize::MAX
    }

    #[inline(always)]
    pub(crate) fn is_dead() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn send_buffer() -> Option<usize> {
        None
    }
}

#[cfg(debug_assertions)]
mod inject {
    use super::{SocketCall, SocketHook};
    use std::cell::{Cell, RefCell};

    thread_local! {
        static HOOK: RefCell<Option<SocketHook>> = const { RefCell::new(None) };
        static IS_DEAD: Cell<bool> = const { Cell::new(false) };
        static SEND_BUFFER: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Sets SO_SNDBUF of the connections that this thread makes to readers. `None`: the kernel's default.
    pub fn set_send_buffer(bytes: Option<usize>) {
        SEND_BUFFER.set(bytes);
    }

    pub(crate) fn send_buffer() -> Option<usize> {
        SEND_BUFFER.get()
    }

    /// Sets the hook of this thread, or removes it.
    pub fn set_hook(hook: Option<SocketHook>) {
        HOOK.set(hook);
    }

    /// Says whether the process of this thread counts as dead: what its sockets do when they are dropped has no effect outside.
    pub fn set_dead(is_dead: bool) {
        IS_DEAD.set(is_dead);
    }

    pub(crate) fn is_dead() -> bool {
        IS_DEAD.get()
    }

    /// The most bytes that the call may transfer.
    pub(crate) fn at(call: SocketCall) -> usize {
        if is_dead() {
            return usize::MAX;
        }
        HOOK.with(|hook| match hook.try_borrow_mut() {
            Ok(mut hook) => hook.as_mut().map_or(usize::MAX, |hook| hook(call).max(1)),
            // The hook itself uses sockets.
            Err(_) => usize::MAX,
        })
    }
}

pub(crate) use inject::{at, is_dead, send_buffer};
#[cfg(debug_assertions)]
pub use inject::{set_dead, set_hook, set_send_buffer};
