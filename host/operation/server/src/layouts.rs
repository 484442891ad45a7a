//! The layouts of a stream's frames: those of the configuration, or of the engine that the connector found.

use crate::rendezvous::RendezvousFile;
use afterbay_config as config;
use afterbay_wire::Layouts;

pub(crate) fn layouts(
    stream: &config::Stream,
    rendezvous: Option<&RendezvousFile>,
) -> anyhow::Result<Layouts> {
    if stream.engine == config::Engine::Vllm {
        return Ok(Layouts::vllm());
    }
    Ok(match (&stream.layout, rendezvous.and_then(|rendezvous| rendezvous.layout.as_ref())) {
        (config::Layout::Auto, Some(layout)) => Layouts::from_json("rendezvous", &layout.to_string())?,
        (config::Layout::Auto, None) => Layouts::builtin(),
        (config::Layout::Version(version), _) => Layouts::version(version)?,
        (config::Layout::File(path), _) => Layouts::load(&path.to_string_lossy())?,
    })
}
