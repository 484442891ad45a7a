//! Words from one writer to many readers, in safe code, without a lock.
//!
//! Two copies and a version: the writer fills the copy that is not shown, then shows it. A writer that is put off the CPU in
//! the middle leaves the shown copy alone, so a reader never waits for it. A reader tries again only when a newer
//! write was shown while it took some twenty words. (The kernel calls it `seqcount_latch`.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

struct Latch<const N: usize> {
    version: AtomicU64,
    copies: [[AtomicU64; N]; 2],
}

/// The end that writes; there is one.
pub(crate) struct Writer<const N: usize>(Arc<Latch<N>>);

/// An end that reads.
pub(crate) struct Reader<const N: usize>(Arc<Latch<N>>);

impl<const N: usize> Clone for Reader<N> {
    fn clone(&self) -> Self {
        Reader(Arc::clone(&self.0))
    }
}

/// Both ends of a latch that holds zeros.
pub(crate) fn latch<const N: usize>() -> (Writer<N>, Reader<N>) {
    let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
    let latch = Arc::new(Latch { version: AtomicU64::new(0), copies: [zeros(), zeros()] });
    (Writer(Arc::clone(&latch)), Reader(latch))
}

impl<const N: usize> Writer<N> {
    pub(crate) fn write(&mut self, words: &[u64; N]) {
        let version = self.0.version.load(Ordering::Relaxed) + 1;
        // A reader that sees any word of this write sees, after its own fence, at least the version before it: that the
        // copy it read was no longer the shown one.
        fence(Ordering::Release);
        for (to, word) in self.0.copies[(version & 1) as usize].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        self.0.version.store(version, Ordering::Release);
    }
}

impl<const N: usize> Reader<N> {
    /// What `make` makes of the words. It may be called with words of different writes, and is then called again.
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
    fn readers_see_whole_writes_only_and_never_an_older_one_after_a_newer() {
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
