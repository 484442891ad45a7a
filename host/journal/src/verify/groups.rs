//! Groups what is wrong by its cause: a stop that lost two frames is one line, not one for every request that lacks a token.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Problem, Report, What};
use crate::position::{RequestNo, SegmentId};

/// Problems of one kind, and where tokens are concerned of one run of the process. Displays as one sentence.
#[derive(Clone, Debug)]
pub struct Cause<'a> {
    /// In order of segments; never empty.
    pub problems: Vec<&'a Problem>,
}

impl Report {
    /// What is wrong, by cause, the first that shows first.
    pub fn causes(&self) -> Vec<Cause<'_>> {
        let mut causes: Vec<Cause<'_>> = Vec::new();
        let mut known = BTreeMap::new();
        for problem in &self.problems {
            let at = *known.entry(self.key(problem)).or_insert_with(|| {
                causes.push(Cause { problems: Vec::new() });
                causes.len() - 1
            });
            if let Some(cause) = causes.get_mut(at) {
                cause.problems.push(problem);
            }
        }
        causes
    }

    fn key(&self, problem: &Problem) -> (u8, usize) {
        let run = || self.runs.partition_point(|began: &SegmentId| *began <= problem.segment);
        match problem.what {
            What::MissingSegments(_) => (0, 0),
            What::Emptied { .. } => (1, 0),
            What::Header => (2, 0),
            What::Cut { .. } => (3, 0),
            What::Corrupt { .. } => (4, 0),
            What::MissingFrames { .. } => (5, 0),
            What::RepeatedFrame { .. } => (6, 0),
            What::NoOutcome { .. } => (7, 0),
            What::Summary { .. } => (8, 0),
            What::Tokens { .. } => (9, run()),
            What::Gap { .. } => (10, run()),
        }
    }
}

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.problems.first() else { return Ok(()) };
        let count = self.problems.len();
        if count == 1 {
            return write!(f, "{first}");
        }
        let requests = self.problems.iter().filter_map(|problem| request(&problem.what));
        let requests = requests.collect::<BTreeSet<_>>().len();
        match &first.what {
            What::Gap { .. } => write!(f, "{count} gaps in {requests} requests, the first: {first}"),
            What::Tokens { .. } => {
                write!(
                    f,
                    "{requests} requests: the tokens received are not those counted, the first: {first}"
                )
            }
            What::MissingFrames { .. } => {
                let frames: u64 = self.problems.iter().map(|problem| frames(&problem.what)).sum();
                write!(f, "{frames} frames are missing in {count} places, the first: {first}")
            }
            What::NoOutcome { .. } => {
                let frames: u64 = self.problems.iter().map(|problem| frames(&problem.what)).sum();
                write!(f, "{frames} frames have no outcome, in {count} places, the first: {first}")
            }
            _ => write!(f, "{first}, and {} more like it", count - 1),
        }
    }
}

fn request(what: &What) -> Option<RequestNo> {
    match what {
        What::Gap { request, .. } | What::Tokens { request, .. } => Some(*request),
        _ => None,
    }
}

fn frames(what: &What) -> u64 {
    match what {
        What::MissingFrames { from, through } | What::NoOutcome { from, through } => {
            through.0.saturating_sub(from.0) + 1
        }
        _ => 0,
    }
}
