//! `AbortReq`, the one message to the scheduler: it ends a request. Every field that is not named here keeps SGLang's
//! default: the scheduler exits on a message that it cannot decode, and `abort_all` would end every request.
//!
//! SGLang ends every request whose rid *begins* with the received one, also those that still wait and that Afterbay
//! cannot see. So the message has [`EXACT`] as its rid, which begins no rid, and names the request in
//! `http_worker_ipc`, which no client can set. The connector in the scheduler ends the request of exactly this name;
//! a scheduler without it ends none.

use crate::pickle::{PickleWriteError, PickleWriter, Tree};
use afterbay_types::parts;
use bytes::Bytes;
use serde_json::Value as Json;
use thiserror::Error;

use crate::bounds::{MAX_FIELDS, MAX_RID_BYTES};
use crate::pack::{self, PackValue};

const TAG: &str = "AbortReq";
const RID: &str = "rid";
const HTTP_WORKER_IPC: &str = "http_worker_ipc";
const ABORT_ALL: &str = "abort_all";
/// The rid of an abort whose request is named in `http_worker_ipc`. `afterbay_sglang/abort.py` knows it.
const EXACT: &str = "\0afterbay";
/// The type of vLLM's request `ABORT`.
const ENGINE_ABORT: &[u8] = &[1];

/// The form of `AbortReq` in a version of SGLang. A scheduler's input socket has the encoding of its output socket
/// (`SGLANG_USE_PICKLE_IPC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortShape {
    /// A msgpack array: 0.5.15 and later, with `SGLANG_USE_PICKLE_IPC=0`.
    Msgpack,
    /// A pickled msgspec struct: 0.5.15 and later.
    Struct,
    /// A pickled dataclass: 0.5.14 and earlier.
    Dataclass,
    /// vLLM's request `ABORT`: two parts, the type and a msgpack array of the names of requests. It ends the named
    /// requests only, and the engine does not answer.
    EngineCore,
}

/// The names and the encoding of an abort for one scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortForm {
    module: String,
    class: String,
    /// The fields in order, without the tag.
    fields: Vec<String>,
    shape: AbortShape,
}

/// The reason why an abort was not encoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AbortError {
    /// An empty rid would end every request.
    #[error("rid is empty, which to SGLang means every request")]
    Empty,
    /// The rid is too long.
    #[error("rid of {bytes} bytes is over the limit of {MAX_RID_BYTES}")]
    Long {
        /// The rid's length.
        bytes: usize,
    },
    /// The connector's description of the class is invalid.
    #[error("{TAG} in {name}: {why}")]
    Form {
        /// The source of the description.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// Writing failed. With checked names it does not.
    #[error("{TAG} cannot be written: {0}")]
    Write(String),
}

impl AbortForm {
    /// The form of every version up to 0.5.23.
    pub fn of(shape: AbortShape) -> AbortForm {
        AbortForm {
            module: "sglang.srt.managers.io_struct".to_owned(),
            class: TAG.to_owned(),
            fields: [RID, HTTP_WORKER_IPC, ABORT_ALL].map(str::to_owned).to_vec(),
            shape,
        }
    }

    /// Reads the connector's description, `{"module", "class", "fields", "struct"}`, for a process that encodes in `ipc_format`.
    pub fn from_json(name: &str, json: &Json, ipc_format: &str) -> Result<AbortForm, AbortError> {
        let wrong = |why| AbortError::Form { name: name.to_owned(), why };
        let text = |key| json.get(key).and_then(Json::as_str);
        // The name becomes a line of a pickle that names an importable object.
        let is_name = |name: &&str| {
            !name.is_empty()
                && name.len() <= MAX_RID_BYTES
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
        };
        let module =
            text("module").filter(is_name).ok_or_else(|| wrong("\"module\" is no name of a module"))?;
        let class = text("class").filter(is_name).ok_or_else(|| wrong("\"class\" is no name of a class"))?;
        let fields = json.get("fields").and_then(Json::as_array).filter(|fields| fields.len() <= MAX_FIELDS);
        let fields: Option<Vec<String>> =
            fields.and_then(|fields| fields.iter().map(|it| it.as_str().map(str::to_owned)).collect());
        let fields = fields.ok_or_else(|| wrong("\"fields\" is no list of names"))?;
        if ![RID, HTTP_WORKER_IPC].iter().all(|name| fields.iter().any(|field| field == name)) {
            return Err(wrong("\"fields\" has no \"rid\" or no \"http_worker_ipc\""));
        }
        let shape = match (json.get("struct").and_then(Json::as_bool), ipc_format) {
            (Some(true), "msgpack") => AbortShape::Msgpack,
            (Some(true), "pickle") => AbortShape::Struct,
            (Some(false), "pickle") => AbortShape::Dataclass,
            (Some(false), "msgpack") => {
                return Err(wrong("\"struct\" is false, and dataclasses have no msgpack"));
            }
            (None, _) => return Err(wrong("\"struct\" is neither true nor false")),
            _ => return Err(wrong("its process encodes neither pickle nor msgpack")),
        };
        Ok(AbortForm { module: module.to_owned(), class: class.to_owned(), fields, shape })
    }

