//! Since when requests are shared out among which sinks.
//!
//! A reload may bring other sinks. A request stays with the reader that has its beginning, and a frame that comes back from the
//! journal is shared out as it was at first: so how it was before is kept while somebody may need it. The numbers of requests
//! and of frames ascend and are never used twice, so an epoch is the first of each.

use super::{Reader, Target};
use afterbay_config::Takes;
use afterbay_journal::FrameNo;
use serde::{Deserialize, Serialize};

/// In place of a sink that is gone: it has all it was to get.
pub(crate) const GONE: u32 = u32::MAX;

/// From some request on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// The first request of it,
    pub(super) requests: u64,
    /// and the first frame, for what has no request.
    pub(super) frames: FrameNo,
    pub(super) among: Among,
    /// None of its requests lives, and none has a row past this frame.
    over: Option<FrameNo>,
}

/// Sinks, by their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Among {
    /// Those that share the requests, in the order of the configuration.
    pub(super) readers: Vec<u32>,
    /// Those of single tokenizers, as rows name them.
    pub(super) workers: Vec<(String, u32)>,
    /// That past the detokenizer.
    pub(super) skipped: Option<u32>,
    /// Those that plugins name.
    routed: Vec<(String, u32)>,
}

impl Among {
    /// In the order of the configuration.
    pub(super) fn new<'t>(sinks: impl Iterator<Item = (u32, &'t Target)>) -> Among {
        let mut among = Among::default();
        for (place, sink) in sinks {
            match sink.takes {
                Takes::Share => among.readers.push(place),
                Takes::Worker => among.workers.extend(sink.worker.clone().map(|worker| (worker, place))),
                Takes::Skipped => among.skipped = Some(place),
                Takes::Routed => among.routed.push((sink.name.to_string(), place)),
            }
        }
        among
    }

    /// The reader of a request.
    pub(super) fn reader(&self, key: impl FnOnce() -> u32) -> u32 {
        match self.readers[..] {
            [] => 0,
            [only] => only,
            ref readers => readers[key() as usize % readers.len()],
        }
    }

    /// The reader of a request, as far as is known whom its rows are for.
    pub(super) fn reader_if_known(&self, of: &Reader) -> Option<u32> {
        match (&self.readers[..], of.key) {
            (_, Some(key)) => Some(self.worker(|| Some(&of.worker)).unwrap_or_else(|| self.reader(|| key))),
            ([only], None) if self.workers.is_empty() => Some(*only),
            (_, None) => None,
        }
    }

    /// The sink of the tokenizer that a row names. Not asked where none has one.
    pub(super) fn worker<'n>(&self, name: impl FnOnce() -> Option<&'n str>) -> Option<u32> {
        if self.workers.is_empty() {
            return None;
        }
        let name = name()?;
        Some(self.workers.iter().find(|(known, _)| known == name)?.1)
    }

    /// Rows of a request with this key, or of any request, may go to the reader at this place: two names may have one key.
    pub(super) fn may_read(&self, place: u32, key: Option<u32>) -> bool {
        let is_worker = |(name, at): &(String, u32)| {
            *at == place && key.is_none_or(|key| key == crc32fast::hash(name.as_bytes()))
        };
        let is_reader = match key {
            Some(key) => self.reader(|| key) == place,
            None => self.readers.contains(&place),
        };
        is_reader || self.workers.iter().any(is_worker)
    }

    /// The sink that plugins call so.
    pub(super) fn routed(&self, name: &str) -> Option<u32> {
        Some(self.routed.iter().find(|(known, _)| known == name)?.1)
    }

    fn places(&mut self) -> impl Iterator<Item = &mut u32> {
        let named = self.workers.iter_mut().chain(&mut self.routed).map(|(_, place)| place);
        self.readers.iter_mut().chain(&mut self.skipped).chain(named)
    }
}

