//! Passes words from one writer to many readers, in safe code and without a lock.
//!
//! The latch has two copies and a version. The writer fills the hidden copy and then makes it the visible
//! one. If the writer is descheduled in the middle, the visible copy stays valid, and readers never wait for
//! it. A reader retries only if a newer write became visible during its read. (The kernel calls this
//! `seqcount_latch`.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

struct Latch<const N: usize> {
    version: AtomicU64,
    copies: [[AtomicU64; N]; 2],
}

/// The writer's end, of which there is one.
pub(crate) struct LatchWriter<const N: usize>(Arc<Latch<N>>);

/// A reader's end.
pub(crate) struct LatchReader<const N: usize>(Arc<Latch<N>>);

impl<const N: usize> Clone for LatchReader<N> {
    fn clone(&self) -> Self {
        LatchReader(Arc::clone(&self.0))
    }
}

/// Creates both ends of a latch of zeros.
pub(crate) fn latch<const N: usize>() -> (LatchWriter<N>, LatchReader<N>) {
    let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
    let latch = Arc::new(Latch { version: AtomicU64::new(0), copies: [zeros(), zeros()] });
    (LatchWriter(Arc::clone(&latch)), LatchReader(latch))
}

impl<const N: usize> LatchWriter<N> {
    pub(crate) fn write(&mut self, words: &[u64; N]) {
        let version = self.0.version.load(Ordering::Relaxed) + 1;
        // A reader that sees any word of this write also sees, after its own fence, at least the previous
        // version. It then knows that its copy is no longer the visible one.
        fence(Ordering::Release);
        for (to, word) in self.0.copies[(version & 1) as usize].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        self.0.version.store(version, Ordering::Release);
    }
}

impl<const N: usize> LatchReader<N> {
    /// Returns the result of `make` for the words. `make` may see words of different writes and is then
    /// called again.
    #[inline]
    pub(crate) fn read<T>(&self, make: impl Fn(&[AtomicU64; N]) -> T) -> T {
        loop {
            let version = self.0.version.load(Ordering::Acquire);
            let made = make(&self.0.copies[(version & 1) as usize]);
            fence(Ordering::Acquire);
            if self.0.version.load(Ordering::Relaxed) == version {
                return made;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn copy<const N: usize>(words: &[AtomicU64; N]) -> [u64; N] {
        std::array::from_fn(|n| words[n].load(Ordering::Relaxed))
    }

    #[test]
    fn readers_see_only_whole_writes_in_order() {
        let (mut writer, reader) = latch::<24>();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (reader, mut last, mut reads) = (reader.clone(), 0, 0u64);
                        while !stop.load(Ordering::Relaxed) {
                            let words = reader.read(copy);
                            assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                            assert!(words[0] >= last, "{} after {last}", words[0]);
                            (last, reads) = (words[0], reads + 1);
                        }
                        reads
                    })
                })
                .collect();
            for n in 1..=300_000 {
                writer.write(&[n; 24]);
            }
            stop.store(true, Ordering::Relaxed);
            for reads in readers {
                assert!(reads.join().unwrap() > 0);
            }
        });
        assert_eq!(reader.read(copy), [300_000; 24]);
    }
}