    /// Encodes the message that ends `rid` and no other request. For vLLM it is a message of two parts as one
    /// [frame](parts).
    pub fn encode(&self, rid: &str) -> Result<Bytes, AbortError> {
        if rid.is_empty() {
            return Err(AbortError::Empty);
        }
        if rid.len() > MAX_RID_BYTES {
            return Err(AbortError::Long { bytes: rid.len() });
        }
        match self.shape {
            AbortShape::Msgpack => Ok(self.msgpack(rid)),
            AbortShape::Struct | AbortShape::Dataclass => self.pickle(rid).map_err(AbortError::Write),
            AbortShape::EngineCore => {
                let mut out = Vec::with_capacity(16 + rid.len());
                pack::write::array(&mut out, 1);
                pack::write::str(&mut out, rid);
                Ok(parts::join(&[Bytes::from_static(ENGINE_ABORT), out.into()]))
            }
        }
    }

    /// Ends the array after the last named field: missing fields at the end have their default.
    fn msgpack(&self, rid: &str) -> Bytes {
        let named = |field: &str| match field {
            RID => Some(EXACT),
            HTTP_WORKER_IPC => Some(rid),
            _ => None,
        };
        let count = self.fields.iter().rposition(|field| named(field).is_some()).map_or(0, |last| last + 1);
        let mut out = Vec::with_capacity(32 + rid.len());
        pack::write::array(&mut out, count + 1);
        pack::write::str(&mut out, &self.class);
        for field in &self.fields[..count] {
            match named(field) {
                Some(value) => pack::write::str(&mut out, value),
                None => pack::write::nil(&mut out),
            }
        }
        out.into()
    }

    fn pickle(&self, rid: &str) -> Result<Bytes, String> {
        let AbortForm { module, class, .. } = self;
        let is_struct = self.shape == AbortShape::Struct;
        let model = match is_struct {
            true => format!("\u{80}\u{5}cmsgspec._utils\nrebuild\n(c{module}\n{class}\n}}tR."),
            false => format!("\u{80}\u{4}c{module}\n{class}\n)\u{81}}}b."),
        };
        // One byte per character: the names are ASCII, the opcodes Latin-1.
        let model: Vec<u8> = model.chars().map(|c| c as u8).collect();
        let model = Tree::parse(model.into()).map_err(|error| error.to_string())?;
        let mut writer = PickleWriter::new(if is_struct { 5 } else { 4 });
        let source = writer.source(&model);
        let written: Result<(), PickleWriteError> = writer.object(source, model.root(), |writer| {
            writer.str(RID);
            writer.str(EXACT);
            writer.str(HTTP_WORKER_IPC);
            writer.str(rid);
            if self.fields.iter().any(|field| field == ABORT_ALL) {
                writer.str(ABORT_ALL);
                writer.bool(false);
            }
            Ok(())
        });
        written.and_then(|()| writer.finish()).map_err(|error| error.to_string())
    }
}

