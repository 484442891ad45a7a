//! The cost of frames that outlive the process: the same frames written from where they are, and from mapped memory.

use afterbay_sockets::SendMemory;
use afterbay_sockets::zmtp::FrameHeader;
use anyhow::Context;
use bytes::Bytes;
use rustix::io::Errno;
use std::io::{IoSlice, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The sizes of frames, in bytes.
pub(crate) const SIZES: [usize; 3] = [1 << 10, 60 << 10, 1 << 20];
/// Frames of one round.
const FRAMES: u64 = 64;
/// Frames that the reader has and has not finished.
const UNFINISHED: u64 = 2;

/// Nanoseconds per frame.
pub(crate) struct WriteCosts {
    /// `writev` of the header and the frame's own bytes, which end with the process.
    pub(crate) private: f64,
    /// A copy to mapped memory, `sendmmsg`, and the saved progress.
    pub(crate) mapped: f64,
}

/// A way to write a frame.
trait Way {
    /// Begins a frame with this number.
    fn begin(&mut self, frame: &Bytes, sequence: u64);

    /// Writes what the kernel takes. Returns whether the frame is whole in the kernel.
    fn write(&mut self, socket: &UnixStream, frame: &Bytes, sequence: u64) -> Result<bool, Errno>;
}

/// Measures each way on this thread for half of `time`. The result is the fastest round.
pub(crate) fn measure(size: usize, time: Duration) -> anyhow::Result<WriteCosts> {
    let header = FrameHeader::message(size);
    let mut mapped = Mapped { memory: SendMemory::new(&"ipc:///reader".parse()?, 0)? };
    Ok(WriteCosts {
        private: fastest(size, time / 2, &mut Private { header, written: 0 })?,
        mapped: fastest(size, time / 2, &mut mapped)?,
    })
}

/// Measures the writes, and reads from the socket without measuring.
fn fastest(size: usize, time: Duration, way: &mut impl Way) -> anyhow::Result<f64> {
    let (ours, mut theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    theirs.set_nonblocking(true)?;
    let mut sink = vec![0; 1 << 20];
    let frames: Vec<Bytes> = (0..FRAMES).map(|byte| Bytes::from(vec![byte as u8; size])).collect();
    let until = Instant::now() + time;
    let (mut fastest, mut sequence) = (f64::INFINITY, 0);
    while Instant::now() < until {
        let mut spent = Duration::ZERO;
        for frame in &frames {
            sequence += 1;
            let mut is_begun = false;
            loop {
                let begun = Instant::now();
                if !std::mem::replace(&mut is_begun, true) {
                    way.begin(frame, sequence);
                }
                let written = way.write(&ours, frame, sequence);
                spent += begun.elapsed();
                while theirs.read(&mut sink).is_ok_and(|bytes| bytes > 0) {}
                match written {
                    Ok(true) => break,
                    Ok(false) | Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error).context("write"),
                }
            }
        }
        fastest = fastest.min(spent.as_nanos() as f64 / FRAMES as f64);
    }
    Ok(fastest)
}

struct Private {
    header: FrameHeader,
    /// Bytes of the frame and its header that the kernel has.
    written: usize,
}

impl Way for Private {
    fn begin(&mut self, _: &Bytes, _: u64) {
        self.written = 0;
    }

    fn write(&mut self, socket: &UnixStream, frame: &Bytes, _: u64) -> Result<bool, Errno> {
        let header = self.header.as_bytes();
        let head = &header[self.written.min(header.len())..];
        let rest = &frame[self.written.saturating_sub(header.len())..];
        self.written += rustix::io::writev(socket, &[IoSlice::new(head), IoSlice::new(rest)])?;
        Ok(self.written == header.len() + frame.len())
    }
}

struct Mapped {
    memory: SendMemory,
}

impl Way for Mapped {
    fn begin(&mut self, frame: &Bytes, sequence: u64) {
        assert!(self.memory.append_frame(sequence, true, frame), "the memory has room");
    }

    fn write(&mut self, socket: &UnixStream, _: &Bytes, sequence: u64) -> Result<bool, Errno> {
        self.memory.write(socket)?;
        self.memory.save(sequence.saturating_sub(UNFINISHED), true, &[sequence; 11]);
        Ok(self.memory.unwritten() == 0)
    }
}
