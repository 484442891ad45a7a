//! The loop of the simulated scheduler: which requests run, and which tokens each gets in a step. It has no
//! bytes, no sockets and no clock: the caller passes the time.

use std::time::Duration;

use crate::ids::{Digest, POSITIONS, Random, Seed, rid};
use crate::load::{Arrivals, EndReason, Load, RequestShape};

/// The output of a step: optionally a control message and a batch without rows, then a batch.
#[derive(Debug, Default)]
pub struct Step {
    /// The number of the step, from 0.
    pub number: u64,
    /// Whether a control message goes before the batch.
    pub control: bool,
    /// Whether a batch without rows goes before the batch.
    pub idle: bool,
    /// The number of a health check, whose row is the batch's last.
    pub health_check: Option<u64>,
    /// One row for each running request.
    pub rows: Vec<StepRow>,
}

/// One request's part of a step.
#[derive(Clone, Debug)]
pub struct StepRow {
    /// The request's rid.
    pub rid: String,
    /// Whether the row is the request's first.
    pub first: bool,
    /// The position of the first token of the request among all tokens of its rid.
    pub begin: u64,
    /// The position of the first new token in the request's output.
    pub from: u64,
    /// The number of new tokens. Their ids follow from the rid and the position among all tokens of the rid.
    pub tokens: u32,
    /// The number of tokens of the prompt.
    pub prompt_tokens: u32,
    /// The number of the prompt's last tokens that go before the new ones in a first row.
    pub prompt_tail: u32,
    /// The end reason, if the row is the request's last.
    pub ending: Option<EndReason>,
    /// Whether the row is the answer to an abort.
    pub aborted: bool,
    /// The digest over all ids of the request, including this row.
    pub digest: Digest,
}

/// A simulated scheduler that runs step by step.
#[derive(Debug)]
pub struct Steps {
    load: Load,
    running: Vec<RunningRequest>,
    arrivals: ArrivalClock,
    /// The rids that were aborted since the last step.
    aborts: Vec<String>,
    /// The number of requests that have begun to run.
    admitted: u64,
    step: u64,
}

/// The arrivals of requests.
#[derive(Debug)]
struct ArrivalClock {
    random: Random,
    arrived: u64,
    /// The number of arrived requests that are in no burst.
    outside_bursts: u64,
    /// The arrival time of request number `arrived`, for [`Arrivals::Rate`].
    next_seconds: f64,
}

#[derive(Debug)]
struct RunningRequest {
    rid: String,
    seed: Seed,
    begin: u64,
    shape: RequestShape,
    done: u32,
    digest: Digest,
}

impl Steps {
    /// Creates a scheduler for a load that was checked.
    pub fn new(load: Load) -> Steps {
        let arrivals = ArrivalClock {
            random: Random::new(load.seed, u64::MAX),
            arrived: 0,
            outside_bursts: 0,
            next_seconds: 0.0,
        };
        Steps { load, running: Vec::new(), arrivals, aborts: Vec::new(), admitted: 0, step: 0 }
    }

    /// Whether every request has ended.
    pub fn is_done(&self) -> bool {
        self.running.is_empty() && self.admitted == self.load.requests
    }

    /// The number of running requests.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Aborts the running request with this rid, like SGLang's scheduler with the connector. The next step has its
    /// last row.
    pub fn abort(&mut self, rid: &str) {
        self.aborts.push(rid.to_owned());
    }

    /// Runs the next step at `now` after the start. The step has no rows if no request has arrived.
    pub fn next(&mut self, now: Duration) -> Step {
        self.arrivals.advance(&self.load, now);
        let limit = self.load.max_running as usize;
        while self.admitted < self.arrivals.arrived && self.running.len() < limit {
            let next = RunningRequest::new(&self.load, self.admitted);
            let runs = |running: &RunningRequest| running.rid == next.rid;
            if self.load.rids < self.load.requests && self.running.iter().any(runs) {
                break;
            }
            self.running.push(next);
            self.admitted += 1;
        }
        let due = |every: Option<u64>| every.is_some_and(|every| self.step % every == every - 1);
        let mut step = Step {
            number: self.step,
            control: due(self.load.control_every),
            idle: due(self.load.idle_every),
            health_check: due(self.load.health_every).then_some(self.step),
            rows: Vec::with_capacity(self.running.len()),
        };
        let aborts = std::mem::take(&mut self.aborts);
        for request in &mut self.running {
            let is_aborted = aborts.contains(&request.rid);
            step.rows.push(if is_aborted { request.aborted() } else { request.row(&self.load) });
        }
        let mut rows = step.rows.iter();
        self.running.retain(|_| rows.next().is_some_and(|row| row.ending.is_none()));
        self.step += 1;
        step
    }

