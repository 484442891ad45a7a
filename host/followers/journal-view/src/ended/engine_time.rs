//! The time for which the engine worked, divided over its requests. `docs/decisions/gpu-seconds.md` gives the reasons.
//!
//! A frame with a token or an end is a step of the engine. The step's time runs from the step before to the frame's receipt, but only
//! while the engine had a request to work on. The time is divided by work, to the nanosecond: over the frame's rows, and over
//! requests whose later rows have tokens of the step.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use afterbay_journal::{FrameNo, RequestNo};

use super::types::{EngineStep, StepRow};

/// The place in a request at which the work of a token is twice that of the first: half of it is attention.
const DOUBLE_AT: u128 = 8192;
/// Most steps that wait for later rows. SGLang sends a row at least every 50 tokens.
const STEPS_MAX: usize = 64;

/// Divides the engine's time, step by step. Memory of a request: 150 bytes.
#[derive(Debug, Default)]
pub(super) struct EngineTime {
    clock: EngineClock,
    /// The steps that wait for later rows.
    steps: VecDeque<OpenStep>,
    /// The number of steps before those.
    divided: u64,
    requests: HashMap<u64, Work>,
    /// Open requests that do not stream, by the first step of which their next row may have tokens.
    silent: BTreeMap<u64, usize>,
    /// The steps that were divided since they were taken. `None`: nobody takes them.
    given: Option<Vec<EngineStep>>,
}

/// A step that is not divided.
#[derive(Debug)]
struct OpenStep {
    frame: FrameNo,
    received_unix_ns: u64,
    gpu_ns: u64,
    parts: Vec<Part>,
}

/// One request's part of a step.
#[derive(Debug)]
struct Part {
    request: u64,
    tokens: u32,
    prompt_tokens: u64,
    work: u128,
}

/// The engine's work on one request.
#[derive(Debug)]
struct Work {
    rid: Arc<str>,
    /// Whether the engine has to work on it: it has arrived, and its last row does not end it.
    is_open: bool,
    /// Whether each step sends a row, by the record.
    streams: bool,
    /// Tokens of the prompt, as far as is known.
    prompt: u64,
    /// Tokens, of prompt and answer, that are computed.
    computed: u64,
    /// The first step of which its next row may have tokens.
    since: u64,
    /// The step after the last one of which it has a part.
    until: u64,
    gpu_ns: u64,
}

/// A row of a step, as far as its work needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepWork {
    pub(super) request: u64,
    /// New tokens.
    pub(super) tokens: u32,
    /// Tokens of the prompt, by the engine's rows.
    pub(super) prompt_tokens: Option<u64>,
    /// Those of them from the engine's cache.
    pub(super) cached_tokens: u64,
    /// Whether the row ends the request, or its turn.
    pub(super) is_last: bool,
    pub(super) is_abort: bool,
}

/// The tokens of a row that the engine computed, and their work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ComputedTokens {
    /// Tokens of the prompt.
    prompt: u64,
    prompt_work: u128,
    answer_work: u128,
}

/// The times at which the engine had work, in unix nanoseconds.
#[derive(Debug, Default)]
struct EngineClock {
    /// Requests that the engine has to work on.
    requests: usize,
    /// The beginning of the time for which it has had one. Without meaning if there is none.
    since: u64,
    last_step: u64,
}

impl EngineClock {
    /// The engine has got a request.
    fn begin(&mut self, unix_ns: u64) {
        self.since = if self.requests == 0 { unix_ns } else { self.since.min(unix_ns) };
        self.requests += 1;
    }

    /// A request has ended.
    fn end(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }

    /// Ends a step, and returns its time in nanoseconds.
    fn step(&mut self, unix_ns: u64) -> u64 {
        let began = self.since.max(self.last_step);
        self.saw_step(unix_ns);
        unix_ns.saturating_sub(began)
    }

    /// A step that is not counted: another reader has, or it is lost.
    fn saw_step(&mut self, unix_ns: u64) {
        self.last_step = self.last_step.max(unix_ns);
    }
}

impl EngineTime {
    /// Also gives [`EngineTime::given`].
    pub(super) fn give_steps(&mut self) {
        self.given = Some(Vec::new());
    }

