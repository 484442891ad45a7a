//! Loops of long blocks without a difference, longer than the history.
//!
//! The ids are cut into pieces where four ids in a row say so. Equal ids are cut into equal pieces, so a block that
//! repeats is a run of pieces that repeats. Only a hash of each piece is kept.

use super::history::History;
use super::{Kind, Loop, PERIOD_MAX, needed};

/// The pieces that are kept: a block of about 4,000 ids.
const KEPT: usize = 256;

/// The most ids of a piece, so that all pieces have less than 2^16. The mean is 16.
const PIECE_MAX: u16 = 256;

/// The hash of a piece without ids.
const NO_IDS: u32 = 1;

/// A piece that is over.
#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    /// 16 bits of the hash of its ids. A block has 32 or more pieces, so a wrong agreement of some does not matter.
    hash: u16,
    /// The place after its last id, modulo 2^16.
    end: u16,
}

/// The last pieces, and the distance at which they repeat.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    pieces: Box<[Piece; KEPT]>,
    count: usize,
    /// The hash of the piece that is not over, and its ids.
    hash: u32,
    ids: u16,
    /// The distance at which the last pieces repeat, in pieces. 0: none.
    distance: usize,
    /// The ids of the loop.
    length: usize,
}

impl Blocks {
    pub(super) fn new() -> Self {
        Self {
            pieces: Box::new([Piece::default(); KEPT]),
            count: 0,
            hash: NO_IDS,
            ids: 0,
            distance: 0,
            length: 0,
        }
    }

    /// Reads the last id of the history. Returns the loop that has made all its turns at the end of a piece.
    pub(super) fn push(&mut self, history: &History, turns: usize) -> Option<Loop> {
        self.hash = (self.hash.rotate_left(5) ^ history.id(0)).wrapping_mul(0x9E37_79B1);
        self.ids += 1;
        if self.ids < PIECE_MAX && !history.ends_piece() {
            return None;
        }
        let hash = std::mem::replace(&mut self.hash, NO_IDS);
        let piece = Piece { hash: (hash >> 16) as u16, end: history.count() as u16 };
        self.pieces[self.count % KEPT] = piece;
        self.count += 1;
        let ids = usize::from(std::mem::take(&mut self.ids));
        if self.distance > 0 && self.piece(self.distance).hash == piece.hash {
            self.length += ids;
        } else {
            self.begin();
        }
        let period = self.ids_of(self.distance);
        let is_over = period > PERIOD_MAX && self.length >= needed(Kind::Exact, period, turns);
        is_over.then_some(Loop { kind: Kind::Exact, period, length: self.length })
    }

    /// Looks for the last piece in the pieces before it, and for how long they repeat at that distance already.
    fn begin(&mut self) {
        let known = self.count.min(KEPT);
        let last = self.piece(0).hash;
        self.distance = (1..known).find(|&back| self.piece(back).hash == last).unwrap_or(0);
        let same = (0..known - self.distance)
            .take_while(|&back| self.piece(back).hash == self.piece(back + self.distance).hash)
            .count();
        self.length = if self.distance == 0 { 0 } else { self.ids_of((same + self.distance).min(known - 1)) };
    }

    /// The piece that came `back` pieces before the last one.
    fn piece(&self, back: usize) -> Piece {
        self.pieces[(self.count - 1 - back) % KEPT]
    }

    /// The ids of the last `pieces` pieces.
    fn ids_of(&self, pieces: usize) -> usize {
        usize::from(self.piece(0).end.wrapping_sub(self.piece(pieces).end))
    }
}
