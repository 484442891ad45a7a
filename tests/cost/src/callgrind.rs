//! Runs this program under callgrind, and reads the costs of functions.

use anyhow::{Context, bail, ensure};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The cost of a function with everything that it calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Instructions outside of the kernel.
    pub instructions: u64,
    /// System calls.
    pub system_calls: u64,
}

/// The caller of a function: this program's own peers use the same sockets as the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// This program.
    Program,
    /// Any other crate.
    Path,
}

/// The costs of all functions in a part of a run, by caller and name.
#[derive(Debug, Default)]
pub struct Profile(HashMap<(Caller, String), Cost>);

/// glibc chooses its copies by the processor. Without string instructions, which callgrind counts by the byte, all processors
/// with AVX2 give the same figures.
const TUNABLES: &str = "glibc.cpu.hwcaps=-ERMS,-FSRM";

/// Runs this program with `args` under callgrind, and returns a profile for each call of the function that `part_ends` names.
pub fn run(args: &[&str], part_ends: &str) -> anyhow::Result<Vec<Profile>> {
    let dir = tempfile::tempdir()?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--collect-systime=yes"])
        .arg(format!("--dump-before=*{part_ends}*"))
        .arg(format!("--callgrind-out-file={}", dir.path().join("part").display()))
        .arg(std::env::current_exe()?)
        .args(args)
        .env("GLIBC_TUNABLES", TUNABLES);
    let status = command.status().context("valgrind does not start; on Debian: apt-get install valgrind")?;
    ensure!(status.success(), "valgrind ended with {status}");
    let mut parts =
        std::fs::read_dir(dir.path())?.filter_map(|entry| part(&entry.ok()?.path())).collect::<Vec<_>>();
    parts.sort();
    parts.iter().map(|(_, file)| Profile::read(&std::fs::read_to_string(file)?)).collect()
}

/// The number of a part's file. The file without a number is of the end of the run.
fn part(file: &Path) -> Option<(u32, PathBuf)> {
    Some((file.extension()?.to_str()?.parse().ok()?, file.to_owned()))
}

impl Profile {
    /// Reads callgrind's format: a block of each function, in which the calls of other functions have their inclusive costs.
    pub fn read(text: &str) -> anyhow::Result<Profile> {
        let (mut names, mut costs) = (HashMap::new(), HashMap::<(Caller, String), Cost>::new());
        let (mut events, mut caller, mut callee) = (Vec::new(), Caller::Path, None);
        let mut is_call = false;
        for line in text.lines() {
            if let Some(list) = line.strip_prefix("events: ") {
                events = list.split_whitespace().collect();
            } else if let Some(name) = line.strip_prefix("fn=") {
                let is_program = resolve(name, &mut names)?.starts_with("afterbay_cost::");
                caller = if is_program { Caller::Program } else { Caller::Path };
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = Some(resolve(name, &mut names)?);
            } else if line.starts_with("calls=") {
                is_call = true;
            } else if std::mem::take(&mut is_call)
                && let Some(callee) = callee.take()
            {
                // A position comes first. Zeros at the end are left out.
                let mut figures = line.split_whitespace().skip(1).map(str::parse::<u64>);
                let cost = costs.entry((caller, callee)).or_default();
                for event in &events {
                    let Some(figure) = figures.next() else { break };
                    match *event {
                        "Ir" => cost.instructions += figure?,
                        "sysCount" => cost.system_calls += figure?,
                        _ => {}
                    }
                }
            }
        }
        if !events.contains(&"Ir") {
            bail!("the file counts no instructions");
        }
        Ok(Profile(costs))
    }

    /// The cost of functions, each named by the end of its path. The error: the program does not call one of them, because it
    /// has another name now or is part of its caller.
    pub fn cost(&self, caller: Caller, functions: &[&str]) -> anyhow::Result<Cost> {
        let mut sum = Cost::default();
        for function in functions {
            let is_it = |(by, name): &(Caller, String)| {
                *by == caller && name.strip_suffix(function).is_some_and(|module| module.ends_with("::"))
            };
            let costs: Vec<&Cost> =
                self.0.iter().filter(|(call, _)| is_it(call)).map(|(_, cost)| cost).collect();
            ensure!(!costs.is_empty(), "{function} is not called: its stage cannot be measured");
            sum.instructions += costs.iter().map(|cost| cost.instructions).sum::<u64>();
            sum.system_calls += costs.iter().map(|cost| cost.system_calls).sum::<u64>();
        }
        Ok(sum)
    }
}

/// The path of a function. Its first mention has a number and the name, a later one only the number.
fn resolve(mention: &str, names: &mut HashMap<String, String>) -> anyhow::Result<String> {
    let Some((number, name)) = mention.split_once(' ') else {
        return names.get(mention).cloned().with_context(|| format!("{mention} was not named before"));
    };
    let name = path(name);
    names.insert(number.to_owned(), name.clone());
    Ok(name)
}

/// `<a::b::Type>::method`, `a::c::<impl a::b::Type>::method` and `a::b::Type::method::h0123456789abcdef` become paths that end in
/// `a::b::Type::method`.
fn path(name: &str) -> String {
    let name = match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|digit| digit.is_ascii_hexdigit()) => name,
        _ => name,
    };
    name.replace(['<', '>'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "events: Ir sysCount sysTime
fn=(1) afterbay_cost::carried::carry
0 10
cfn=(2) <afterbay_x::a::Stage>::run
calls=3 0
0 700 5
fn=(3) afterbay_x::b::path
0 40
cfn=(2)
calls=1 0
0 100 2 9
cfn=(4) afterbay_x::c::<impl afterbay_x::a::Stage>::end::h0123456789abcdef
calls=1 0
0 11
";

    #[test]
    fn the_inclusive_costs_of_calls_are_summed_by_caller() {
        let profile = Profile::read(FILE).unwrap();
        let cost = |caller, function| profile.cost(caller, &[function]).unwrap();
        assert_eq!(cost(Caller::Path, "a::Stage::run"), Cost { instructions: 100, system_calls: 2 });
        assert_eq!(cost(Caller::Program, "a::Stage::run"), Cost { instructions: 700, system_calls: 5 });
        assert_eq!(cost(Caller::Path, "a::Stage::end"), Cost { instructions: 11, system_calls: 0 });
        let both = profile.cost(Caller::Path, &["a::Stage::run", "a::Stage::end"]).unwrap();
        assert_eq!(both.instructions, 111);
    }

    #[test]
    fn a_stage_that_is_not_called_is_an_error_and_costs_not_zero() {
        let profile = Profile::read(FILE).unwrap();
        assert!(profile.cost(Caller::Path, &["a::Stage::other"]).is_err());
        assert!(profile.cost(Caller::Program, &["a::Stage::end"]).is_err());
        assert!(Profile::read("fn=(9)\n").is_err());
    }
}
