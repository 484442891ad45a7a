//! A configuration file, read and checked against what this build has: bundled plugins, layouts, registries.

use afterbay_config as config;
use afterbay_http::redacted;
use afterbay_plugin_loader::oci::Reference;
use std::path::Path;

/// Reads and checks a configuration file.
///
/// # Errors
/// Every problem, each a complete sentence without passwords.
pub fn load(file: &Path, has_rendezvous: bool) -> Result<config::Config, Vec<String>> {
    read(file, has_rendezvous).map_err(|problems| sentences(&problems))
}

/// Reads and checks a configuration file, as [`load`].
pub(crate) fn read(file: &Path, has_rendezvous: bool) -> Result<config::Config, config::Problems> {
    let names = match has_rendezvous {
        true => config::Names::FromRendezvous,
        false => config::Names::FromConfig,
    };
    with_env(names, |env| config::Config::load(file, env))
}

/// Reads the admin addresses and the token file of a configuration file.
///
/// # Errors
/// Every problem with them, as [`load`].
pub fn load_admin(file: &Path) -> Result<config::Admin, Vec<String>> {
    with_env(config::Names::FromRendezvous, |env| config::Config::load_admin(file, env))
        .map_err(|problems| sentences(&problems))
}

/// A problem as a sentence without passwords.
pub(crate) fn sentence(problem: &config::Problem) -> String {
    redacted(&problem.to_string())
}

pub(crate) fn sentences(problems: &config::Problems) -> Vec<String> {
    let left_out = match problems.left_out() {
        0 => None,
        more => Some(format!("and {more} more")),
    };
    problems.iter().map(sentence).chain(left_out).collect()
}

/// Calls `load` with what a configuration is checked against.
fn with_env<T>(
    names: config::Names,
    load: impl FnOnce(&config::Env<'_>) -> Result<T, config::Problems>,
) -> Result<T, config::Problems> {
    let builtin = |it: &afterbay_bundled::Bundled| config::Builtin { name: it.name, defaults: it.defaults };
    let builtins: Vec<config::Builtin<'static>> = afterbay_bundled::all().iter().map(builtin).collect();
    let reference = |text: &str| Reference::parse(text).map(drop).map_err(|error| error.to_string());
    // `check_files` reads the tokenizer itself.
    let tokenizer =
        |path: &Path| std::fs::metadata(path).map(drop).map_err(|error| format!("cannot be read: {error}"));
    let env = config::Env::of_process(names, &builtins, &reference, &tokenizer);
    load(&env)
}
