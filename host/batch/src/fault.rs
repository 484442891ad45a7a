//! Panics on purpose, so that what they do can be tried. Only in builds with debug assertions, and only where the environment
//! says so: `AFTERBAY_PANIC=SEED:ONE_IN` at one in so many of the places that are marked, `AFTERBAY_PANIC=frame:N` each
//! time that frame N is looked at. `AFTERBAY_PANIC=abort:SEED:ONE_IN` ends the process there, as kill -9 does.

#[cfg(not(debug_assertions))]
mod at {
    /// A place where a panic may be.
    #[inline(always)]
    pub fn point(_name: &str) {}

    /// The same, with this frame in hand.
    #[inline(always)]
    pub fn frame(_number: u64) {}
}

#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "that is what it is for")]
mod at {
    use std::cell::Cell;

    #[derive(Clone, Copy)]
    enum When {
        Never,
        OneIn { random: u64, of: u64, aborts: bool },
        Frame(u64),
    }

    thread_local! {
        static WHEN: Cell<When> = Cell::new(said().unwrap_or(When::Never));
    }

    fn said() -> Option<When> {
        let said = std::env::var("AFTERBAY_PANIC").ok()?;
        let (aborts, said) = said.strip_prefix("abort:").map_or((false, &*said), |rest| (true, rest));
        let (seed, of) = said.split_once(':')?;
        let of = of.parse().ok().filter(|of| *of > 0)?;
        Some(match seed {
            "frame" => When::Frame(of),
            seed => When::OneIn { random: seed.parse().ok()?, of, aborts },
        })
    }

    pub fn point(name: &str) {
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
            panic!("on purpose, at {name:?}");
        }
    }

    pub fn frame(number: u64) {
        if matches!(WHEN.get(), When::Frame(at) if at == number) {
            panic!("on purpose, at frame {number}");
        }
    }
}

pub use at::{frame, point};