    /// Takes the steps that were divided, in order.
    pub(super) fn given(&mut self) -> Vec<EngineStep> {
        self.given.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A step that is not counted: it was read before, or is lost.
    pub(super) fn saw_step(&mut self, unix_ns: u64) {
        self.clock.saw_step(unix_ns);
    }

    /// A request that was seen first.
    pub(super) fn add(&mut self, number: u64, rid: Arc<str>) {
        self.requests.insert(number, Work::new(rid));
    }

    /// The record of a request: the tokens of the prompt, and whether each step sends a row. A later turn of a session has the tokens
    /// of those before in its prompt.
    pub(super) fn ask(&mut self, number: u64, prompt_tokens: u64, streams: bool) {
        if let Some(work) = self.requests.get_mut(&number) {
            work.prompt = prompt_tokens;
            let was_open = work.shut(&mut self.silent);
            work.streams = streams;
            work.set_open(was_open, &mut self.silent);
        }
    }

    /// Rows that are not read have received so many tokens.
    pub(super) fn skip(&mut self, number: u64, received: u64) {
        if let Some(work) = self.requests.get_mut(&number) {
            work.computed = work.prompt + received;
        }
    }

    /// The request has arrived, or goes on.
    pub(super) fn open(&mut self, number: u64, unix_ns: u64) {
        let next = self.next();
        let Some(work) = self.requests.get_mut(&number).filter(|work| !work.is_open) else { return };
        work.since = next;
        work.set_open(true, &mut self.silent);
        self.clock.begin(unix_ns);
    }

    /// The request has ended.
    pub(super) fn close(&mut self, number: u64) {
        if let Some(work) = self.requests.get_mut(&number)
            && work.shut(&mut self.silent)
        {
            self.clock.end();
            self.divide();
        }
    }

    /// Begins a step, whose rows show that the engine works on their requests. Returns its time in nanoseconds.
    pub(super) fn begin_step(
        &mut self,
        frame: FrameNo,
        received_unix_ns: u64,
        requests: impl Iterator<Item = u64>,
    ) -> u64 {
        requests.for_each(|number| self.open(number, received_unix_ns));
        let gpu_ns = self.clock.step(received_unix_ns);
        self.steps.push_back(OpenStep { frame, received_unix_ns, gpu_ns, parts: Vec::new() });
        gpu_ns
    }

    /// Adds a row to the step that was begun last.
    pub(super) fn row(&mut self, row: StepWork) {
        let next = self.next();
        let Some(work) = self.requests.get_mut(&row.request) else { return };
        if let Some(prompt_tokens) = row.prompt_tokens {
            work.know_prompt(prompt_tokens);
        }
        // A step gives a request a token. So n tokens are of n steps at most, and a prompt is computed in the first of them.
        let longest = u64::from(row.tokens).max(1);
        let begin = work.since.max(next.saturating_sub(longest)).max(self.divided).min(next - 1);
        let computed = match row.tokens == 0 && row.is_abort {
            true => ComputedTokens::default(),
            false => work.compute(row.tokens, row.cached_tokens),
        };
        let was_open = work.shut(&mut self.silent);
        (work.since, work.until) = (next, next);
        work.set_open(was_open && !row.is_last, &mut self.silent);
        if was_open && row.is_last {
            self.clock.end();
        }
        let steps = self.steps.range_mut((begin - self.divided) as usize..);
        let last = steps.len() - 1;
        let mut work_left = computed.answer_work;
        let mut ns_left: u128 = steps.map(|step| u128::from(step.gpu_ns)).sum();
        for (at, step) in self.steps.range_mut((begin - self.divided) as usize..).enumerate() {
            let ns = u128::from(step.gpu_ns);
            let part =
                if at == last { work_left } else { (work_left * ns).checked_div(ns_left).unwrap_or(0) };
            (work_left, ns_left) = (work_left - part, ns_left - ns);
            step.parts.push(Part {
                request: row.request,
                tokens: if at == last { row.tokens } else { 0 },
                prompt_tokens: if at == 0 { computed.prompt } else { 0 },
                work: part + if at == 0 { computed.prompt_work } else { 0 },
            });
        }
    }

    /// Divides the steps of which no later row has tokens.
    pub(super) fn divide(&mut self) {
        while let Some(step) = self.steps.front() {
            let is_waiting = self.silent.first_key_value().is_some_and(|(since, _)| *since <= self.divided);
            if is_waiting && self.steps.len() <= STEPS_MAX {
                return;
            }
            self.divided += 1;
            let requests = &mut self.requests;
            let mut rows = Vec::new();
            divide(step.gpu_ns, &step.parts, |part, gpu_ns| {
                let Some(work) = requests.get_mut(&part.request) else { return };
                work.gpu_ns += gpu_ns;
                if self.given.is_some() {
                    let (request, rid) = (RequestNo(part.request), work.rid.clone());
                    let (tokens, prompt_tokens) = (part.tokens, part.prompt_tokens);
                    rows.push(StepRow { request, rid, tokens, prompt_tokens, gpu_ns });
                }
            });
            if let Some(given) = &mut self.given {
                let OpenStep { frame, received_unix_ns, gpu_ns, .. } = *step;
                given.push(EngineStep { frame, received_unix_ns, gpu_ns, rows });
            }
            self.steps.pop_front();
        }
    }

    /// Divides all steps. Later rows have no part of them.
    pub(super) fn divide_all(&mut self) {
        self.silent.clear();
        self.divide();
        let next = self.divided;
        for work in self.requests.values_mut() {
            work.since = next;
            work.set_open(work.is_open, &mut self.silent);
        }
    }

    /// Whether all steps of a request are divided.
    pub(super) fn is_divided(&self, number: u64) -> bool {
        self.requests.get(&number).is_none_or(|work| work.until <= self.divided)
    }

    /// Removes a request, and returns its part of the engine's time in nanoseconds.
    pub(super) fn take(&mut self, number: u64) -> u64 {
        self.requests.remove(&number).map_or(0, |work| work.gpu_ns)
    }

    /// The number of the next step.
    fn next(&self) -> u64 {
        self.divided + self.steps.len() as u64
    }
}

impl Work {
    fn new(rid: Arc<str>) -> Work {
        let (is_open, streams) = (false, true);
        let (prompt, computed, since, until, gpu_ns) = (0, 0, 0, 0, 0);
        Work { rid, is_open, streams, prompt, computed, since, until, gpu_ns }
    }

