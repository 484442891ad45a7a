//! The cost of received bytes that outlive the process: three ways to read the same frames from a socket.

use afterbay_sockets::ReceiveBuffer;
use anyhow::{Context, ensure};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::hint::black_box;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The sizes of frames, in bytes.
pub(crate) const SIZES: [usize; 3] = [1 << 10, 60 << 10, 1 << 20];
/// Bytes that one read takes.
const READ: usize = 64 << 10;
/// A frame that lacks at least this much is read into its own allocation.
const DIRECT: usize = 16 << 10;
/// Bytes that are read after such a frame.
const AFTER_DIRECT: usize = 4 << 10;
/// The most bytes that wait in the socket.
const PEEK: usize = 256 << 10;
const HEADER: usize = 9;

/// Nanoseconds per frame.
pub(crate) struct ReadCosts {
    /// Into private memory, which ends with the process.
    pub(crate) private: f64,
    /// MSG_PEEK, and a second read that consumes the frame once the journal has it. `None`: the frame does not fit into the
    /// kernel's buffer.
    pub(crate) peeked: Option<f64>,
    /// `recvmmsg` into mapped memory, and one note for the frame.
    pub(crate) mapped: f64,
}

/// Measures each way on this thread for a third of `time`. The result is the fastest round.
pub(crate) fn measure(size: usize, time: Duration) -> anyhow::Result<ReadCosts> {
    let share = time / 3;
    Ok(ReadCosts {
        private: fastest(size, share, &mut Private::new())?,
        peeked: (size < READ).then(|| fastest(size, share, &mut Peeked::new())).transpose()?,
        mapped: fastest(size, share, &mut Mapped::new()?)?,
    })
}

/// A way to read frames.
trait Way {
    /// Reads what the socket has. Returns the number of frames that are complete now.
    fn read(&mut self, socket: &UnixStream) -> anyhow::Result<usize>;
}

/// Fills the socket without measuring, and measures the reads, until a round of frames is through.
fn fastest(size: usize, time: Duration, way: &mut impl Way) -> anyhow::Result<f64> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    let frame = [&[2][..], &(size as u64).to_be_bytes(), &vec![7; size]].concat();
    let frames = (4_usize << 20).div_ceil(size).min(256);
    let until = Instant::now() + time;
    let mut fastest = f64::INFINITY;
    while Instant::now() < until {
        let (mut written, mut read, mut spent) = (0, 0, Duration::ZERO);
        while read < frames {
            while written < frames * frame.len() {
                // Whole small frames: a part of a frame cannot be consumed.
                let rest = &frame[written % frame.len()..];
                match rustix::net::send(&writer, rest, SendFlags::DONTWAIT) {
                    Ok(bytes) => written += bytes,
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error).context("send"),
                }
            }
            let begun = Instant::now();
            read += way.read(&reader)?;
            spent += begun.elapsed();
        }
        fastest = fastest.min(spent.as_nanos() as f64 / frames as f64);
    }
    Ok(fastest)
}

/// The bytes that are parsed, and the frame that is being received, in an allocation of its own.
#[derive(Default)]
struct Frames {
    body: Vec<u8>,
    missing: usize,
}

impl Frames {
    /// Takes bytes up to the end of a frame. Returns how many, and whether a frame is complete.
    fn take(&mut self, mut input: &[u8]) -> (usize, bool) {
        let mut used = 0;
        if self.missing == 0 {
            let Some(size) = size_of(input) else { return (0, false) };
            (self.body, self.missing) = (Vec::with_capacity(size), size);
            (input, used) = (&input[HEADER..], HEADER);
        }
        let taken = input.len().min(self.missing);
        self.body.extend_from_slice(&input[..taken]);
        self.missing -= taken;
        (used + taken, self.complete())
    }

    fn complete(&mut self) -> bool {
        if self.missing == 0 {
            black_box(bytes::Bytes::from(std::mem::take(&mut self.body)));
        }
        self.missing == 0
    }
}

