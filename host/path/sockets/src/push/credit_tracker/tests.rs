//! A table of event orders, and a model of readers that start and die at random.

mod world;

use std::time::Duration;

use bytes::Bytes;

use super::super::{OutgoingFrame, Unconfirmed};
use super::*;
use crate::credit::ReaderKind;
use crate::lasting::SendMemory;

const WAIT: Duration = Duration::from_secs(2);
const STALL: Duration = Duration::from_secs(30);

fn options() -> CreditOptions {
    let mut options = CreditOptions::new("/nowhere");
    (options.generation_wait, options.stall) = (WAIT, STALL);
    options
}

/// A tracker, its queue, and the frames written to each connection.
struct Bench {
    tracker: CreditTracker,
    queue: SendQueue,
    notices: NoticeQueue<PushNotice>,
    now: Instant,
    next: u64,
    links: Vec<Vec<u64>>,
    page: Page,
    /// The last read of the page.
    looked: Option<PageStatus>,
}

impl Bench {
    fn new() -> Bench {
        let now = Instant::now();
        let queue = SendQueue::default();
        let tracker = CreditTracker::new(&options(), now);
        let page = Page {
            file: (1, 1),
            pid: 0,
            generation: 0,
            count: 0,
            last_generation: 0,
            last_count: 0,
            changed_unix_ns: 0,
            reader: ReaderKind::Tokenizer,
        };
        Bench {
            tracker,
            queue,
            notices: NoticeQueue::new(),
            now,
            next: 1,
            links: Vec::new(),
            page,
            looked: None,
        }
    }

