//! The shared memory of one connection. After the death of the process, the memory says how many bytes the kernel took or gave.
//!
//! The memory is a memfd: it lives as long as anybody has a descriptor. `recvmmsg` and `sendmmsg` store the number of
//! transferred bytes in the caller's `mmsghdr`. Our `mmsghdr` lies in the memory. The kernel acts on SIGKILL only when a
//! system call returns, so no kill falls between a transfer and its count.
//!
//! ```text
//!    0  8  magic "ABMEMORY"
//!    8  4  version = 1
//!   12  4  role: 1 received bytes, 2 bytes to send
//!   16  8  size of the bytes area
//!   24  4  the valid slot: 0 or 1
//!   32     slot 0: 16 words, then the kernel's mmsghdr
//!  224     slot 1: the same
//! 4096     the bytes area
//! ```
//! Words that change together are written to the other slot, with a count of 0, and one store makes this slot valid. So the
//! state of a connection is: the words of the valid slot, and the count of the one transfer that was begun under these words.
//!
//! Invariant: a kill at any instant leaves words, count and bytes that agree (test:
//! a_kill_at_any_instant_leaves_a_count_that_agrees_with_the_bytes_received, and the same for bytes sent).
#![expect(
    unsafe_code,
    reason = "maps shared memory, and calls recvmmsg and sendmmsg; each block states its invariant"
)]

use std::ffi::c_void;
use std::io::IoSlice;
use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

const MAGIC: u64 = u64::from_le_bytes(*b"ABMEMORY");
const VERSION: u32 = 1;

/// The header's share of the memory. The bytes area begins after the header.
const HEADER_BYTES: usize = 4096;

/// The biggest bytes area. A memory of an earlier process that says more is refused.
const AREA_BYTES_MAX: usize = 1 << 40;

/// The seals of every memory: nobody can change its size, so no access past the end can raise SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The number of words of a slot.
pub(crate) const WORDS: usize = 16;

/// The numbers that change together. Their meaning is the owner's.
pub(crate) type Words = [u64; WORDS];

/// The direction that a memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryRole {
    /// The bytes were received from a sender.
    Receive = 1,
    /// The bytes are for a reader.
    #[allow(dead_code, reason = "the sending side follows")]
    Send = 2,
}

/// The reason why the memory of an earlier process is not used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A system call failed.
    #[error("{call}: {error}")]
    Io {
        /// The call.
        call: &'static str,
        /// The error.
        error: Errno,
    },
    /// The descriptor is no memory whose size is fixed.
    #[error("the descriptor is no sealed memory")]
    NotSealed,
    /// The size is not the one that the memory states.
    #[error("the memory has {found} bytes and states {stated}")]
    Size {
        /// The size in bytes.
        found: u64,
        /// The size that its header states.
        stated: u64,
    },
    /// The memory has no magic: no Afterbay made it.
    #[error("the memory is none of Afterbay's")]
    Magic,
    /// The memory has another version.
    #[error("the memory has version {found}, this Afterbay reads version {VERSION}")]
    Version {
        /// The version.
        found: u32,
    },
    /// The memory is of the other direction.
    #[error("the memory has role {found}, expected {expected}")]
    Role {
        /// The role.
        found: u32,
        /// The role that belongs here.
        expected: u32,
    },
    /// Two statements of the memory contradict each other.
    #[error("the memory contradicts itself: {0}")]
    Contradiction(String),
    /// The connection is to another endpoint than the configured one.
    #[error("the connection is to {found}, not to {expected}")]
    Endpoint {
        /// The endpoint of the connection.
        found: String,
        /// The configured endpoint.
        expected: String,
    },
    /// The connection's handshake was not complete. The peer connects again and loses nothing.
    #[error("the handshake was not complete")]
    Handshake,
}

/// The start of the memory. All fields are atomic, because the kernel and other processes change them too.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    role: AtomicU32,
    area_bytes: AtomicU64,
    valid: AtomicU32,
    slots: [Slot; 2],
}

/// Words that change together, and the transfer that was begun under them.
#[repr(C)]
struct Slot {
    words: [AtomicU64; WORDS],
    transfer: Transfer,
}

/// The kernel's `struct mmsghdr`.
#[repr(C)]
struct Transfer {
    message: MessageHeader,
    /// Transferred bytes. The kernel stores them.
    count: AtomicU32,
}

/// The kernel's `struct user_msghdr`. (The one of musl has other fields.)
#[repr(C)]
struct MessageHeader {
    name: AtomicPtr<c_void>,
    name_bytes: AtomicU32,
    slices: AtomicPtr<c_void>,
    slice_count: AtomicUsize,
    control: AtomicPtr<c_void>,
    control_bytes: AtomicUsize,
    flags: AtomicU32,
}

const _: () = {
    assert!(offset_of!(Header, slots) == 32 && size_of::<Header>() <= HEADER_BYTES);
    assert!(size_of::<Transfer>() == size_of::<libc::mmsghdr>());
    assert!(offset_of!(Transfer, count) == offset_of!(libc::mmsghdr, msg_len));
    assert!(offset_of!(MessageHeader, slices) == offset_of!(libc::msghdr, msg_iov));
};

