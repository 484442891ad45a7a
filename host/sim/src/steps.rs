//! The simulated scheduler's own loop: who runs, and which tokens each gets in a step. No bytes, no sockets, no clock:
//! the time is told.

use std::time::Duration;

use crate::ids::{Digest, Random, Seed, rid};
use crate::load::{Arrivals, Ending, Load, Shape};

/// What a step sends, in this order: a control message, a batch without rows, a batch.
#[derive(Debug, Default)]
pub struct Step {
    /// A control message goes before the batch.
    pub control: bool,
    /// A batch without rows goes before the batch.
    pub idle: bool,
    /// A health check's number: its row is the batch's last.
    pub health_check: Option<u64>,
    /// One row for every running request.
    pub rows: Vec<Row>,
}

/// One request's part of a step.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub rid: String,
    /// It is the request's first.
    pub first: bool,
    /// The place of its first new token in the request's output.
    pub from: u64,
    /// Its new tokens; their ids follow from the rid and the place.
    pub tokens: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// How many of the prompt's last ones go before the new tokens, where the row is the first.
    pub prompt_tail: u32,
    /// It is the request's last.
    pub ending: Option<Ending>,
    /// Over all the request's ids, this row's included.
    pub digest: Digest,
}

/// A simulated scheduler, step by step.
#[derive(Debug)]
pub struct Steps {
    load: Load,
    running: Vec<Running>,
    arrivals: Clock,
    /// Rids that a request's name was to begin with, since the last step.
    aborts: Vec<String>,
    /// Requests that have begun to run.
    admitted: u64,
    step: u64,
}

/// When the next request comes.
#[derive(Debug)]
struct Clock {
    random: Random,
    arrived: u64,
    /// Of these: not in bursts.
    in_turn: u64,
    /// For [`Arrivals::Rate`]: when request number `arrived` comes.
    next_seconds: f64,
}

#[derive(Debug)]
struct Running {
    rid: String,
    seed: Seed,
    shape: Shape,
    done: u32,
    digest: Digest,
}

impl Steps {
    /// At its start. The load was checked.
    pub fn new(load: Load) -> Steps {
        let arrivals =
            Clock { random: Random::new(load.seed, u64::MAX), arrived: 0, in_turn: 0, next_seconds: 0.0 };
        Steps { load, running: Vec::new(), arrivals, aborts: Vec::new(), admitted: 0, step: 0 }
    }

    /// Whether every request has ended.
    pub fn is_done(&self) -> bool {
        self.running.is_empty() && self.admitted == self.load.requests
    }

    /// How many requests are running.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// As SGLang does it: every running request whose rid begins with this one is aborted, and the next step says so.
    pub fn abort(&mut self, rid: &str) {
        self.aborts.push(rid.to_owned());
    }

    /// The next step, `now` after the start. Without a row where nobody is there yet.
    pub fn next(&mut self, now: Duration) -> Step {
        self.arrivals.advance(&self.load, now, self.step);
        let limit = self.load.max_running as usize;
        while self.admitted < self.arrivals.arrived && self.running.len() < limit {
            self.running.push(Running::new(&self.load, self.admitted));
            self.admitted += 1;
        }
        let due = |every: Option<u64>| every.is_some_and(|every| self.step % every == every - 1);
        let mut step = Step {
            control: due(self.load.control_every),
            idle: due(self.load.idle_every),
            health_check: due(self.load.health_every).then_some(self.step),
            rows: Vec::with_capacity(self.running.len()),
        };
        let aborts = std::mem::take(&mut self.aborts);
        for request in &mut self.running {
            let is_aborted = aborts.iter().any(|rid| request.rid.starts_with(rid));
            step.rows.push(if is_aborted { request.aborted() } else { request.row(&self.load) });
        }
        let mut rows = step.rows.iter();
        self.running.retain(|_| rows.next().is_some_and(|row| row.ending.is_none()));
        self.step += 1;
        step
    }

    /// The last step of a scheduler that is told to stop: everybody who runs is aborted, nobody comes any more.
    pub fn abort_all(&mut self) -> Step {
        self.load.requests = self.admitted;
        let rows = self.running.drain(..).map(|mut request| request.aborted()).collect();
        Step { rows, ..Step::default() }
    }
}

impl Clock {
    fn advance(&mut self, load: &Load, now: Duration, step: u64) {
        let requests = load.in_turn();
        match load.arrivals {
            Arrivals::AtOnce => self.in_turn = requests,
            Arrivals::Rate(rate) => {
                while self.in_turn < requests && self.next_seconds <= now.as_secs_f64() {
                    self.in_turn += 1;
                    self.next_seconds -= self.random.unit().ln() / rate;
                }
            }
            Arrivals::Staggered(fraction) => {
                let late = (requests as f64 * fraction) as u64;
                let mean = (u64::from(load.lengths.low) + u64::from(load.lengths.high)) / 2;
                let steps = mean.div_ceil(load.tokens_per_step.into()).max(1);
                // Number k of the late ones joins at step 1 + k * steps / late.
                let joined = if step == 0 { 0 } else { (step * late).div_ceil(steps).min(late) };
                self.in_turn = requests - late + joined;
            }
        }
        self.arrived = self.in_turn + load.burst_by(now);
    }
}

