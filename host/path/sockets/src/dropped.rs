//! A run of frames that were dropped because a queue was full.

/// The frames that a subscriber or tap missed since its queue last had room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The first one's number.
    pub first: u64,
    /// The last one's number.
    pub last: u64,
    /// How many frames. Numbers between `first` and `last` may be of frames that it had not asked for.
    pub frames: u64,
}

impl Dropped {
    /// Adds one frame to the run. Returns true if it is the first.
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
