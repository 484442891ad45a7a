//! Outputs with a loop.

use stop_loop::detector::{GRACE, Kind};

use crate::random::Random;
use crate::texts::{code, prose, tables};
use crate::tokens::{Digits, tokens};

/// An output that is a loop from some id on.
pub struct Looped {
    pub ids: Vec<u32>,
    /// The number of ids before the loop.
    pub begin: usize,
    kind: Kind,
    period: usize,
}

impl Looped {
    /// The number of ids up to the end of the fourth turn.
    pub fn fourth_turn(&self) -> usize {
        self.begin + 4 * self.kind.turn(self.period)
    }

    /// Whether a stop after this many ids is in the loop, and at most 32 ids after the fourth turn. Where ids
    /// differ, the loop is known a few periods late, and is judged once more only in 64 ids.
    pub fn is_in_time(&self, count: usize) -> bool {
        let more = match self.kind {
            Kind::Varied => 5 * self.period + 64,
            _ => 0,
        };
        (self.begin..=self.fourth_turn() + GRACE + more).contains(&count)
    }
}

type Make = fn(&mut Random) -> Looped;

pub const SORTS: [(&str, Make); 5] = [
    ("exact, period 8 to 128", exact),
    ("2 to 7 different ids", monotonous),
    ("1 of 24 to 64 ids differs a turn, period 24 to 128", varied),
    ("one id", one_token),
    ("white space and other outputs of three ids", low_entropy),
];

/// The ids of a text of any family, and their number.
fn before(random: &mut Random) -> (Vec<u32>, usize) {
    let text = prose(random);
    let mut ids = tokens(&text, Digits::Single);
    ids.truncate(random.from(0, 400));
    let begin = ids.len();
    (ids, begin)
}

fn different(ids: &[u32]) -> usize {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// The ids of a turn: a part of a text, with at least 8 different ids.
fn body(random: &mut Random, least: usize, most: usize) -> Vec<u32> {
    let period = random.from(least, most);
    loop {
        let write = [prose, code, tables][random.from(0, 2)];
        let ids = tokens(&write(random), Digits::Single);
        if ids.len() < period {
            continue;
        }
        let from = random.from(0, ids.len() - period);
        let body = &ids[from..from + period];
        let is_one_turn = (1..period).all(|at| body[at..] != body[..period - at] || period % at != 0);
        if different(body) >= 8 && is_one_turn {
            return body.to_vec();
        }
    }
}

fn repeated(random: &mut Random, body: &[u32], length: usize, kind: Kind) -> Looped {
    let (mut ids, begin) = before(random);
    ids.extend(body.iter().copied().cycle().take(length));
    Looped { ids, begin, kind, period: body.len() }
}

fn exact(random: &mut Random) -> Looped {
    let body = body(random, 8, 128);
    repeated(random, &body, 2_000, Kind::Exact)
}

fn monotonous(random: &mut Random) -> Looped {
    let (period, kinds) = (random.from(2, 128), random.from(2, 7) as u64);
    let mut body: Vec<u32> = (0..period).map(|_| 100 + (random.next() % kinds) as u32).collect();
    (body[0], body[1]) = (1, 2);
    body[2..].iter_mut().filter(|id| **id > 105).for_each(|id| *id = 105);
    let kind = if period < 8 { Kind::Phrase } else { Kind::Monotonous };
    repeated(random, &body, 4_000, kind)
}

fn one_token(random: &mut Random) -> Looped {
    let id = random.next() as u32 % 151_000;
    repeated(random, &[id], 1_000, Kind::OneToken)
}

fn varied(random: &mut Random) -> Looped {
    let body = body(random, 24, 128);
    let (mut ids, begin) = before(random);
    while ids.len() < begin + 4_000 {
        let turn = ids.len();
        ids.extend_from_slice(&body);
        for _ in 0..(body.len() / 32).max(1) {
            ids[turn + random.from(0, body.len() - 1)] = random.next() as u32 % 151_000;
        }
    }
    Looped { ids, begin, kind: Kind::Varied, period: body.len() }
}

fn low_entropy(random: &mut Random) -> Looped {
    let (mut ids, begin) = before(random);
    let some: Vec<u32> = (0..random.from(2, 3)).map(|_| random.next() as u32 % 151_000).collect();
    for _ in 0..29_000 {
        ids.push(some[random.from(0, some.len() - 1)]);
    }
    Looped { ids, begin, kind: Kind::LowEntropy, period: 0 }
}