/// The present epoch, and those before it that somebody may need.
pub(crate) struct Epochs {
    /// The oldest first.
    past: Vec<Epoch>,
    now: Epoch,
}

impl Epochs {
    /// One, from the beginning on.
    pub(super) fn new(among: Among) -> Epochs {
        Epochs { past: Vec::new(), now: Epoch { requests: 0, frames: FrameNo(0), among, over: None } }
    }

    /// It is not always as it is now.
    pub(super) fn has_past(&self) -> bool {
        !self.past.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.past.len() + 1
    }

    /// From these numbers on it is so.
    pub(super) fn begin(&mut self, requests: u64, frames: FrameNo, among: Among) {
        if among == self.now.among {
            return;
        }
        let next = Epoch { requests, frames, among, over: None };
        self.past.push(std::mem::replace(&mut self.now, next));
    }

    /// As it is for a request; of one without a number, as it was when its frame came.
    pub(super) fn of(&self, frame: FrameNo, request: u64) -> &Among {
        match request {
            0 => self.find(|epoch| epoch.frames <= frame),
            _ => self.find(|epoch| epoch.requests <= request),
        }
    }

    /// As it was when a frame came.
    pub(super) fn of_frame(&self, frame: FrameNo) -> &Among {
        self.of(frame, 0)
    }

    fn find(&self, has_begun: impl Fn(&Epoch) -> bool) -> &Among {
        if self.past.is_empty() || has_begun(&self.now) {
            return &self.now.among;
        }
        let found = self.past.iter().rfind(|epoch| has_begun(epoch));
        &found.or(self.past.first()).unwrap_or(&self.now).among
    }

    /// Since which request the sink past the detokenizer is the present one; `None`: there is none.
    pub(super) fn skipped_since(&self) -> Option<u64> {
        let place = self.now.among.skipped?;
        let before = self.past.iter().rev().take_while(|epoch| epoch.among.skipped == Some(place));
        Some(before.last().unwrap_or(&self.now).requests)
    }

    /// The sink at this place is gone, those behind it move up.
    pub(super) fn remove(&mut self, gone: u32) {
        let epochs = self.past.iter_mut().chain([&mut self.now]);
        for place in epochs.flat_map(|epoch| epoch.among.places()).filter(|place| **place != GONE) {
            match (*place).cmp(&gone) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => *place = GONE,
                std::cmp::Ordering::Greater => *place -= 1,
            }
        }
    }

    /// Lets go of what nobody needs any more: the oldest request that lives is this one, frames up to `through` have gone on, and
    /// up to `taken` they are with all sinks, so that no start reads them back. One that names a sink that leaves stays.
    pub(super) fn pass(
        &mut self,
        oldest: Option<u64>,
        through: FrameNo,
        taken: FrameNo,
        leaves: impl Fn(u32) -> bool,
    ) {
        while let Some((first, rest)) = self.past.split_first_mut() {
            let next = rest.first().unwrap_or(&self.now).requests;
            if oldest.is_none_or(|oldest| oldest >= next) {
                first.over.get_or_insert(through);
            }
            let is_over = first.over.is_some_and(|over| over <= taken);
            if !is_over || first.among.places().any(|place| leaves(*place)) {
                return;
            }
            self.past.remove(0);
        }
    }
}

/// How requests are shared out, for the next start: the file `SHARES` of the stream's journal.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shares {
    /// The oldest first.
    epochs: Vec<Written>,
    /// The sinks that are to go once they have all they were to get.
    pub(crate) leaving: Vec<Leaving>,
}

/// An epoch with the sinks' names in the journal; `null` in place of one that is gone.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    requests: u64,
    frames: u64,
    readers: Vec<Option<String>>,
    /// Behind the name that rows say.
    workers: Vec<(String, Option<String>)>,
    /// At most one.
    skipped: Vec<Option<String>>,
    /// Behind the name that plugins say.
    routed: Vec<(String, Option<String>)>,
}