    /// Runs the last step of a stopped scheduler: it aborts all running requests and accepts no others.
    pub fn abort_all(&mut self) -> Step {
        self.load.requests = self.admitted;
        let rows = self.running.drain(..).map(|mut request| request.aborted()).collect();
        Step { number: self.step, rows, ..Step::default() }
    }
}

impl ArrivalClock {
    fn advance(&mut self, load: &Load, now: Duration) {
        let requests = load.outside_bursts();
        match load.arrivals {
            Arrivals::AtOnce => self.outside_bursts = requests,
            Arrivals::Rate(rate) => {
                while self.outside_bursts < requests && self.next_seconds <= now.as_secs_f64() {
                    self.outside_bursts += 1;
                    self.next_seconds -= self.random.unit().ln() / rate;
                }
            }
        }
        self.arrived = self.outside_bursts + load.burst_by(now);
    }
}

impl RunningRequest {
    fn new(load: &Load, index: u64) -> RunningRequest {
        let rid = rid(load.seed, index % load.rids);
        let (seed, begin) = (Seed::of(&rid), index / load.rids * POSITIONS);
        RunningRequest { rid, seed, begin, shape: load.shape(index), done: 0, digest: Digest::default() }
    }

    fn row(&mut self, load: &Load) -> StepRow {
        let from = self.done;
        let tokens = (self.shape.tokens - from).min(load.tokens_per_step);
        for position in from..from + tokens {
            self.digest.push(self.seed.id(self.begin + u64::from(position)));
        }
        self.done += tokens;
        // An abort has its own row, after the last tokens.
        let ended = match self.shape.ending {
            EndReason::Abort => tokens == 0,
            _ => self.done == self.shape.tokens,
        };
        StepRow {
            rid: self.rid.clone(),
            first: from == 0,
            begin: self.begin,
            from: from.into(),
            tokens,
            prompt_tokens: self.shape.prompt_tokens,
            prompt_tail: load.prompt_tail,
            ending: ended.then_some(self.shape.ending),
            aborted: false,
            digest: self.digest,
        }
    }

