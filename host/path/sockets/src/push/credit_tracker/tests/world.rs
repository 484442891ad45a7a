//! Readers that start and die at random, each with a page that it opens before it listens, and page reads that come
//! late.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Send(u8, bool),
    ReadPage,
    Read(usize),
    Finish(usize),
    Die,
    Start,
    Connect,
    NoticeLoss,
    /// The reader stays alive, with the frames that it has read.
    Drop,
    Pass(u64),
    /// Our process dies, and the next one continues the connection.
    Adopt,
}

struct Reader {
    generation: u64,
    inbox: VecDeque<u64>,
}

struct World {
    bench: Bench,
    knows_pids: bool,
    reader: Option<Reader>,
    page: Page,
    has_page: bool,
    /// Frames written to the connection and not read; `None`: no connection. The bool: its reader is still at the other
    /// end.
    kernel: Option<(VecDeque<u64>, bool)>,
    counted: BTreeSet<u64>,
    finished: Vec<u64>,
    unconfirmed: BTreeSet<u64>,
    /// The generation changed since the last page read.
    unseen: bool,
    /// A reader was started since the connection was made.
    started: bool,
}

impl World {
    fn new(knows_pids: bool) -> World {
        let bench = Bench::new();
        let page = bench.page;
        World {
            bench,
            knows_pids,
            reader: None,
            page,
            has_page: false,
            kernel: None,
            counted: BTreeSet::new(),
            finished: Vec::new(),
            unconfirmed: BTreeSet::new(),
            unseen: false,
            started: false,
        }
    }

    fn look(&mut self) {
        self.unseen = false;
        let look = if self.has_page { PageStatus::Page(self.page) } else { PageStatus::Absent };
        self.bench.look(look);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send(count, counted) => {
                for _ in 0..count {
                    let frame = self.bench.frame(counted);
                    self.counted.extend(Some(frame.sequence).filter(|_| counted));
                    self.bench.queue.push(frame);
                }
            }
            Step::ReadPage => self.look(),
            Step::Read(count) => {
                if let (Some(reader), Some((kernel, true))) = (&mut self.reader, &mut self.kernel) {
                    let count = count.min(kernel.len());
                    reader.inbox.extend(kernel.drain(..count));
                }
            }
            Step::Finish(count) => {
                for _ in 0..count {
                    let Some(frame) = self.reader.as_mut().and_then(|reader| reader.inbox.pop_front()) else {
                        break;
                    };
                    if self.counted.contains(&frame) {
                        self.finished.push(frame);
                        self.page.count += 1;
                    }
                }
            }
            Step::Die => {
                self.reader = None;
                self.break_connection();
            }
            Step::Start if self.reader.is_none() => {
                // Two restarts between two page reads, or before a loss is noticed, would take longer than either. The
                // table has these cases.
                if self.unseen || self.started {
                    self.step(&Step::NoticeLoss);
                    self.look();
                }
                self.started = true;
                let page = &mut self.page;
                (page.last_generation, page.last_count) = (page.generation, page.count);
                (page.generation, page.count, page.pid) =
                    (page.generation + 1, 0, page.generation as u32 + 1);
                (self.has_page, self.unseen) = (true, true);
                self.reader = Some(Reader { generation: page.generation, inbox: VecDeque::new() });
            }
            Step::Connect => {
                if let (Some(reader), None) = (&self.reader, &self.kernel) {
                    let pid = Some(reader.generation as u32).filter(|_| self.knows_pids);
                    self.kernel = Some((VecDeque::new(), true));
                    self.started = false;
                    self.look();
                    self.bench.up(pid);
                }
            }
            Step::NoticeLoss => {
                if let Some((_, false)) = self.kernel {
                    self.kernel = None;
                    self.look();
                    self.bench.lose();
                }
            }
            Step::Drop => self.break_connection(),
            // The connection is kept even if its loss was not noticed.
            Step::Adopt => self.bench.adopt(),
            Step::Pass(ms) => {
                // The poll reports a loss at once.
                self.step(&Step::NoticeLoss);
                self.bench.pass(Duration::from_millis(ms));
            }
            Step::Start => {}
        }
        let written = self.bench.write();
        if let Some((kernel, _)) = &mut self.kernel {
            kernel.extend(written);
        }
        while let Some(notice) = self.bench.notices.next(|_| unreachable!()) {
            if let PushNotice::Settled { unconfirmed: Some(Unconfirmed { first, last, .. }), .. } = notice {
                self.unconfirmed.extend(first..=last);
            }
        }
    }

    fn break_connection(&mut self) {
        if let Some((kernel, alive)) = &mut self.kernel {
            kernel.clear();
            *alive = false;
        }
    }

    /// Starts a reader that stays and finishes everything.
    fn settle_down(&mut self) {
        for _ in 0..8 {
            for step in [
                Step::NoticeLoss,
                Step::Start,
                Step::Connect,
                Step::Read(usize::MAX),
                Step::Finish(usize::MAX),
                Step::ReadPage,
                Step::Pass(40_000),
                Step::ReadPage,
            ] {
                self.step(&step);
            }
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        self.settle_down();
        let finished: BTreeSet<u64> = self.finished.iter().copied().collect();
        prop_assert_eq!(finished.len(), self.finished.len(), "finished twice: {:?}", &self.finished);
        prop_assert!(self.finished.is_sorted(), "out of order: {:?}", &self.finished);
        let lost: Vec<u64> = self
            .counted
            .iter()
            .copied()
            .filter(|n| !finished.contains(n) && !self.unconfirmed.contains(n))
            .collect();
        prop_assert!(lost.is_empty(), "lost and not reported: {:?}", lost);
        prop_assert_eq!(self.bench.queue.waiting().frames, 0);
        prop_assert_eq!(self.bench.queue.unfinished().frames, 0);
        Ok(())
    }
}

