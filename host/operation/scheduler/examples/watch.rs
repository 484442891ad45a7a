//! Prints a scheduler's load and all notices: `watch SECONDS [load_snapshot=ID|PATH] [load_stat=ENDPOINT]
//! [metrics=URL] [dp_rank=N]`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use afterbay_scheduler::signals::{LoadConfig, LoadReader, SnapshotLocation};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = LoadConfig::default();
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().ok_or("give the number of seconds")?.parse()?;
    for argument in arguments {
        match argument.split_once('=') {
            Some(("load_snapshot", path)) if path.contains('/') => {
                config.load_snapshot = Some(SnapshotLocation::Path(path.into()));
            }
            Some(("load_snapshot", id)) => {
                config.load_snapshot = Some(SnapshotLocation::Instance(id.to_owned()))
            }
            Some(("load_stat", endpoint)) => config.load_stat = Some(endpoint.to_owned()),
            Some(("metrics", url)) => config.metrics = Some(url.to_owned()),
            Some(("dp_rank", rank)) => config.dp_rank = rank.parse()?,
            _ => return Err(format!("{argument:?} is not a source").into()),
        }
    }
    let (reader, start) = (LoadReader::start(config)?, Instant::now());
    let load = reader.handle();
    while start.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(500));
        for notice in reader.notices() {
            println!("{:6.2} s  {notice}", start.elapsed().as_secs_f64());
        }
        let read = load.read();
        println!("{:6.2} s  {:?} {:?}", start.elapsed().as_secs_f64(), read.freshness, read.source);
    }
    println!("{:#?}\n{:#?}", load.read(), reader.sources());
    Ok(())
}
