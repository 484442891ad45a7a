//! Groups problems by cause: a stop that lost two frames is one line, not one line per request that lacks a
//! token.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{JournalProblem, ProblemKind, VerifyReport};
use crate::position::{RequestNo, SegmentId};

/// Problems of one kind. Problems with tokens are also of one run of the process. Displays as one sentence.
#[derive(Clone, Debug)]
pub struct ProblemGroup<'a> {
    /// Problems in order of segments; never empty.
    pub problems: Vec<&'a JournalProblem>,
}

impl VerifyReport {
    /// Groups the problems by cause, in order of first appearance.
    pub fn causes(&self) -> Vec<ProblemGroup<'_>> {
        let mut causes: Vec<ProblemGroup<'_>> = Vec::new();
        let mut known = BTreeMap::new();
        for problem in &self.problems {
            let at = *known.entry(self.key(problem)).or_insert_with(|| {
                causes.push(ProblemGroup { problems: Vec::new() });
                causes.len() - 1
            });
            if let Some(cause) = causes.get_mut(at) {
                cause.problems.push(problem);
            }
        }
        causes
    }

    fn key(&self, problem: &JournalProblem) -> (u8, usize) {
        let run = || self.runs.partition_point(|began: &SegmentId| *began <= problem.segment);
        match problem.what {
            ProblemKind::MissingSegments(_) => (0, 0),
            ProblemKind::Emptied { .. } => (1, 0),
            ProblemKind::Header => (2, 0),
            ProblemKind::Cut { .. } => (3, 0),
            ProblemKind::Corrupt { .. } => (4, 0),
            ProblemKind::MissingFrames { .. } => (5, 0),
            ProblemKind::RepeatedFrame { .. } => (6, 0),
            ProblemKind::NoOutcome { .. } => (7, 0),
            ProblemKind::Summary { .. } => (8, 0),
            ProblemKind::Tokens { .. } => (9, run()),
            ProblemKind::Gap { .. } => (10, run()),
        }
    }
}

impl fmt::Display for ProblemGroup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.problems.first() else { return Ok(()) };
        let count = self.problems.len();
        if count == 1 {
            return write!(f, "{first}");
        }
        let requests = self.problems.iter().filter_map(|problem| request(&problem.what));
        let requests = requests.collect::<BTreeSet<_>>().len();
        match &first.what {
            ProblemKind::Gap { .. } => write!(f, "{count} gaps in {requests} requests, the first: {first}"),
            ProblemKind::Tokens { .. } => {
                write!(
                    f,
                    "{requests} requests: the tokens received differ from the scheduler's count, the first: {first}"
                )
            }
            ProblemKind::MissingFrames { .. } => {
                let frames: u64 = self.problems.iter().map(|problem| frames(&problem.what)).sum();
                write!(f, "{frames} frames are missing in {count} places, the first: {first}")
            }
            ProblemKind::NoOutcome { .. } => {
                let frames: u64 = self.problems.iter().map(|problem| frames(&problem.what)).sum();
                write!(f, "{frames} frames have no outcome, in {count} places, the first: {first}")
            }
            _ => write!(f, "{first}, and {} more of this kind", count - 1),
        }
    }
}

fn request(what: &ProblemKind) -> Option<RequestNo> {
    match what {
        ProblemKind::Gap { request, .. } | ProblemKind::Tokens { request, .. } => Some(*request),
        _ => None,
    }
}

fn frames(what: &ProblemKind) -> u64 {
    match what {
        ProblemKind::MissingFrames { from, through } | ProblemKind::NoOutcome { from, through } => {
            through.0.saturating_sub(from.0) + 1
        }
        _ => 0,
    }
}