/// The size in a whole header.
fn size_of(input: &[u8]) -> Option<usize> {
    Some(u64::from_be_bytes(*input.get(1..HEADER)?.first_chunk()?) as usize)
}

struct Private {
    buffer: Vec<u8>,
    end: usize,
    /// Bytes that the next read into the buffer takes. Few after a big frame: the next big frame is then hardly copied.
    most: usize,
    frames: Frames,
}

impl Private {
    fn new() -> Private {
        Private { buffer: vec![0; READ], end: 0, most: READ, frames: Frames::default() }
    }
}

impl Way for Private {
    fn read(&mut self, socket: &UnixStream) -> anyhow::Result<usize> {
        let mut complete = 0;
        loop {
            let direct = self.frames.missing >= DIRECT;
            let got = if direct {
                rustix::io::read(socket, spare_capacity(&mut self.frames.body))
            } else {
                let most = READ.min(self.end + self.most);
                rustix::io::read(socket, &mut self.buffer[self.end..most])
            };
            self.most = if direct { AFTER_DIRECT } else { READ };
            match got {
                Err(Errno::AGAIN) => return Ok(complete),
                got if direct => {
                    self.frames.missing -= got?;
                    complete += usize::from(self.frames.complete());
                }
                got => {
                    self.end += got?;
                    let mut start = 0;
                    while start < self.end {
                        let (used, is_complete) = self.frames.take(&self.buffer[start..self.end]);
                        if used == 0 {
                            break;
                        }
                        start += used;
                        complete += usize::from(is_complete);
                    }
                    self.buffer.copy_within(start..self.end, 0);
                    self.end -= start;
                }
            }
        }
    }
}

struct Peeked {
    buffer: Vec<u8>,
    scratch: Vec<u8>,
}

impl Peeked {
    fn new() -> Peeked {
        Peeked { buffer: vec![0; PEEK], scratch: vec![0; READ + HEADER] }
    }
}

impl Way for Peeked {
    fn read(&mut self, mut socket: &UnixStream) -> anyhow::Result<usize> {
        let mut complete = 0;
        loop {
            let mut end = 0;
            match rustix::net::recv(socket, &mut self.buffer[..], RecvFlags::PEEK) {
                Ok((bytes, _)) => end += bytes,
                Err(Errno::AGAIN) => return Ok(complete),
                Err(error) => return Err(error).context("peek"),
            }
            let before = complete;
            let mut start = 0;
            while let Some(size) = size_of(&self.buffer[start..end])
                && start + HEADER + size <= end
            {
                black_box(bytes::Bytes::copy_from_slice(&self.buffer[start + HEADER..][..size]));
                // The journal has the frame. A unix socket discards bytes only into memory.
                socket.read_exact(&mut self.scratch[..HEADER + size])?;
                start += HEADER + size;
                complete += 1;
            }
            if complete == before {
                return Ok(complete);
            }
        }
    }
}

struct Mapped {
    buffer: ReceiveBuffer,
    frames: Frames,
    number: u64,
}

impl Mapped {
    fn new() -> anyhow::Result<Mapped> {
        Ok(Mapped { buffer: ReceiveBuffer::new(512 << 20)?, frames: Frames::default(), number: 0 })
    }
}

impl Way for Mapped {
    fn read(&mut self, socket: &UnixStream) -> anyhow::Result<usize> {
        let mut complete = 0;
        loop {
            match self.buffer.read(socket, self.frames.missing) {
                Ok(bytes) => ensure!(bytes > 0, "the socket ended"),
                Err(Errno::AGAIN) => return Ok(complete),
                Err(error) => return Err(error).context("recvmmsg"),
            }
            loop {
                let (used, is_complete) = self.frames.take(self.buffer.unparsed());
                self.buffer.parse(used);
                if is_complete {
                    self.number += 1;
                    self.buffer.note(self.number);
                    // Here the journal gets the frame.
                    self.buffer.settle_now(true);
                    complete += 1;
                } else if used == 0 || self.frames.missing > 0 {
                    break;
                }
            }
        }
    }
}