/// The mapped memory of one connection. One process writes it at a time.
#[derive(Debug)]
pub(crate) struct Memory {
    fd: OwnedFd,
    map: MmapRaw,
    area_bytes: usize,
}

impl Memory {
    /// Makes a memory for at least `area_bytes`, rounded up to pages. Pages that were never written take no memory.
    pub(crate) fn new(role: MemoryRole, area_bytes: usize) -> Result<Memory, MemoryError> {
        let area_bytes = area_bytes
            .checked_next_multiple_of(HEADER_BYTES)
            .filter(|bytes| *bytes <= AREA_BYTES_MAX)
            .ok_or(MemoryError::Io { call: "memory", error: Errno::NOMEM })?;
        let fd = create()?;
        let size = (HEADER_BYTES + area_bytes) as u64;
        rustix::fs::ftruncate(&fd, size).map_err(io("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(io("seals"))?;
        let memory = Memory { map: map(&fd, HEADER_BYTES + area_bytes)?, fd, area_bytes };
        let header = memory.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.role.store(role as u32, Ordering::Relaxed);
        header.area_bytes.store(area_bytes as u64, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(memory)
    }

    /// Continues the memory of an earlier process. The owner of the role checks the words.
    pub(crate) fn adopt(fd: OwnedFd, role: MemoryRole) -> Result<Memory, MemoryError> {
        // Only a memfd has seals.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| MemoryError::NotSealed)?;
        if !seals.contains(SEALS) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(MemoryError::NotSealed);
        }
        let size = rustix::fs::fstat(&fd).map_err(io("fstat"))?.st_size;
        let found = u64::try_from(size).unwrap_or(0);
        let area_bytes = usize::try_from(found).ok().and_then(|size| size.checked_sub(HEADER_BYTES));
        let Some(area_bytes) = area_bytes.filter(|bytes| *bytes <= AREA_BYTES_MAX) else {
            return Err(MemoryError::Magic);
        };
        let memory = Memory { map: map(&fd, HEADER_BYTES + area_bytes)?, fd, area_bytes };
        let header = memory.header();
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(MemoryError::Magic);
        }
        let version = header.version.load(Ordering::Relaxed);
        if version != VERSION {
            return Err(MemoryError::Version { found: version });
        }
        let found_role = header.role.load(Ordering::Relaxed);
        if found_role != role as u32 {
            return Err(MemoryError::Role { found: found_role, expected: role as u32 });
        }
        let stated = header.area_bytes.load(Ordering::Relaxed).saturating_add(HEADER_BYTES as u64);
        if stated != found {
            return Err(MemoryError::Size { found, stated });
        }
        let valid = header.valid.load(Ordering::Acquire);
        if valid > 1 {
            return Err(MemoryError::Contradiction(format!("slot {valid} of 2 is valid")));
        }
        Ok(memory)
    }

    /// The descriptor, to be held by whoever outlives this process.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The size of the bytes area.
    pub(crate) fn area_bytes(&self) -> usize {
        self.area_bytes
    }

    /// The valid words. The transfer that was begun under them has moved [`Memory::count`] bytes.
    pub(crate) fn words(&self) -> Words {
        std::array::from_fn(|word| self.valid_slot().words[word].load(Ordering::Relaxed))
    }

    /// The bytes that the kernel transferred in the one call since the words became valid. 0 if there was no call.
    pub(crate) fn count(&self) -> usize {
        self.valid_slot().transfer.count.load(Ordering::Relaxed) as usize
    }

    /// Makes these words valid, with a count of 0. The words must include the earlier count.
    pub(crate) fn commit(&mut self, words: &Words) {
        let header = self.header();
        let other = (header.valid.load(Ordering::Relaxed) & 1) ^ 1;
        let slot = &header.slots[other as usize];
        for (to, word) in slot.words.iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        slot.transfer.count.store(0, Ordering::Relaxed);
        // A kill before this store leaves the earlier words and count; after it, the new ones.
        header.valid.store(other, Ordering::Release);
    }

    /// Commits these words, and reads from the socket into a part of the bytes area. Returns the count, also found by
    /// [`Memory::count`]; 0 at the end of the stream. Never waits. The next commit must include the count.
    ///
    /// A pending error of the socket is returned before bytes that arrived earlier, and only once: read again.
    pub(crate) fn receive(
        &mut self,
        words: &Words,
        socket: BorrowedFd<'_>,
        into: Range<usize>,
    ) -> Result<usize, Errno> {
        self.commit(words);
        let into = self.bytes_mut(into);
        if into.is_empty() {
            return Err(Errno::NOBUFS);
        }
        let slice = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        self.transfer(libc::SYS_recvmmsg, socket.as_raw_fd(), &raw const slice, 1, libc::MSG_DONTWAIT)
    }

    /// Commits these words, and writes to the socket. Returns the count, also found by [`Memory::count`]. Never waits. The
    /// next commit must include the count. At most 1,024 slices, from any memory of this process.
    pub(crate) fn send(
        &mut self,
        words: &Words,
        socket: BorrowedFd<'_>,
        slices: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        self.commit(words);
        // `IoSlice` has the layout of `iovec`, as the standard library guarantees.
        let (first, flags) = (slices.as_ptr().cast(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        self.transfer(libc::SYS_sendmmsg, socket.as_raw_fd(), first, slices.len(), flags)
    }

    /// As [`Memory::send`], of a part of the bytes area.
    pub(crate) fn send_area(
        &mut self,
        words: &Words,
        socket: BorrowedFd<'_>,
        from: Range<usize>,
    ) -> Result<usize, Errno> {
        self.commit(words);
        let from = self.bytes(from);
        let slice = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        self.transfer(libc::SYS_sendmmsg, socket.as_raw_fd(), &raw const slice, 1, flags)
    }

    /// One message of `recvmmsg` or `sendmmsg`, whose header is the valid slot's. `first` points to `count` slices. They must
    /// be valid for the call: writable for `recvmmsg`, readable for `sendmmsg`.
    fn transfer(
        &mut self,
        call: libc::c_long,
        socket: RawFd,
        first: *const libc::iovec,
        count: usize,
        flags: libc::c_int,
    ) -> Result<usize, Errno> {
        let transfer = &self.valid_slot().transfer;
        let message = &transfer.message;
        // These stores also make the page present and writable, so that the kernel's store of the count cannot fail.
        message.name.store(null_mut(), Ordering::Relaxed);
        message.name_bytes.store(0, Ordering::Relaxed);
        message.slices.store(first.cast_mut().cast(), Ordering::Relaxed);
        message.slice_count.store(count, Ordering::Relaxed);
        message.control.store(null_mut(), Ordering::Relaxed);
        message.control_bytes.store(0, Ordering::Relaxed);
        message.flags.store(0, Ordering::Release);
        let header: *const Transfer = transfer;
        // Invariant: the kernel reads the slices and writes `header`. Both live until the call returns: only `receive`, `send`
        // and `send_area` call this function, with slices that they own or borrow; `header` is in our mapping, and its fields are
        // atomic. The slices' memory is valid as well: `send` borrows it, and the others have it as a part of `self`, which is
        // borrowed mutably. The kernel stores no address and no descriptor: `name` and `control` are null.
        let result =
            unsafe { libc::syscall(call, socket, header, 1_usize, flags, null_mut::<libc::timespec>()) };
        match result {
            1.. => Ok(self.count()),
            _ => Err(std::io::Error::last_os_error()
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error)),
        }
    }

    /// A part of the bytes area. Empty if the range is not within the area.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        // Invariant: the mapping has `HEADER_BYTES + area_bytes` bytes, and stays mapped while `self` is borrowed. The seals
        // keep its size. Only this process writes the area: an earlier process is dead, or has handed over and writes no
        // more. This process writes the area only through `&mut self`.
        let area = unsafe { std::slice::from_raw_parts(self.area(), self.area_bytes) };
        area.get(range).unwrap_or_default()
    }

    /// A part of the bytes area, to be written. Empty if the range is not within the area.
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        // Invariant: as in `bytes`, and `&mut self` excludes any other reference into the area. The header is no part of the
        // area.
        let area = unsafe { std::slice::from_raw_parts_mut(self.area(), self.area_bytes) };
        area.get_mut(range).unwrap_or_default()
    }