/// A sink that is not in the configuration any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leaving {
    pub(crate) name: String,
    pub(crate) kept_as: String,
    pub(crate) connect: String,
    pub(crate) credit: Option<std::path::PathBuf>,
}

impl Shares {
    /// With the sinks in their places, and those that leave.
    pub(super) fn new(epochs: &Epochs, sinks: &[Target], leaving: Vec<Leaving>) -> Shares {
        let name = |place: &u32| Some(sinks.get(*place as usize)?.kept_as.clone());
        let named =
            |of: &[(String, u32)]| of.iter().map(|(said, place)| (said.clone(), name(place))).collect();
        let written = |epoch: &Epoch| Written {
            requests: epoch.requests,
            frames: epoch.frames.0,
            readers: epoch.among.readers.iter().map(name).collect(),
            skipped: epoch.among.skipped.iter().map(name).collect(),
            workers: named(&epoch.among.workers),
            routed: named(&epoch.among.routed),
        };
        Shares { epochs: epochs.past.iter().chain([&epochs.now]).map(written).collect(), leaving }
    }

    /// The sinks in it that are not gone, by their names in the journal.
    pub(crate) fn sinks(&self) -> impl Iterator<Item = &str> {
        let names = self.epochs.iter().flat_map(|epoch| {
            let named = epoch.workers.iter().chain(&epoch.routed).map(|(_, name)| name);
            epoch.readers.iter().chain(&epoch.skipped).chain(named)
        });
        names.filter_map(Option::as_deref)
    }

    /// One of them is.
    pub(crate) fn is_gone(&mut self, kept_as: &str) {
        for epoch in &mut self.epochs {
            let named = epoch.workers.iter_mut().chain(&mut epoch.routed).map(|(_, name)| name);
            let names = epoch.readers.iter_mut().chain(&mut epoch.skipped).chain(named);
            names.for_each(|name| drop(name.take_if(|name| name == kept_as)));
        }
    }

    /// What kind of sink one of these was.
    pub(crate) fn takes(&self, kept_as: &str) -> Option<Takes> {
        let is = |name: &Option<String>| name.as_deref() == Some(kept_as);
        self.epochs.iter().find_map(|epoch| match epoch {
            epoch if epoch.readers.iter().any(is) => Some(Takes::Share),
            epoch if epoch.skipped.iter().any(is) => Some(Takes::Skipped),
            epoch if epoch.routed.iter().any(|(_, name)| is(name)) => Some(Takes::Routed),
            epoch if epoch.workers.iter().any(|(_, name)| is(name)) => Some(Takes::Worker),
            _ => None,
        })
    }