    fn set_open(&mut self, is_open: bool, silent: &mut BTreeMap<u64, usize>) {
        self.is_open = is_open;
        if is_open && !self.streams {
            *silent.entry(self.since).or_default() += 1;
        }
    }

    /// Nothing is awaited of the request. Returns whether it was open.
    fn shut(&mut self, silent: &mut BTreeMap<u64, usize>) -> bool {
        if self.is_open
            && !self.streams
            && let Some(requests) = silent.get_mut(&self.since)
        {
            *requests -= 1;
            if *requests == 0 {
                silent.remove(&self.since);
            }
        }
        std::mem::take(&mut self.is_open)
    }

    /// The length of the prompt, as the engine's rows say it. A record said it before.
    fn know_prompt(&mut self, prompt_tokens: u64) {
        if self.prompt == 0 {
            self.prompt = prompt_tokens;
            self.computed += if self.computed > 0 { prompt_tokens } else { 0 };
        }
    }

    /// The tokens that were computed for a row with so many new ones.
    fn compute(&mut self, tokens: u32, cached: u64) -> ComputedTokens {
        let from = if self.computed == 0 { cached.min(self.prompt) } else { self.computed };
        let prompt_end = self.prompt.max(from);
        self.computed = prompt_end + u64::from(tokens);
        let (prompt_work, answer_work) = (work(from, prompt_end), work(prompt_end, self.computed));
        ComputedTokens { prompt: prompt_end - from, prompt_work, answer_work }
    }
}

/// The work of the tokens at these places: the sum of 1 + (i + 1/2) / 8192, times 2 * 8192.
fn work(from: u64, end: u64) -> u128 {
    let (from, end) = (u128::from(from), u128::from(end));
    (end - from) * (2 * DOUBLE_AT + from + end)
}

/// Divides time over parts by their work; evenly if there is none. The sum is the time.
fn divide<'a>(ns: u64, parts: &'a [Part], mut each: impl FnMut(&'a Part, u64)) {
    let has_work = parts.iter().any(|part| part.work > 0);
    let work = |part: &Part| if has_work { part.work } else { 1 };
    let all: u128 = parts.iter().map(work).sum();
    let (mut so_far, mut given) = (0, 0);
    for part in parts {
        so_far += work(part);
        let until = (u128::from(ns) * so_far / all) as u64;
        each(part, until - given);
        given = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Requests of an engine.
    #[derive(Default)]
    struct Scene {
        time: EngineTime,
        now: u64,
        frames: u64,
    }

    impl Scene {
        fn arrives(&mut self, number: u64, prompt_tokens: u64) {
            self.time.add(number, "r".into());
            self.time.ask(number, prompt_tokens, true);
            self.time.open(number, self.now);
        }

        /// A request that does not stream.
        fn arrives_whole(&mut self, number: u64, prompt_tokens: u64) {
            self.arrives(number, prompt_tokens);
            self.time.ask(number, prompt_tokens, false);
        }

        /// A step of so many milliseconds. Rows: request, tokens, and whether it is the last one.
        fn step(&mut self, ms: u64, rows: &[(u64, u32, bool)]) -> u64 {
            self.now += ms * MS;
            self.frames += 1;
            let requests = rows.iter().map(|(request, ..)| *request);
            let ns = self.time.begin_step(FrameNo(self.frames), self.now, requests);
            for (request, tokens, is_last) in rows.iter().copied() {
                self.time.row(StepWork { request, tokens, is_last, ..StepWork::default() });
            }
            self.time.divide();
            ns / MS
        }

        fn take(&mut self, number: u64) -> u64 {
            assert!(self.time.is_divided(number), "{number}");
            self.time.take(number)
        }
    }

    #[test]
    fn a_step_begins_at_the_step_before_or_at_the_arrival_after_which_the_engine_had_work() {
        let mut scene = Scene { now: 100 * MS, ..Scene::default() };
        scene.arrives(1, 0);
        assert_eq!(scene.step(50, &[(1, 1, false)]), 50);
        scene.now += 10 * MS;
        scene.arrives(2, 0);
        assert_eq!(scene.step(20, &[(1, 1, true), (2, 1, false)]), 30, "2 arrived within the step");
        assert_eq!(scene.step(10, &[(2, 1, true)]), 10);
        scene.now += 1000 * MS;
        scene.arrives(3, 0);
        assert_eq!(scene.step(10, &[(3, 1, false)]), 10, "the engine was idle");
        scene.now -= 15 * MS;
        assert_eq!(scene.step(5, &[(3, 1, false)]), 0, "the clock was set back");
        assert_eq!(scene.step(20, &[(3, 1, true)]), 10);
    }

    #[test]
    fn a_token_at_place_8192_is_twice_the_work_of_the_first_and_a_prompt_is_the_work_of_its_tokens() {
        assert_eq!((work(0, 1), work(8192, 8193)), (16_385, 32_769));
        assert_eq!(work(5, 900), (5..900).map(|place| work(place, place + 1)).sum());
        let mut scene = Scene::default();
        scene.arrives(1, 8192);
        scene.arrives(2, 1);
        scene.step(300, &[(1, 1, true), (2, 1, true)]);
        let (long, short) = (scene.take(1), scene.take(2));
        assert_eq!(long + short, 300 * MS);
        // 8,192 tokens with half as much attention again, beside two.
        assert_eq!(300 * MS / short, 12_290_u64.div_ceil(2));
    }

    #[test]
    fn tokens_from_the_cache_are_no_work_and_each_turn_of_a_session_computes_what_those_before_did_not() {
        let new = || Work { prompt: 100, ..Work::new("r".into()) };
        assert_eq!(new().compute(1, 90).prompt, 10);
        assert_eq!(new().compute(1, 200), new().compute(1, 100));
        let mut session = new();
        assert_eq!(session.compute(10, 0).prompt, 100);
        session.prompt = 150;
        assert_eq!((session.compute(1, 0).prompt, session.computed), (40, 151));
    }

    #[test]
    fn a_prompt_that_only_rows_tell_is_the_same_from_the_first_row_and_from_a_later_one() {
        let new = || Work::new("r".into());
        let (mut whole, mut late) = (new(), Work { computed: 3, ..new() });
        whole.know_prompt(50);
        whole.compute(3, 0);
        late.know_prompt(50);
        assert_eq!(late.compute(1, 0), whole.compute(1, 0));
    }

    #[test]
    fn a_row_of_many_tokens_has_its_part_of_the_steps_since_the_row_before() {
        // One request streams, the other gives its 40 tokens at once.
        let mut scene = Scene::default();
        scene.arrives(1, 0);
        scene.arrives_whole(2, 0);
        for _ in 1..40 {
            scene.step(10, &[(1, 1, false)]);
            assert!(!scene.time.is_divided(1));
        }
        scene.step(10, &[(1, 1, true), (2, 40, true)]);
        let (streams, waits) = (scene.take(1), scene.take(2));
        assert_eq!(streams + waits, 400 * MS);
        assert!(streams.abs_diff(waits) < MS, "{streams} {waits}");
    }

    #[test]
    fn a_first_row_of_many_tokens_has_its_prompt_in_as_many_steps_before_and_none_while_it_waited() {
        let mut scene = Scene::default();
        scene.arrives(1, 0);
        scene.arrives_whole(2, 10_000);
        (0..5).for_each(|_| _ = scene.step(10, &[(1, 1, false)]));
        scene.step(500, &[(1, 1, false)]);
        (0..3).for_each(|_| _ = scene.step(10, &[(1, 1, false)]));
        scene.step(10, &[(1, 1, true), (2, 5, true)]);
        let (light, heavy) = (scene.take(1), scene.take(2));
        assert_eq!(light + heavy, 590 * MS);
        // The prompt's step of 500 ms, and a good half of the later ones: the context is long.
        assert!((500 * MS..530 * MS).contains(&heavy), "{heavy}");
    }

    #[test]
    fn a_request_that_does_not_stream_holds_back_64_steps_until_it_ends() {
        let mut scene = Scene::default();
        scene.arrives_whole(1, 0);
        scene.arrives(2, 0);
        scene.step(10, &[(2, 1, true)]);
        assert!(!scene.time.is_divided(2));
        scene.time.close(1);
        assert_eq!(scene.take(2), 10 * MS);
        scene.arrives_whole(3, 0);
        scene.arrives(4, 0);
        scene.step(10, &[(4, 1, true)]);
        scene.arrives(5, 0);
        (0..STEPS_MAX).for_each(|_| _ = scene.step(10, &[(5, 1, false)]));
        assert_eq!(scene.take(4), 10 * MS);
        assert_eq!(scene.time.steps.len(), STEPS_MAX);
        scene.time.divide_all();
        assert!(scene.time.is_divided(5));
        scene.step(10, &[(3, 100, true), (5, 1, true)]);
        assert_eq!(scene.take(5) + scene.take(3), 65 * 10 * MS);
    }

    #[test]
    fn an_abort_without_a_token_is_no_work_and_a_step_without_work_is_divided_evenly() {
        let parts = |works: &[u128]| {
            let part = |work: &u128| Part { request: 0, tokens: 0, prompt_tokens: 0, work: *work };
            let rows: Vec<Part> = works.iter().map(part).collect();
            let mut parts = Vec::new();
            divide(10, &rows, |_, ns| parts.push(ns));
            parts
        };
        assert_eq!((parts(&[0, 1]), parts(&[0, 0, 0])), (vec![0, 10], vec![3, 3, 4]));
        let mut scene = Scene::default();
        scene.arrives(1, 30_000);
        scene.arrives(2, 0);
        scene.now += MS;
        scene.time.begin_step(FrameNo(1), scene.now, [1, 2].into_iter());
        let abort = StepWork { request: 1, is_last: true, is_abort: true, ..StepWork::default() };
        scene.time.row(abort);
        scene.time.row(StepWork { request: 2, tokens: 1, is_last: true, ..StepWork::default() });
        scene.time.divide();
        assert_eq!((scene.take(1), scene.take(2)), (0, MS));
    }
}
