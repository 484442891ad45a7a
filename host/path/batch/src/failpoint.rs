//! Injected panics, so that tests can try the recovery from a panic. Only in builds with debug assertions, and only if the
//! environment variable `AFTERBAY_PANIC` is set:
//!
//! - `SEED:ONE_IN` panics at one in ONE_IN failpoints, chosen at random.
//! - `frame:N` panics each time that frame N is handled.
//! - `abort:SEED:ONE_IN` ends the process at one in ONE_IN failpoints, as `kill -9` does.
//!
//! A simulation sets the same for its own thread: [`panic_at_one_in`].

use std::any::Any;

/// The payload of an unwinding that stands for the death of the process. A stream does not recover from it. Only simulations,
/// in builds with debug assertions, unwind with this payload.
#[derive(Clone, Copy, Debug)]
pub struct Crash;

/// Whether an unwinding stands for the death of the process.
pub fn is_crash(payload: &(dyn Any + Send)) -> bool {
    cfg!(debug_assertions) && payload.is::<Crash>()
}

#[cfg(not(debug_assertions))]
mod inject {
    /// A failpoint of this name.
    #[inline(always)]
    pub fn at(_name: &str) {}

    /// A failpoint at which this frame is handled.
    #[inline(always)]
    pub fn at_frame(_number: u64) {}

    /// Does nothing in this build.
    pub fn panic_at_one_in(_seed: u64, _of: u64) {}

    /// 0: no failpoint panics in this build.
    pub fn one_in() -> u64 {
        0
    }
}

#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "the purpose of the module")]
mod inject {
    use std::cell::Cell;

    #[derive(Clone, Copy)]
    enum When {
        Never,
        OneIn { random: u64, of: u64, aborts: bool },
        Frame(u64),
    }

    thread_local! {
        static WHEN: Cell<When> = Cell::new(configured().unwrap_or(When::Never));
    }

    fn configured() -> Option<When> {
        let value = std::env::var("AFTERBAY_PANIC").ok()?;
        let (aborts, value) = value.strip_prefix("abort:").map_or((false, &*value), |rest| (true, rest));
        let (seed, of) = value.split_once(':')?;
        let of = of.parse().ok().filter(|of| *of > 0)?;
        Some(match seed {
            "frame" => When::Frame(of),
            seed => When::OneIn { random: seed.parse().ok()?, of, aborts },
        })
    }

    /// From now on, this thread panics at one in `of` failpoints, chosen by `seed`. 0 for never.
    pub fn panic_at_one_in(seed: u64, of: u64) {
        WHEN.set(if of == 0 { When::Never } else { When::OneIn { random: seed, of, aborts: false } });
    }

    /// One in this many failpoints panics on this thread. 0 for none.
    pub fn one_in() -> u64 {
        if let When::OneIn { of, .. } = WHEN.get() { of } else { 0 }
    }

    /// A failpoint of this name.
    pub fn at(name: &str) {
        let When::OneIn { random, of, aborts } = WHEN.get() else { return };
        // SplitMix64.
        let random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        WHEN.set(When::OneIn { random, of, aborts });
        let mixed = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if (mixed ^ (mixed >> 31)).is_multiple_of(of) {
            if aborts {
                std::process::abort();
            }
            panic!("injected at {name:?}");
        }
    }

    /// A failpoint at which this frame is handled.
    pub fn at_frame(number: u64) {
        if matches!(WHEN.get(), When::Frame(frame) if frame == number) {
            panic!("injected at frame {number}");
        }
    }
}

pub use inject::{at, at_frame, one_in, panic_at_one_in};