fn step(drops: bool) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u8..5, prop::bool::weighted(0.8)).prop_map(|(count, counted)| Step::Send(count, counted)),
        3 => Just(Step::ReadPage),
        4 => (1usize..5).prop_map(Step::Read),
        4 => (1usize..5).prop_map(Step::Finish),
        2 => Just(Step::Die),
        3 => Just(Step::Start),
        3 => Just(Step::Connect),
        3 => Just(Step::NoticeLoss),
        1 => Just(if drops { Step::Drop } else { Step::ReadPage }),
        2 => (0u64..1500).prop_map(Step::Pass),
        1 => Just(Step::Adopt),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").map_or(2000, |cases| cases.parse().unwrap()), ..ProptestConfig::default() })]

    /// Readers die at any moment and are started again: no frame is lost or arrives twice, and all arrive in order.
    #[test]
    fn across_restarts_every_counted_frame_is_finished_exactly_once(
        knows_pids: bool, steps in prop::collection::vec(step(false), 1..120),
    ) {
        let mut world = World::new(knows_pids);
        // The page exists before the first frame: frames sent without a page are settled as they are written.
        world.step(&Step::Start);
        world.step(&Step::Connect);
        steps.iter().for_each(|step| world.step(step));
        world.check()?;
        prop_assert_eq!(world.finished.len(), world.counted.len(), "unconfirmed: {:?}", world.unconfirmed);
    }

    /// Connections of live readers are dropped too: uncertain frames are reported, and no frame arrives twice.
    #[test]
    fn across_drops_nothing_arrives_twice_and_losses_are_reported(
        knows_pids: bool, steps in prop::collection::vec(step(true), 1..120),
    ) {
        let mut world = World::new(knows_pids);
        world.step(&Step::Start);
        world.step(&Step::Connect);
        steps.iter().for_each(|step| world.step(step));
        world.check()?;
    }
}
