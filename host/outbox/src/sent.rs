//! What has left and is not taken yet, and how far the frames that came are done with.

use std::collections::VecDeque;

/// A frame's place among all that were put in, counted from 0.
pub(crate) type Place = u64;

/// A frame that came, until everything of it is taken.
#[derive(Debug)]
struct Source {
    /// The journal's number of it.
    frame: u64,
    /// Parts of it (rows, or the whole) that are not taken.
    left: u32,
}

/// A frame that has left.
#[derive(Debug)]
struct Sent {
    sequence: u64,
    /// Of which frames, and how many parts of each.
    of: Vec<(Place, u32)>,
}

/// The frames between their arrival and their being taken.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    sources: VecDeque<Source>,
    /// The place of `sources[0]`.
    first: Place,
    sent: VecDeque<Sent>,
    sequence: u64,
    /// Up to this number it is.
    taken: u64,
    /// Of the next frame some has left already, up to this number.
    rest_of: Option<u64>,
    /// Every frame up to this one is done with.
    done: u64,
}

impl Outstanding {
    pub(crate) fn new(sequence: u64, done: u64) -> Outstanding {
        Outstanding { sequence, done, ..Outstanding::default() }
    }

    /// A frame of so many parts; with none it is done with as soon as those before it are.
    pub(crate) fn came(&mut self, frame: u64, parts: u32) -> Place {
        let place = self.first + self.sources.len() as u64;
        let before = self.rest_of.take().filter(|sequence| *sequence > self.taken);
        if let Some(sequence) = before {
            let at = self.sent.partition_point(|sent| sent.sequence <= sequence);
            self.sent.insert(at, Sent { sequence, of: vec![(place, 1)] });
        }
        self.sources.push_back(Source { frame, left: parts + u32::from(before.is_some()) });
        self.pass();
        place
    }

    /// The frame that comes next has a part more, which left with `sequence`.
    pub(crate) fn rest_of(&mut self, sequence: u64) {
        self.rest_of = Some(sequence);
    }

    /// A frame leaves with so many parts of these: its number among those that leave.
    pub(crate) fn leaves(&mut self, of: Vec<(Place, u32)>) -> u64 {
        self.sequence += 1;
        self.sent.push_back(Sent { sequence: self.sequence, of });
        self.sequence
    }

    /// Everything that left up to this number is taken.
    pub(crate) fn taken(&mut self, through: u64) {
        self.taken = self.taken.max(through);
        while let Some(sent) = self.sent.pop_front_if(|sent| sent.sequence <= through) {
            for (place, parts) in sent.of {
                if let Some(source) = self.source(place) {
                    source.left = source.left.saturating_sub(parts);
                }
            }
        }
        self.pass();
    }

    fn source(&mut self, place: Place) -> Option<&mut Source> {
        self.sources.get_mut(usize::try_from(place.checked_sub(self.first)?).ok()?)
    }

    fn pass(&mut self) {
        while let Some(source) = self.sources.pop_front_if(|source| source.left == 0) {
            self.first += 1;
            self.done = source.frame;
        }
    }

    pub(crate) fn done(&self) -> u64 {
        self.done
    }
}