    fn aborted(&mut self) -> StepRow {
        StepRow {
            rid: self.rid.clone(),
            first: self.done == 0,
            begin: self.begin,
            from: self.done.into(),
            tokens: 0,
            prompt_tokens: self.shape.prompt_tokens,
            prompt_tail: 0,
            ending: Some(EndReason::Abort),
            aborted: true,
            digest: self.digest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Burst, Endings, Lengths};
    use std::collections::HashMap;

    /// Runs a load to its end with 10 ms for each step.
    fn run(load: Load) -> Vec<Step> {
        load.check().unwrap();
        let mut steps = Steps::new(load);
        let mut all = Vec::new();
        while !steps.is_done() {
            assert!(all.len() < 100_000, "the load does not end");
            all.push(steps.next(Duration::from_millis(10) * all.len() as u32));
        }
        all
    }

    #[test]
    fn every_request_gets_its_tokens_in_order_and_ends_once() {
        let mut load = Load::new(200, 40);
        load.lengths = Lengths { low: 1, high: 40 };
        load.tokens_per_step = 3;
        load.endings = Endings::MIXED;
        load.max_running = 17;
        load.arrivals = Arrivals::Rate(500.0);
        let steps = run(load.clone());
        let mut tokens: HashMap<String, u64> = HashMap::new();
        let mut ended: HashMap<String, EndReason> = HashMap::new();
        for step in &steps {
            assert!(step.rows.len() <= 17);
            for row in &step.rows {
                let so_far = tokens.entry(row.rid.clone()).or_default();
                assert_eq!(*so_far, row.from, "{}", row.rid);
                assert_eq!(row.first, *so_far == 0, "{}", row.rid);
                *so_far += u64::from(row.tokens);
                if let Some(ending) = row.ending {
                    assert_eq!(ended.insert(row.rid.clone(), ending), None, "{} ends twice", row.rid);
                }
            }
        }
        assert_eq!(ended.len(), 200);
        for index in 0..200 {
            let (rid, shape) = (rid(load.seed, index), load.shape(index));
            assert_eq!(tokens[&rid], u64::from(shape.tokens), "{rid}");
            assert_eq!(ended[&rid], shape.ending, "{rid}");
        }
    }

    #[test]
    fn a_rid_comes_again_after_its_last_row_with_other_tokens() {
        let mut load = Load::new(12, 6);
        (load.rids, load.lengths) = (3, Lengths { low: 1, high: 6 });
        let mut lives: HashMap<String, Vec<Option<EndReason>>> = HashMap::new();
        for row in run(load).iter().flat_map(|step| &step.rows) {
            let of_rid = lives.entry(row.rid.clone()).or_default();
            if row.first {
                assert!(of_rid.last().is_none_or(Option::is_some), "{} runs twice", row.rid);
                of_rid.push(None);
            }
            assert_eq!(row.begin, (of_rid.len() as u64 - 1) * POSITIONS);
            of_rid.last_mut().unwrap().clone_from(&row.ending);
        }
        assert!(lives.len() == 3 && lives.values().all(|of_rid| of_rid.len() == 4), "{lives:?}");
    }

    #[test]
    fn equal_seeds_give_equal_steps() {
        let load = |seed| {
            let mut load = Load::new(50, 20);
            load.seed = seed;
            load.endings = Endings::MIXED;
            load.arrivals = Arrivals::Rate(100.0);
            format!("{:?}", run(load))
        };
        assert_eq!(load(3), load(3));
        assert_ne!(load(3), load(4));
    }

    #[test]
    fn requests_arrive_at_once_or_by_rate() {
        let first_rows = |arrivals| {
            let mut load = Load::new(100, 10);
            load.arrivals = arrivals;
            run(load).iter().map(|step| step.rows.iter().filter(|row| row.first).count()).collect::<Vec<_>>()
        };
        let at_once = first_rows(Arrivals::AtOnce);
        assert_eq!((at_once[0], at_once.len()), (100, 10));
        let by_rate = first_rows(Arrivals::Rate(50.0));
        assert!(by_rate.iter().all(|&first| first < 10), "{by_rate:?}");
        assert!(
            (150..300).contains(&by_rate.len()),
            "100 at 50 a second take about 2 s: {} steps",
            by_rate.len()
        );
    }

    #[test]
    fn a_burst_arrives_together_at_its_time() {
        let mut load = Load::new(100, 10);
        load.arrivals = Arrivals::Rate(50.0);
        load.bursts = vec![Burst { requests: 40, at: Duration::from_millis(200) }];
        let steps = run(load);
        let firsts: Vec<usize> =
            steps.iter().map(|step| step.rows.iter().filter(|row| row.first).count()).collect();
        assert_eq!(firsts.iter().sum::<usize>(), 100);
        assert!(firsts[20] >= 40, "{firsts:?}");
        assert!(firsts.iter().enumerate().all(|(step, &first)| step == 20 || first < 10), "{firsts:?}");
    }

    #[test]
    fn an_abort_has_a_row_without_tokens() {
        let mut load = Load::new(10, 5);
        load.endings = Endings { length: 0, stop_token: 0, stop_text: 0, abort: 1 };
        let steps = run(load);
        let last: Vec<&StepRow> =
            steps.iter().flat_map(|step| &step.rows).filter(|row| row.ending.is_some()).collect();
        assert_eq!(last.len(), 10);
        assert!(last.iter().all(|row| row.tokens == 0 && row.from > 0));
    }

    #[test]
    fn an_abort_ends_only_its_request_in_the_next_step() {
        let mut steps = Steps::new(Load::new(12, 5));
        let first = steps.next(Duration::ZERO);
        steps.abort(&first.rows[3].rid);
        let next = steps.next(Duration::ZERO);
        let ended: Vec<&StepRow> = next.rows.iter().filter(|row| row.ending.is_some()).collect();
        assert_eq!(ended.len(), 1);
        let (rid, ending, tokens) = (&ended[0].rid, ended[0].ending, ended[0].tokens);
        assert_eq!((rid, ending, tokens), (&first.rows[3].rid, Some(EndReason::Abort), 0));
        assert_eq!(steps.next(Duration::ZERO).rows.len(), 11);
        steps.abort(&first.rows[0].rid[..3]);
        assert_eq!(steps.next(Duration::ZERO).rows.len(), 11);
    }

    #[test]
    fn a_stopped_scheduler_aborts_its_running_requests() {
        let mut load = Load::new(10, 5);
        load.max_running = 4;
        let mut steps = Steps::new(load);
        steps.next(Duration::ZERO);
        let last = steps.abort_all();
        assert_eq!(last.rows.iter().filter(|row| row.ending == Some(EndReason::Abort)).count(), 4);
        assert!(steps.is_done());
    }

    #[test]
    fn health_checks_idle_batches_and_control_messages_go_between_batches() {
        let mut load = Load::new(1, 12);
        (load.health_every, load.idle_every, load.control_every) = (Some(2), Some(3), Some(4));
        let steps = run(load);
        assert_eq!(steps.iter().filter(|step| step.health_check.is_some()).count(), 6);
        assert_eq!(steps.iter().filter(|step| step.idle).count(), 4);
        assert_eq!(steps.iter().filter(|step| step.control).count(), 3);
    }
}