    fn on<T>(&mut self, act: impl FnOnce(&mut CreditTracker, &mut TrackerContext<'_>) -> T) -> T {
        let Bench { tracker, queue, notices, now, .. } = self;
        act(tracker, &mut TrackerContext { queue, notices, now: *now })
    }

    fn frame(&mut self, counted: bool) -> OutgoingFrame {
        let sequence = self.next;
        self.next += 1;
        OutgoingFrame { sequence, bytes: Bytes::copy_from_slice(&sequence.to_be_bytes()), counted }
    }

    /// Writes every frame that may be written, to the present connection.
    fn write(&mut self) -> Vec<u64> {
        let mut written = Vec::new();
        while self.tracker.may_write()
            && let Some(frame) = self.queue.next_unstaged(usize::MAX, usize::MAX)
        {
            written.push(frame.sequence);
            self.queue.staged();
        }
        self.queue.wrote(written.len());
        written
    }

    /// The process dies, and the next one continues the connection: as [`Push`] does it, with the memory's own frames.
    fn adopt(&mut self) {
        let Some(connection) = &self.tracker.connection else { return };
        let pid = connection.pid;
        let mut memory = SendMemory::new(&"ipc:///reader".parse().unwrap(), self.queue.taken()).unwrap();
        self.queue.copy_retained(&mut memory);
        let adopted = SendQueue::adopted(&memory, &self.queue.saved(), 1 << 20);
        let mut earlier = std::mem::replace(&mut self.queue, adopted);
        // The journal sends what was not in the memory.
        earlier.cut(false);
        while let Some(frame) = earlier.next_unstaged(usize::MAX, usize::MAX) {
            self.queue.push(frame.clone());
            earlier.staged();
        }
        self.tracker = CreditTracker::adopted(&options(), &self.tracker.saved(), pid, self.now);
        if let Some(look) = self.looked.clone() {
            self.look(look);
        }
    }

    fn up(&mut self, pid: Option<u32>) {
        self.links.push(Vec::new());
        self.queue.connected(1 << 20);
        self.on(|tracker, context| tracker.up(pid, context));
    }

    fn lose(&mut self) {
        self.queue.cut(false);
        self.on(|tracker, context| tracker.lost(context));
    }

    fn look(&mut self, look: PageStatus) {
        self.looked = Some(look.clone());
        self.on(|tracker, context| tracker.saw(look, context));
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.on(|tracker, context| tracker.tick(context));
    }

    /// Runs one step:
    /// `s3` / `u1` send counted / uncounted frames;
    /// `up`, `up=7` (the process), `lost`; `none`: no page, `bad`: an invalid page; `zeros`, `opening`: an unsettled page;
    /// `p2:5`: generation 2 with count 5, of process 2 (`@9`: of 9); `p2:0<3`: … after a final count of 3; `new:p1:0`:
    /// in a new file;
    /// `wait`, `stall`: this much time passes.
    fn step(&mut self, step: &str) {
        match step {
            "lost" => self.lose(),
            "none" => self.look(PageStatus::Absent),
            "bad" => self.look(PageStatus::Invalid(Invalid::Short(3))),
            "zeros" => self.look(PageStatus::Unsettled(Invalid::Unfilled)),
            "opening" => self.look(PageStatus::Unsettled(Invalid::Generation { generation: 1, last: 1 })),
            "wait" => self.pass(WAIT),
            "stall" => self.pass(STALL),
            "up" => self.up(None),
            _ if step.starts_with("up=") => self.up(Some(step[3..].parse().unwrap())),
            _ if step.contains(':') => {
                let step = step.strip_prefix("new:").inspect(|_| self.page.file.1 += 1).unwrap_or(step);
                let (generation, rest) = step[1..].split_once(':').unwrap();
                let (count, last) = rest.split_once('<').unwrap_or((rest, "0"));
                let (count, pid) = count.split_once('@').unwrap_or((count, generation));
                let page = &mut self.page;
                (page.generation, page.count) = (generation.parse().unwrap(), count.parse().unwrap());
                (page.last_generation, page.last_count) = (page.generation - 1, last.parse().unwrap());
                page.pid = pid.parse().unwrap();
                let page = *page;
                self.look(PageStatus::Page(page));
            }
            _ => {
                let (what, count) = step.split_at(1);
                for _ in 0..count.parse::<u32>().unwrap() {
                    assert!(matches!(what, "s" | "u"), "no such step: {step}");
                    let frame = self.frame(what == "s");
                    self.queue.push(frame);
                }
            }
        }
        // Push also writes after every event.
        let written = self.write();
        if let Some(link) = self.links.last_mut() {
            link.extend(written);
        }
    }

    /// `1-5/4-6 taken=3 resent2 unconfirmed1-2 usable2:5`: the frames of each connection, `taken`, the notices, the
    /// state of the page.
    fn result(&mut self) -> String {
        let link = |link: &Vec<u64>| link.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let mut words = vec![self.links.iter().map(link).collect::<Vec<_>>().join("/")];
        words.push(format!("taken={}", self.queue.taken()));
        while let Some(notice) = self.notices.next(|_| unreachable!()) {
            match notice {
                PushNotice::Settled { resent, unconfirmed: None } => words.push(format!("resent{resent}")),
                PushNotice::Settled { resent, unconfirmed: Some(Unconfirmed { first, last, frames }) } => {
                    assert!(frames as u64 <= last - first + 1);
                    words.push(format!("unconfirmed{first}-{last}"));
                    words.extend(Some(format!("resent{resent}")).filter(|_| resent > 0));
                }
                _ => {}
            }
        }
        words.push(match self.tracker.state() {
            CreditState::Usable { generation, count } => format!("usable{generation}:{count}"),
            CreditState::RanAhead { by } => format!("ranahead{by}"),
            CreditState::Invalid(_) => "invalid".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        });
        words.join(" ")
    }
}

/// Runs each line as it is; then with a process that dies after each step while a connection is up, and after every step:
/// the results must be equal.
fn check(table: &[(&str, &str, &str)]) {
    for (why, steps, expected) in table {
        let steps: Vec<&str> = steps.split_whitespace().collect();
        let deaths = (0..steps.len()).map(|death| death..death + 1).chain([0..0, 0..steps.len()]);
        // A new process waits for an unsettled page as long as the one before.
        let waits =
            steps.iter().any(|step| matches!(*step, "zeros" | "opening" | "none") && steps.contains(&"wait"));
        for deaths in deaths.filter(|deaths| !waits || deaths.is_empty()) {
            let mut bench = Bench::new();
            for (index, step) in steps.iter().enumerate() {
                bench.step(step);
                if deaths.contains(&index) {
                    bench.adopt();
                    let written = bench.write();
                    assert_eq!(written, Vec::<u64>::new(), "{why}: {steps:?}, a death after {step}");
                }
            }
            assert_eq!(bench.result(), *expected, "{why}: {steps:?}, deaths after {deaths:?}");
        }
    }
}

#[test]
#[rustfmt::skip]
fn a_new_reader_gets_what_the_old_one_had_not_finished_once_and_in_order() {
    check(&[
        ("a reader that lives", "p1:0 up s3 p1:2 s1", "1,2,3,4 taken=2 usable1:2"),
        ("lost, new generation, connected", "p1:0 up s5 p1:2 lost p2:0<3 up", "1,2,3,4,5/4,5 taken=3 resent2 usable2:0"),
        ("lost, connected, new generation: whose is it?", "p1:0 up s5 p1:2 lost up s1 p2:0<3", "1,2,3,4,5/ taken=2 usable1:2"),
        ("… after the wait: this connection's", "p1:0 up s5 p1:2 lost up s1 p2:0<3 wait", "1,2,3,4,5/4,5,6 taken=3 resent2 usable2:0"),
        ("… or not", "p1:0 up s5 p1:2 lost up s1 p2:0<3 lost up", "1,2,3,4,5//4,5,6 taken=3 resent2 usable2:0"),
        ("new generation, lost, connected", "p1:0 up s5 p1:2 p2:0<3 s1 lost up", "1,2,3,4,5/4,5,6 taken=3 resent2 usable2:0"),
        ("the same with processes known", "p1:0 up=1 s5 p1:2 lost p2:0<3 up=2 s1", "1,2,3,4,5/4,5,6 taken=3 resent2 usable2:0"),
        ("connected before it is known", "p1:0 up=1 s5 p1:2 lost up=2 s1 p2:0<3", "1,2,3,4,5/4,5,6 taken=3 resent2 usable2:0"),
        ("the new one finishes them", "p1:0 up s3 lost p2:0<1 up p2:2<1 s1", "1,2,3/2,3,4 taken=3 resent2 usable2:2"),
        ("all was finished", "p1:0 up s3 p1:3 lost p2:0<3 up s1 p2:1<3", "1,2,3/4 taken=4 usable2:1"),
        ("finished, and reported only by the new page", "p1:0 up s3 lost p2:0<3 up s1", "1,2,3/4 taken=3 usable2:0"),
        ("nothing was finished, twice", "p1:0 up s2 lost p2:0<0 up lost p3:0<0 up", "1,2/1,2/1,2 taken=0 resent2 resent2 usable3:0"),
        ("sent without a reader", "p1:0 up s2 p1:2 lost s2 p2:0<2 up", "1,2/3,4 taken=2 usable2:0"),
        ("lost twice before the new generation", "p1:0 up s2 lost up lost up p2:0<1 wait", "1,2//2 taken=1 resent1 usable2:0"),
        ("connected before the first look", "up p1:0 s2 lost p2:0<1 up", "1,2/2 taken=1 resent1 usable2:0"),
    ]);
}

#[test]
#[rustfmt::skip]
fn the_same_reader_on_a_new_connection_is_not_sent_anything_again() {
    check(&[
        ("its process says so, at once", "p1:0 up=1 s3 p1:1 lost up=1 s1 p1:4", "1,2,3/4 taken=4 unconfirmed2-3 usable1:4"),
        ("unknown process: nothing until the wait is over", "p1:0 up s3 p1:1 lost up s1", "1,2,3/ taken=1 usable1:1"),
        ("… then it is taken for the same", "p1:0 up s3 p1:1 lost up s1 wait p1:4", "1,2,3/4 taken=4 unconfirmed2-3 usable1:4"),
        ("nothing was unfinished: no wait", "p1:0 up s3 p1:3 lost up s1", "1,2,3/4 taken=3 usable1:3"),
        ("the wait ends early by the loss", "p1:0 up s3 lost up lost up wait s1", "1,2,3//4 taken=0 unconfirmed1-3 usable1:0"),
        ("its generation was seen only before the loss", "p1:0 up s2 p2:1<0 lost up s1 wait p2:2", "1,2/3 taken=2 unconfirmed2-2 usable2:2"),
        ("later it dies: which it lost is not known", "p1:0 up=1 s2 p1:1 lost up=1 s3 p1:2 lost p2:0<2 up=2",
            "1,2/3,4,5/4,5 taken=3 unconfirmed2-2 unconfirmed3-3 resent2 usable2:0"),
        ("… but once all was counted it lost none", "p1:0 up=1 s2 lost up=1 s3 p1:5 s2 lost p2:0<6 up=2",
            "1,2/3,4,5,6,7/7 taken=6 unconfirmed1-2 resent1 usable2:0"),
    ]);
}

#[test]
#[rustfmt::skip]
fn a_generation_that_changes_while_connected_waits_for_the_loss() {
    check(&[
        ("nothing is written meanwhile", "p1:0 up s2 p2:0<1 s1", "1,2 taken=0 usable1:0"),
        ("no loss: it is this connection's", "p1:0 up s2 p2:0<1 s1 wait p2:1<1", "1,2,3 taken=2 usable2:1"),
        ("its process says so, at once", "p1:0 up=1 p1:0 lost up=2 s2 p2:0<0 s1 p2:1<0", "/1,2,3 taken=1 usable2:1"),
        ("one process for both says nothing", "p1:0@9 up=9 s2 p2:0@9<1 s1 lost up=9 s1", "1,2/2,3,4 taken=1 resent1 usable2:0"),
        ("it counted already: the loss is its own", "p1:0 up s2 p2:1<0 lost p3:0<1 up", "1,2/2 taken=1 resent1 usable3:0"),
        ("a second change in the wait", "p1:0 up s2 p2:0<1 p3:0<0 lost up", "1,2/ taken=2 unconfirmed1-2 usable3:0"),
        ("… and no loss", "p1:0 up s2 p2:0<1 p3:0<0 wait s1", "1,2,3 taken=3 unconfirmed1-2 stale"),
    ]);
}

#[test]
#[rustfmt::skip]
fn uncertain_frames_are_reported_and_not_sent_again() {
    check(&[
        ("a generation was missed", "p1:0 up s3 p1:1 lost p3:0<0 up s1", "1,2,3/4 taken=3 unconfirmed2-3 usable3:0"),
        ("the page is a new file", "p1:0 up s3 p1:1 lost new:p1:0 up s1", "1,2,3/4 taken=3 unconfirmed2-3 usable1:0"),
        ("a reader without a page", "p1:0 up=1 s3 p1:1 lost up=9 s1", "1,2,3/ taken=1 usable1:1"),
        ("… and after the wait", "p1:0 up=1 s3 p1:1 lost up=9 s1 wait s1", "1,2,3/4,5 taken=5 unconfirmed2-3 stale"),
        ("… and it opens its page late", "p1:0 up=1 s3 lost up=2 s1 wait s1 p2:0<0 s1 p2:3<0",
            "1,2,3/4,5,6 taken=6 unconfirmed1-3 usable2:3"),
    ]);
}

#[test]
#[rustfmt::skip]
fn a_count_that_cannot_be_ours_is_not_used() {
    check(&[
        ("ahead", "p1:0 up s2 p1:3 s1", "1,2,3 taken=3 ranahead1"),
        ("… for good", "p1:0 up s2 p1:3 lost p2:0<3 up s2", "1,2/3,4 taken=4 ranahead1"),
        ("ahead in a new generation that was given nothing", "p1:0 up s2 p1:2 lost p2:1<2 up s1", "1,2/3 taken=3 ranahead1"),
        ("ahead by the old one's final count", "p1:0 up s2 lost p2:0<3 up s1", "1,2/3 taken=3 ranahead1"),
        ("joined midway: it may be for frames of an earlier process", "p1:9 up s2 p1:13 s1", "1,2,3 taken=3 ranahead2"),
        ("… so the next generation is believed", "p1:9 up s2 p1:13 lost p2:0<13 up s2 p2:1<13", "1,2/3,4 taken=3 usable2:1"),
        ("it went back", "p1:0 up s3 p1:2 p1:1 s1", "1,2,3,4 taken=4 unconfirmed3-3 invalid"),
        ("… and stays unused", "p1:0 up s3 p1:2 p1:1 p1:3 s1", "1,2,3,4 taken=4 unconfirmed3-3 invalid"),
        ("… until a new generation", "p1:0 up s3 p1:2 p1:1 lost p2:0<1 up s1", "1,2,3/4 taken=3 unconfirmed3-3 usable2:0"),
        ("not a page for a while: what was written is counted first", "p1:0 up s2 p1:1 bad s1 p1:1 s1 p1:3", "1,2,3,4 taken=3 unconfirmed2-2 usable1:3"),
        ("not a page any more", "p1:0 up s2 p1:1 bad s1", "1,2,3 taken=3 unconfirmed2-2 invalid"),
    ]);
}

#[test]
#[rustfmt::skip]
fn a_page_that_is_not_there_yet_does_not_stop_the_stream() {
    check(&[
        ("never", "none up s3", "1,2,3 taken=3 absent"),
        ("not a page", "bad up s3", "1,2,3 taken=3 invalid"),
        ("it comes while frames are under way", "none up s3 p1:1 s1 p1:3", "1,2,3,4 taken=3 usable1:3"),
        ("… and those are counted before the later ones", "none up s3 p1:1 s1 p1:4", "1,2,3,4 taken=4 usable1:4"),
        ("joined midway", "p4:100 up s2 p4:101", "1,2 taken=1 usable4:101"),
    ]);
}

#[test]
#[rustfmt::skip]
fn a_page_that_no_writer_fills_stops_a_connected_reader_only_for_the_wait() {
    check(&[
        ("zeros for a moment", "p1:0 up s2 zeros p1:2 s1", "1,2,3 taken=2 usable1:2"),
        ("zeros", "p1:0 up s2 p1:1 zeros wait zeros wait zeros s1", "1,2,3 taken=3 unconfirmed2-2 invalid"),
        ("gone", "p1:0 up s2 p1:1 none wait none wait none s1", "1,2,3 taken=3 unconfirmed2-2 absent"),
        ("being opened", "p1:0 up s2 p1:1 opening wait opening wait opening s1", "1,2,3 taken=3 unconfirmed2-2 invalid"),
        ("also one that was never a page", "up s2 opening wait opening wait opening s1", "1,2,3 taken=3 invalid"),
        ("used again once it is a page", "p1:0 up s2 p1:1 zeros wait zeros wait zeros p1:1 s1 p1:3", "1,2,3 taken=3 unconfirmed2-2 usable1:3"),
        ("a reader that died there is waited for", "p1:0 up s3 p1:1 lost opening wait opening wait opening p2:0<2 up", "1,2,3/3 taken=2 resent1 usable2:0"),
    ]);
}

#[test]
#[rustfmt::skip]
fn a_count_that_stands_still_is_only_given_up_in_doubt() {
    check(&[
        ("a slow reader is waited for", "p1:0 up s1 p1:1 s3 stall stall", "1,2,3,4 taken=1 usable1:1"),
        ("a page that has not proved itself is not", "p1:0 up s3 stall s1", "1,2,3,4 taken=4 unconfirmed1-3 stale"),
        ("nor one after a new connection", "p1:0 up=1 s1 p1:1 s3 lost up=1 stall s1", "1,2,3,4/5 taken=5 unconfirmed2-4 unconfirmed2-4 stale"),
        ("it moves again: used again", "p1:0 up s3 stall s1 p1:1 s1 p1:4", "1,2,3,4,5 taken=4 unconfirmed1-3 usable1:4"),
        ("… and the given up are counted first", "p1:0 up s3 stall s1 p1:1 s1 p1:5", "1,2,3,4,5 taken=5 unconfirmed1-3 usable1:5"),
        ("back, and up again: not used until it is past where it was", "p1:5 up s1 stall p1:3 p1:4", "1 taken=1 unconfirmed1-1 stale"),
        ("… then it is", "p1:5 up s1 stall p1:3 p1:4 s1 p1:6", "1,2 taken=2 unconfirmed1-1 usable1:6"),
        ("not if frames may be lost", "p1:0 up=1 s3 lost up=1 stall p1:1 s1", "1,2,3/4 taken=4 unconfirmed1-3 unconfirmed1-3 stale"),
        ("… until a new generation", "p1:0 up=1 s3 lost up=1 stall p1:1 lost p2:0<3 up=2 s1",
            "1,2,3//4 taken=3 unconfirmed1-3 unconfirmed1-3 usable2:0"),
    ]);
}

#[test]
#[rustfmt::skip]
fn uncounted_frames_pass_with_the_counted_one_before_them() {
    check(&[
        ("alone", "p1:0 up u2", "1,2 taken=2 usable1:0"),
        ("behind a counted one", "p1:0 up s1 u1 s1 p1:1", "1,2,3 taken=2 usable1:1"),
        ("sent again in their place", "p1:0 up s1 u1 s1 u1 lost p2:0<0 up", "1,2,3,4/1,2,3,4 taken=0 resent4 usable2:0"),
        ("not sent again without a count", "p1:0 up s1 u1 s1 lost p2:0<1 up", "1,2,3/3 taken=2 resent1 usable2:0"),
    ]);
}

#[test]
fn the_tick_does_what_the_deadline_is_for() {
    // A later deadline would make its caller spin.
    for steps in ["p1:0 up s3", "p1:0 up s3 lost up", "p1:0 up s3 p2:0"] {
        let mut bench = Bench::new();
        steps.split_whitespace().for_each(|step| bench.step(step));
        let mut dues = 0;
        while let Some(at) = bench.tracker.deadline(&bench.queue) {
            assert!(at >= bench.now, "{steps}: due before the last call");
            bench.now = at;
            bench.pass(Duration::ZERO);
            dues += 1;
            assert!(dues < 5, "{steps}: due again and again");
        }
        assert!(dues > 0, "{steps}");
    }
}

#[test]
fn the_position_is_the_count_at_which_nothing_that_is_kept_is_finished() {
    let mut bench = Bench::new();
    "p1:5 up s3 p1:6".split_whitespace().for_each(|step| bench.step(step));
    assert_eq!(
        (bench.queue.taken(), bench.tracker.position()),
        (1, Some(CreditPosition { generation: 1, count: 6 }))
    );
    bench.step("p1:9");
    assert_eq!(bench.tracker.position(), None, "ran ahead");
}