impl Running {
    fn new(load: &Load, index: u64) -> Running {
        let rid = rid(load.seed, index);
        let seed = Seed::of(&rid);
        Running { rid, seed, shape: load.shape(index), done: 0, digest: Digest::default() }
    }

    fn row(&mut self, load: &Load) -> Row {
        let from = self.done;
        let tokens = (self.shape.tokens - from).min(load.tokens_per_step);
        for place in from..from + tokens {
            self.digest.push(self.seed.id(place.into()));
        }
        self.done += tokens;
        // An abort is told by a row of its own, after the last tokens.
        let ended = match self.shape.ending {
            Ending::Abort => tokens == 0,
            _ => self.done == self.shape.tokens,
        };
        Row {
            rid: self.rid.clone(),
            first: from == 0,
            from: from.into(),
            tokens,
            prompt_tokens: self.shape.prompt_tokens,
            prompt_tail: load.prompt_tail,
            ending: ended.then_some(self.shape.ending),
            digest: self.digest,
        }
    }

    fn aborted(&mut self) -> Row {
        Row {
            rid: self.rid.clone(),
            first: self.done == 0,
            from: self.done.into(),
            tokens: 0,
            prompt_tokens: self.shape.prompt_tokens,
            prompt_tail: 0,
            ending: Some(Ending::Abort),
            digest: self.digest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Burst, Endings, Lengths};
    use std::collections::HashMap;

    /// Runs a load to its end, 10 ms a step.
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
        let mut ended: HashMap<String, Ending> = HashMap::new();
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
    fn the_same_seed_gives_the_same_steps_and_another_gives_others() {
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
    fn requests_come_all_at_once_by_rate_or_staggered() {
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
        let staggered = first_rows(Arrivals::Staggered(0.5));
        assert_eq!((staggered[0], &staggered[1..11]), (50, &[5; 10][..]));
    }

    #[test]
    fn a_burst_comes_together_at_its_time_and_every_request_once() {
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
    fn an_abort_is_told_by_a_row_without_tokens() {
        let mut load = Load::new(10, 5);
        load.endings = Endings { length: 0, stop_token: 0, stop_text: 0, abort: 1 };
        let steps = run(load);
        let last: Vec<&Row> =
            steps.iter().flat_map(|step| &step.rows).filter(|row| row.ending.is_some()).collect();
        assert_eq!(last.len(), 10);
        assert!(last.iter().all(|row| row.tokens == 0 && row.from > 0));
    }

    #[test]
    fn an_abort_ends_every_request_whose_rid_begins_with_it_in_the_next_step() {
        let mut steps = Steps::new(Load::new(12, 5));
        let first = steps.next(Duration::ZERO);
        steps.abort(&first.rows[3].rid);
        let next = steps.next(Duration::ZERO);
        let ended: Vec<&Row> = next.rows.iter().filter(|row| row.ending.is_some()).collect();
        assert_eq!(ended.len(), 1);
        let (rid, ending, tokens) = (&ended[0].rid, ended[0].ending, ended[0].tokens);
        assert_eq!((rid, ending, tokens), (&first.rows[3].rid, Some(Ending::Abort), 0));
        assert_eq!(steps.next(Duration::ZERO).rows.len(), 11);
        let same = first.rows[0].rid.len().min(3);
        steps.abort(&first.rows[0].rid[..same]);
        assert!(steps.next(Duration::ZERO).rows.iter().all(|row| row.ending.is_some()));
    }

    #[test]
    fn told_to_stop_it_aborts_who_runs_and_is_done() {
        let mut load = Load::new(10, 5);
        load.max_running = 4;
        let mut steps = Steps::new(load);
        steps.next(Duration::ZERO);
        let last = steps.abort_all();
        assert_eq!(last.rows.iter().filter(|row| row.ending == Some(Ending::Abort)).count(), 4);
        assert!(steps.is_done());
    }

    #[test]
    fn health_checks_idle_batches_and_control_messages_come_between() {
        let mut load = Load::new(1, 12);
        (load.health_every, load.idle_every, load.control_every) = (Some(2), Some(3), Some(4));
        let steps = run(load);
        assert_eq!(steps.iter().filter(|step| step.health_check.is_some()).count(), 6);
        assert_eq!(steps.iter().filter(|step| step.idle).count(), 4);
        assert_eq!(steps.iter().filter(|step| step.control).count(), 3);
    }
}