    /// Returns the area's whole pages from this byte on to the system. They read as 0 afterwards.
    pub(crate) fn give_back(&mut self, from: usize) {
        let from = from.next_multiple_of(HEADER_BYTES);
        if from < self.area_bytes {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let (offset, len) = ((HEADER_BYTES + from) as u64, (self.area_bytes - from) as u64);
            // A failure costs only memory.
            let _kept = rustix::fs::fallocate(&self.fd, flags, offset, len);
        }
    }

    fn header(&self) -> &Header {
        // Invariant: the mapping begins at a page and has at least `HEADER_BYTES` bytes. Every pattern of bits is a valid
        // `Header`, whose fields are atomic, so writes of the kernel and of other processes are no data race.
        unsafe { &*self.map.as_mut_ptr().cast::<Header>() }
    }

    fn valid_slot(&self) -> &Slot {
        let header = self.header();
        &header.slots[(header.valid.load(Ordering::Acquire) & 1) as usize]
    }

    /// The start of the bytes area.
    fn area(&self) -> *mut u8 {
        self.map.as_mut_ptr().wrapping_add(HEADER_BYTES)
    }
}

/// Makes an empty memfd that may be sealed and never executed.
fn create() -> Result<OwnedFd, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create("afterbay", flags | MemfdFlags::NOEXEC_SEAL) {
        // Linux before 6.3 does not know the flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create("afterbay", flags).map_err(io("memfd_create")),
        made => made.map_err(io("memfd_create")),
    }
}

fn map(fd: &OwnedFd, bytes: usize) -> Result<MmapRaw, MemoryError> {
    MmapOptions::new().len(bytes).map_raw(fd).map_err(|error| MemoryError::Io {
        call: "mmap",
        error: error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error),
    })
}

fn io(call: &'static str) -> impl Fn(Errno) -> MemoryError {
    move |error| MemoryError::Io { call, error }
}
