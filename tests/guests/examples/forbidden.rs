//! In its first batch, does the action that its settings name. Every action fails except `map`,
//! `environment`, `arguments`, `clock` (which stands still) and printing.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Forbidden {
    r#do: String,
}

impl Plugin for Forbidden {
    type Settings = Forbidden;
    const COLUMNS: Columns = Columns::empty();

    fn new(settings: Forbidden) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        let result = match self.r#do.as_str() {
            "clock" => {
                let start = std::time::Instant::now();
                (0..1_000_000).for_each(|turn| _ = std::hint::black_box(turn));
                format!("{:?}", start.elapsed())
            }
            "date" => format!("{:?}", std::time::SystemTime::now()),
            "file" => format!("{:?}", std::fs::read("/etc/passwd")),
            "print" => {
                println!("out");
                "printed".into()
            }
            "print error" => {
                eprintln!("err");
                "printed".into()
            }
            "print and abort" => {
                println!("the shore is wet");
                eprintln!("Traceback:\n  the lake is dry");
                std::process::abort()
            }
            "exit" => std::process::exit(3),
            "sleep" => {
                std::thread::sleep(std::time::Duration::from_secs(60));
                "slept".into()
            }
            "environment" => format!("{:?}", std::env::vars().collect::<Vec<_>>()),
            "arguments" => format!("{:?}", std::env::args().collect::<Vec<_>>()),
            "map" => {
                let map = (0..32).map(|i| (i, i)).collect::<std::collections::HashMap<_, _>>();
                format!("{:?}", map.keys().collect::<Vec<_>>())
            }
            "deep stack" => format!("{}", deep(batch.len() as u64)),
            other => panic!("cannot do {other}"),
        };
        if let Some(row) = batch.rows().next() {
            verdicts.drop(row, result);
        }
    }
}

/// Recurses forever, in a way that the compiler does not detect.
fn deep(depth: u64) -> u64 {
    let here = std::hint::black_box([depth; 64]);
    if here[0] == u64::MAX { 0 } else { deep(here[1] + 1) + here[2] }
}

afterbay_plugin::export!(Forbidden);