    /// The epochs with the sinks at their places, as `place` finds them. `None`: one is not to be found.
    pub(super) fn epochs(&self, place: impl Fn(&str) -> Option<u32>) -> Option<Epochs> {
        let find = |name: &Option<String>| name.as_deref().map_or(Some(GONE), &place);
        let epoch = |written: &Written| {
            let skipped = match &written.skipped[..] {
                [] => None,
                [name, ..] => Some(find(name)?),
            };
            let named = |of: &[(String, Option<String>)]| {
                of.iter().map(|(said, name)| Some((said.clone(), find(name)?))).collect::<Option<_>>()
            };
            let readers = written.readers.iter().map(find).collect::<Option<_>>()?;
            let (workers, routed) = (named(&written.workers)?, named(&written.routed)?);
            let among = Among { readers, workers, skipped, routed };
            Some(Epoch { requests: written.requests, frames: FrameNo(written.frames), among, over: None })
        };
        let mut past: Vec<Epoch> = self.epochs.iter().map(epoch).collect::<Option<_>>()?;
        let now = past.pop()?;
        Some(Epochs { past, now })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readers(places: &[u32]) -> Among {
        Among { readers: places.to_vec(), ..Among::default() }
    }

    #[test]
    fn a_request_is_of_the_epoch_of_its_number_and_what_has_none_of_its_frame_s() {
        let mut epochs = Epochs::new(readers(&[0]));
        epochs.begin(10, FrameNo(100), readers(&[0, 1]));
        epochs.begin(20, FrameNo(200), readers(&[0, 1]));
        assert_eq!(epochs.len(), 2, "as it was is no change");
        epochs.begin(20, FrameNo(200), readers(&[1]));
        let of = |request, frame| epochs.of(FrameNo(frame), request).readers.clone();
        assert_eq!(
            [of(9, 300), of(10, 1), of(19, 300), of(20, 1)],
            [vec![0], vec![0, 1], vec![0, 1], vec![1]]
        );
        assert_eq!(
            [of(0, 99), of(0, 100), of(0, 199), of(0, 200)],
            [vec![0], vec![0, 1], vec![0, 1], vec![1]]
        );
    }

    #[test]
    fn the_place_of_a_sink_that_is_gone_stays_empty_and_those_behind_it_move_up() {
        let mut epochs = Epochs::new(readers(&[2, 0, 1]));
        epochs.begin(10, FrameNo(100), readers(&[2, 1]));
        epochs.remove(0);
        epochs.remove(0);
        assert_eq!(epochs.of(FrameNo(1), 1).readers, [0, GONE, GONE]);
        assert_eq!(epochs.of(FrameNo(1), 10).readers, [0, GONE]);
    }

    #[test]
    fn an_epoch_is_kept_until_its_requests_have_ended_and_all_sinks_have_taken_what_there_was_of_them() {
        let mut epochs = Epochs::new(readers(&[0]));
        epochs.begin(10, FrameNo(100), readers(&[0, 1]));
        let mut pass = |oldest, through, taken, leaves: Option<u32>| {
            epochs.pass(oldest, FrameNo(through), FrameNo(taken), |place| Some(place) == leaves);
            epochs.has_past()
        };
        assert!(pass(Some(9), 150, 150, None), "one of it lives");
        assert!(pass(Some(10), 160, 159, None), "its last frame is not taken");
        assert!(pass(None, 170, 160, Some(0)), "one of its sinks leaves");
        assert!(!pass(Some(12), 180, 160, None));
    }

    #[test]
    fn how_it_is_comes_back_with_a_start_unless_a_sink_is_not_to_be_found() {
        let sink = |name: &str, takes| Target {
            name: name.into(),
            kept_as: format!("{name}@1"),
            takes,
            worker: (takes == Takes::Worker).then(|| format!("ipc:///{name}")),
            leaves: false,
        };
        let takes = [Takes::Share, Takes::Share, Takes::Routed, Takes::Worker];
        let sinks: Vec<Target> =
            ["a", "b", "c", "d"].into_iter().zip(takes).map(|(name, takes)| sink(name, takes)).collect();
        let mut epochs = Epochs::new(Among { skipped: Some(GONE), ..readers(&[0, GONE]) });
        epochs.begin(10, FrameNo(100), Among::new((0..).zip(&sinks)));
        let shares = Shares::new(&epochs, &sinks, Vec::new());
        let text = serde_json::to_string(&shares).unwrap();
        let mut again: Shares = serde_json::from_str(&text).unwrap();
        assert_eq!(again, shares);
        let place = |name: &str| Some(sinks.iter().position(|sink| sink.kept_as == name)? as u32);
        let found = again.epochs(place).unwrap();
        assert_eq!((&found.past, &found.now), (&epochs.past, &epochs.now));
        assert_eq!([again.takes("c@1"), again.takes("d@1")], [Some(Takes::Routed), Some(Takes::Worker)]);
        let without = |name: &str| place(name).filter(|place| *place != 1);
        assert!(again.epochs(without).is_none());
        again.is_gone("b@1");
        assert_eq!(again.epochs(without).unwrap().now.among.readers, [0, GONE]);
    }
}
