//! Frames that found no room, from the first to the last.

/// What somebody was not given, since there was room for the last time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The number of the first.
    pub first: u64,
    /// The number of the last.
    pub last: u64,
    /// How many: there may be others in between that nobody wanted.
    pub frames: u64,
}

impl Dropped {
    /// One more is dropped. True: it is the first.
    pub fn note(dropped: &mut Option<Dropped>, number: u64) -> bool {
        let Some(so_far) = dropped else {
            *dropped = Some(Dropped { first: number, last: number, frames: 1 });
            return true;
        };
        so_far.last = number;
        so_far.frames += 1;
        false
    }
}