/// Reads the rid and `abort_all` of an `AbortReq` whose first fields are the rid and `http_worker_ipc`, in either
/// encoding, or the first request that vLLM's `ABORT` names. `None`: another message.
pub fn read_abort(message: &Bytes) -> Option<(String, bool)> {
    if parts::is_envelope(message) {
        let parts = parts::split(message).ok()?;
        let [kind, names] = parts.as_slice() else { return None };
        pack::skip(names, 0).ok().filter(|end| *kind == ENGINE_ABORT && *end == names.len())?;
        let PackValue::Array(count, inside) = pack::item(names)? else { return None };
        let first = pack::items(inside, count).next()?;
        return Some((std::str::from_utf8(pack::str_bytes(first)?).ok()?.to_owned(), false));
    }
    if message.first() == Some(&0x80) {
        let tree = Tree::parse(message.clone()).ok()?;
        let object = tree.object(tree.root()).filter(|object| object.name == TAG)?;
        let fields = object.fields?;
        let text = |name| tree.get(fields, name).and_then(|value| tree.str(value));
        let rid = text(RID)?;
        let rid = if rid == EXACT { text(HTTP_WORKER_IPC)? } else { rid };
        let all = tree.get(fields, ABORT_ALL).and_then(|all| tree.bool(all));
        return Some((rid.to_owned(), all.unwrap_or(false)));
    }
    pack::skip(message, 0).ok().filter(|end| *end == message.len())?;
    let PackValue::Array(count, inside) = pack::item(message)? else { return None };
    let mut items = pack::items(inside, count);
    if pack::str_bytes(items.next()?)? != TAG.as_bytes() {
        return None;
    }
    let text = |item| std::str::from_utf8(pack::str_bytes(item)?).ok();
    let (rid, ipc) = (text(items.next()?)?, items.next().and_then(text));
    let rid = if rid == EXACT { ipc? } else { rid };
    let all = items.next().and_then(pack::item) == Some(PackValue::Bool(true));
    Some((rid.to_owned(), all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SHAPES: [AbortShape; 3] = [AbortShape::Msgpack, AbortShape::Struct, AbortShape::Dataclass];
    const LONG: &str = "00000000000000009e3779b97f4a7c15";

    #[test]
    fn aborts_of_the_real_sglang_are_read_and_written_ones_say_the_same() {
        let real: [&[u8]; 4] = [
            include_bytes!("../../../../tests/fixtures/frames/ctl_abort.msgpack"),
            include_bytes!("../../../../tests/fixtures/frames/ctl_abort.pickle"),
            include_bytes!("../../../../tests/fixtures/frames/ctl_abort_all.msgpack"),
            include_bytes!("../../../../tests/fixtures/frames/ctl_abort_all.pickle"),
        ];
        let read = real.map(|bytes| read_abort(&Bytes::from_static(bytes)));
        assert_eq!(read[0], Some((LONG.to_owned(), false)));
        assert_eq!(read[1], read[0]);
        assert_eq!(read[2], Some((String::new(), true)));
        assert_eq!(read[3], read[2]);
        let old = include_bytes!("../../../../tests/fixtures/versions/0.5.14/ctl_abort.pickle");
        assert_eq!(read_abort(&Bytes::from_static(old)), Some(("r0".to_owned(), false)));
        for shape in SHAPES {
            let written = AbortForm::of(shape).encode(LONG).unwrap();
            assert_eq!(read_abort(&written), read[0], "{shape:?}");
        }
    }

    #[test]
    fn the_rid_is_where_sglang_takes_no_prefix_of_it() {
        let bytes = AbortForm::of(AbortShape::Msgpack).encode("r0").unwrap();
        assert_eq!(&bytes[..], b"\x93\xa8AbortReq\xa9\0afterbay\xa2r0");
        let fields = ["http_worker_ipc", "new", "rid", "abort_all"];
        let json = json!({"module": "m", "class": "AbortReq", "fields": fields, "struct": true});
        let later = AbortForm::from_json("r.json", &json, "msgpack").unwrap();
        let bytes = later.encode("r0").unwrap();
        assert_eq!(&bytes[..], b"\x94\xa8AbortReq\xa2r0\xc0\xa9\0afterbay");
    }

    #[test]
    fn an_empty_rid_and_a_long_one_are_refused() {
        for shape in SHAPES {
            let encode = |rid: &str| AbortForm::of(shape).encode(rid).map(|_| ());
            assert_eq!(encode(""), Err(AbortError::Empty));
            assert_eq!(encode(&"r".repeat(MAX_RID_BYTES)), Ok(()));
            let bytes = MAX_RID_BYTES + 1;
            assert_eq!(encode(&"r".repeat(bytes)), Err(AbortError::Long { bytes }));
        }
    }

    #[test]
    fn a_form_that_names_something_else_is_refused() {
        let fields = ["rid", "http_worker_ipc"];
        let good = json!({"module": "a.b", "class": "AbortReq", "fields": fields, "struct": false});
        assert!(AbortForm::from_json("r.json", &good, "pickle").is_ok());
        assert!(AbortForm::from_json("r.json", &good, "msgpack").is_err());
        for (key, value) in [
            ("module", json!("os\nsystem")),
            ("class", json!("")),
            ("fields", json!(["http_worker_ipc"])),
            ("fields", json!(["rid"])),
            ("fields", json!("rid")),
            ("struct", json!(1)),
        ] {
            let mut bad = good.clone();
            bad[key] = value.clone();
            let error = AbortForm::from_json("r.json", &bad, "pickle").unwrap_err().to_string();
            assert!(error.starts_with("AbortReq in r.json: ") && error.contains(key), "{error}");
        }
    }

    #[test]
    fn other_messages_are_no_aborts() {
        for bytes in [
            &b""[..],
            b"\x80",
            b"\x90",
            b"\x92\xa8AbortReq",
            b"\x92\xa8AbortRes\xa1r",
            b"\x92\xa8AbortReq\x01",
        ] {
            assert_eq!(read_abort(&Bytes::copy_from_slice(bytes)), None, "{bytes:?}");
        }
    }
}
