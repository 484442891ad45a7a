//! `afterbay plugin push`: sends a component to a registry, and prints the lines that pin it.

use crate::check::problems;
use crate::plugin_args::{UsageError, find, terms};
use afterbay_plugin_loader::oci::{Artifact, Pushed, TagReference, push};
use afterbay_plugin_loader::plugin_host;
use afterbay_runtime::{CONTRACT, Component, Limits, LoadError};
use afterbay_terminal as screen;
use anyhow::Context;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// Push a component to a registry, and print the lines of a configuration that pin it
///
/// Checks first that the component is a plugin that this Afterbay runs. The credentials are those of `docker login`, also from a
/// credential helper. A registry on a loopback address is used without TLS. The artifact has the CNCF's layout for WebAssembly.
///
/// The same component gives the same digest at each push, and a component that the registry has is not sent again: after an error,
/// push again. A tag that names another component moves to this one, and the earlier digest is printed. A configuration that pins
/// the earlier digest keeps its component.
///
/// Exits 1 if the component is no plugin or the registry refuses it, and 64 if the command line is wrong.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin push stop_on_loop.wasm ghcr.io/acme/stop-on-loop:1.2\n\n\
JSON: reference (for component in [[stream.plugin]]), manifest_digest, component_digest (for [plugins] allow), bytes, \
sent (false if the registry had the component), tag_named (the digest that the tag named before, or null)."
)]
pub(crate) struct Args {
    /// A component file, builtin:NAME, oci://HOST/REPOSITORY@sha256:DIGEST, or the directory of a project that was built
    #[arg(value_name = "PLUGIN")]
    plugin: String,
    /// The registry, the repository and the tag
    #[arg(value_name = "HOST/REPOSITORY:TAG")]
    target: String,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let target = TagReference::parse(&args.target).map_err(|error| UsageError(error.to_string()))?;
    let source = find(&args.plugin, Path::new(""))?;
    let busy = screen::Busy::new(format!("checking {}", args.plugin));
    // The pushed bytes are the checked ones, even if the file changes in the meantime.
    let bytes = source.read()?;
    let component = match plugin_host()?.load(&source.name, &bytes, terms(Limits::default(), None)?) {
        Ok(component) => component,
        Err(error) => {
            drop(busy);
            print_problems(error);
            return Ok(ExitCode::FAILURE);
        }
    };
    let artifact = artifact(&component, bytes.into_owned());
    let size = screen::bytes(artifact.component.len() as u64);
    busy.say(format!("sending {size} to {target}"));
    let pushed = push(&target, &artifact);
    drop(busy);
    let pushed = pushed.with_context(|| format!("cannot push {} to {target}", args.plugin))?;
    match args.json {
        true => screen::say_json(&json(&pushed, &artifact)),
        false => print(&pushed, &target, &size),
    }
    Ok(ExitCode::SUCCESS)
}

fn print_problems(error: LoadError) {
    problems(error).into_iter().for_each(|problem| screen::complain(screen::bad(problem)));
}

/// The component and the facts about it.
fn artifact(component: &Component, bytes: Vec<u8>) -> Artifact {
    let said = component.description();
    Artifact {
        component: bytes.into(),
        name: said.name.clone(),
        version: said.version.clone(),
        imports: component.imports().to_vec(),
        exports: vec![format!("afterbay:plugin/plugin@{CONTRACT}")],
    }
}

fn json(pushed: &Pushed, artifact: &Artifact) -> Value {
    json!({
        "reference": pushed.reference.to_string(),
        "manifest_digest": pushed.reference.digest(),
        "component_digest": pushed.component_digest,
        "bytes": artifact.component.len(),
        "sent": pushed.is_sent,
        "tag_named": pushed.tag_named,
    })
}

/// Prints the lines for a configuration on standard output, and what happened on standard error.
fn print(pushed: &Pushed, target: &TagReference, size: &str) {
    let (digest, tag) = (pushed.reference.digest(), target.tag());
    match pushed.is_sent {
        true => screen::complain(format!("pushed {size} to {target}")),
        false => screen::complain(format!("{target}: the registry has this component already")),
    }
    match pushed.tag_named.as_deref() {
        Some(earlier) if earlier != digest => {
            let moved =
                format!("the tag {tag} moved: it named {earlier}, which configurations may still pin");
            screen::complain(screen::warn_if(moved, true));
        }
        Some(_) => screen::complain(format!("the tag {tag} named it already")),
        None => {}
    }
    screen::say("# in [[stream.plugin]]");
    screen::say(format!("component = {:?}", pushed.reference.to_string()));
    screen::say("# in [plugins], if it lists what may run");
    screen::say(format!("allow = [{:?}]", pushed.component_digest));
}
