//! Schedules of the simulation: a fixed set of seeds, new ones, and seeds that once failed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_simulation::schedule::{ENGINE_SEEDS, HAND_OVER_SEEDS, RIDS_AGAIN_SEEDS, Schedule, VLLM_SEEDS};
use afterbay_simulation::soak::{Totals, quiet_panics};
use afterbay_simulation::{explain, run};
use std::time::{SystemTime, UNIX_EPOCH};

fn all_hold(seeds: impl Iterator<Item = u64>) -> Totals {
    let mut totals = Totals::default();
    for seed in seeds {
        if let Err(failed) = totals.run(seed) {
            panic!("{}", explain(&failed.0));
        }
    }
    totals
}

#[test]
fn fixed_schedules_keep_every_promise() {
    let totals = all_hold(0..400);
    assert!(totals.crashes > 80 && totals.panics > 40, "{totals:?}");
}

#[test]
fn fixed_schedules_with_hand_overs_keep_every_promise() {
    let totals = all_hold((0..300).map(|seed| seed | HAND_OVER_SEEDS));
    assert!(totals.hand_overs > 300, "{totals:?}");
}

#[test]
fn fixed_schedules_of_vllm_keep_every_promise() {
    let totals =
        all_hold((0..50).flat_map(|seed| [seed, seed | HAND_OVER_SEEDS]).map(|seed| seed | VLLM_SEEDS));
    assert!(totals.crashes > 10 && totals.panics > 5 && totals.hand_overs > 50, "{totals:?}");
}

#[test]
fn fixed_schedules_in_which_rids_come_again_keep_every_promise() {
    let seeds = (0..30).flat_map(|seed| [seed, seed | HAND_OVER_SEEDS]);
    let totals = all_hold(seeds.map(|seed| seed | RIDS_AGAIN_SEEDS));
    assert!(totals.crashes > 8 && totals.panics > 4 && totals.hand_overs > 30, "{totals:?}");
}

#[test]
fn fixed_schedules_of_engines_that_die_give_each_client_each_token_once_and_in_order() {
    let seeds = (0..60).flat_map(|seed| [seed, seed | HAND_OVER_SEEDS]);
    let totals = all_hold(seeds.map(|seed| seed | ENGINE_SEEDS));
    assert!(totals.crashes > 10 && totals.migrated > 50 && totals.hand_overs > 50, "{totals:?}");
}

/// The seeds are of the day, so that a failure can be replayed.
#[test]
fn new_schedules_keep_every_promise() {
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 86_400;
    let of_kind = |seed: u64| seed | [VLLM_SEEDS, ENGINE_SEEDS, RIDS_AGAIN_SEEDS, 0][seed as usize % 4];
    all_hold((day << 10..).take(100).map(of_kind).flat_map(|seed| [seed, seed | HAND_OVER_SEEDS]));
}

#[test]
fn the_same_schedule_runs_the_same_way() {
    quiet_panics();
    for seed in (1000..1020)
        .flat_map(|seed| [seed, seed | HAND_OVER_SEEDS, seed | VLLM_SEEDS, seed | RIDS_AGAIN_SEEDS])
    {
        let schedule = Schedule::new(seed);
        assert_eq!(run(&schedule), run(&schedule), "seed {seed}");
    }
}

/// Seeds that once failed, each with its bug.
const REGRESSIONS: &[(u64, &str)] = &[
    (30_124_351_277_765_011, "a reader forgot the promise that was broken while the stream slept"),
    (
        30_124_351_277_778_666,
        "the check asked for the count of a reader that was away while a start waited for it",
    ),
    (30_124_351_277_788_002, "the same, without a supervisor"),
    (30_124_351_277_794_321, "the same, with a small buffer of the kernel"),
    (
        30_124_351_277_810_383,
        "a new reader got a frame again before the journal knew whose count tells that it arrived",
    ),
    (30_124_351_277_811_570, "the same, after panics"),
    (
        30_124_351_277_865_980,
        "a start that died after its record of unconfirmed frames never reported these frames",
    ),
    (30_124_351_277_760_780, "a torn summary hid frames that were sent, and a start sent them again"),
    (
        30_124_351_277_766_497,
        "a panic before a full disk recovered forgot which frames a start had found missing, and they were lost",
    ),
    (
        703_243,
        "a reader that began after a lost one got frames before the journal knew of it, and got them again",
    ),
    (503_389, "verify complained about another order of sinks"),
    (
        800_829,
        "a connection that outlived a process knew nothing of frames that a start on a full disk had found missing",
    ),
    (805_035, "the check did not expect half a summary after an error of the disk"),
    (
        905_146 | HAND_OVER_SEEDS,
        "a process that handed over in the turn in which a reader was lost never reported the loss",
    ),
    (
        30_124_411_944_241_203,
        "a process that died between the record of unconfirmed frames and their report never named them",
    ),
    (
        30_124_411_944_323_049,
        "a connection that outlived a process did not know of unconfirmed frames that nobody had named",
    ),
    (30_124_411_944_253_811, "the check took a token for an equal one at another place"),
    (
        30_124_411_944_327_700,
        "the check did not expect frames that a stop on a failing disk could not record",
    ),
    (
        26 | HAND_OVER_SEEDS,
        "a torn write of records that a continued connection replaced forgot frames on their way",
    ),
    (
        30_124_450_917_652_064 | HAND_OVER_SEEDS,
        "a process that took over kept an earlier one's note of a frame, whose number another sender's frame then got",
    ),
    (
        30_124_450_917_663_401 | HAND_OVER_SEEDS,
        "a failed hand-over left frames in the old process that the journal knew as not sent",
    ),
    (30_124_450_917_653_688, "the check expected an order of frames on two connections"),
    (706_008, "the check took a frame that passed unread for a loss"),
    (
        1_152_921_504_628_130_910,
        "the reader gave the end of a row that began in an earlier request of its rid to that request",
    ),
];

#[test]
fn seeds_that_once_failed_keep_every_promise() {
    quiet_panics();
    for &(seed, bug) in REGRESSIONS {
        let schedule = Schedule::new(seed);
        if run(&schedule).is_err() {
            panic!("{bug}\n{}", explain(&schedule));
        }
    }
}

/// Runs the seed `AFTERBAY_SEED`, with the actions `AFTERBAY_ACTIONS` alone if that is set. `AFTERBAY_TRACE=1` prints each action
/// and each system call, and runs the schedule once.
#[test]
fn a_given_seed() {
    let Ok(seed) = std::env::var("AFTERBAY_SEED") else { return };
    quiet_panics();
    let schedule = Schedule::new(seed.parse().unwrap());
    let schedule = match std::env::var("AFTERBAY_ACTIONS") {
        Ok(numbers) => {
            let numbers: Vec<usize> = numbers.split(',').filter_map(|number| number.parse().ok()).collect();
            schedule.only(&numbers)
        }
        Err(_) => schedule,
    };
    match run(&schedule) {
        Err(failure) if std::env::var("AFTERBAY_TRACE").is_ok() => panic!("{failure:#?}"),
        Ok(summary) => println!("{summary:?}"),
        Err(_) => panic!("{}", explain(&schedule)),
    }
}
