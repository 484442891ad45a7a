//! `AbortReq`, the one message to the scheduler: it ends a request. Every field that is not named here keeps SGLang's
//! default: the scheduler exits on a message that it cannot decode, and `abort_all` would end every request.
//!
//! SGLang ends every request whose rid *begins* with the received one, also those that still wait and that Afterbay
//! cannot see. So the message has [`EXACT`] as its rid, which begins no rid, and names the request in
//! `http_worker_ipc`, which no client can set. The connector in the scheduler ends the request of exactly this name;
//! a scheduler without it ends none.
//!
//! The scheduler tells the client of a request in its queue by itself, past Afterbay: `finished_reason` says why it ended.

use crate::pickle::{PickleWriteError, PickleWriter, Tree};
use bytes::Bytes;
use serde_json::Value as Json;

use crate::bounds::{MAX_FIELDS, MAX_RID_BYTES};
use crate::edit::FinishReason;
use crate::error::{AbortError, RowsError};
use crate::kind::AbortShape;
use crate::pack::{self, PackValue};
use crate::sglang::value_writer::wait;

const TAG: &str = "AbortReq";
const RID: &str = "rid";
const HTTP_WORKER_IPC: &str = "http_worker_ipc";
const ABORT_ALL: &str = "abort_all";
const FINISHED_REASON: &str = "finished_reason";
/// The fields of 0.5.23 and those of every version before, but for the last.
const FIELDS: [&str; 4] = [RID, HTTP_WORKER_IPC, ABORT_ALL, FINISHED_REASON];
/// The rid of an abort whose request is named in `http_worker_ipc`. `afterbay_sglang/abort.py` knows it.
const EXACT: &str = "\0afterbay";

/// False in msgpack.
const FALSE: u8 = 0xc2;

/// The names and the encoding of an abort for one scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbortReq {
    module: String,
    class: String,
    /// The fields in order, without the tag.
    fields: Vec<String>,
    shape: AbortShape,
}

impl AbortReq {
    /// The form of every version up to 0.5.23.
    pub(crate) fn of(shape: AbortShape) -> AbortReq {
        AbortReq {
            module: "sglang.srt.managers.io_struct".to_owned(),
            class: TAG.to_owned(),
            fields: FIELDS[..3].iter().map(|field| (*field).to_owned()).collect(),
            shape,
        }
    }

    /// Reads the connector's description, `{"module", "class", "fields", "struct"}`, for a process that encodes in `ipc_format`.
    pub(crate) fn from_json(name: &str, json: &Json, ipc_format: &str) -> Result<AbortReq, AbortError> {
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
        Ok(AbortReq { module: module.to_owned(), class: class.to_owned(), fields, shape })
    }

    /// Encodes the message that ends `rid`, which is checked, and no other request.
    pub(crate) fn encode(&self, rid: &str, reason: Option<&FinishReason>) -> Result<Bytes, AbortError> {
        // A field before it that is not known could not be left out of an array.
        let takes_reason = self.fields.get(..4).is_some_and(|fields| *fields == FIELDS);
        let reason = reason.filter(|_| takes_reason);
        let written = match self.shape {
            AbortShape::Msgpack => self.msgpack(rid, reason),
            AbortShape::Struct | AbortShape::Dataclass => self.pickle(rid, reason),
            _ => Err("it is another engine's".to_owned()),
        };
        written.map_err(AbortError::Write)
    }

    /// Ends the array after the last named field: missing fields at the end have their default.
    fn msgpack(&self, rid: &str, reason: Option<&FinishReason>) -> Result<Bytes, String> {
        let is_named = |field: &String| match field.as_str() {
            RID | HTTP_WORKER_IPC => true,
            FINISHED_REASON => reason.is_some(),
            _ => false,
        };
        let count = self.fields.iter().rposition(is_named).map_or(0, |last| last + 1);
        let mut out = Vec::with_capacity(32 + rid.len());
        pack::write::array(&mut out, count + 1);
        pack::write::str(&mut out, &self.class);
        for field in &self.fields[..count] {
            match (field.as_str(), reason) {
                (RID, _) => pack::write::str(&mut out, EXACT),
                (HTTP_WORKER_IPC, _) => pack::write::str(&mut out, rid),
                (FINISHED_REASON, Some(reason)) => {
                    reason.write(&mut out, 0).map_err(|error| error.to_string())?;
                }
                // Not null, which its type does not allow.
                (ABORT_ALL, _) => out.push(FALSE),
                _ => pack::write::nil(&mut out),
            }
        }
        Ok(out.into())
    }

    fn pickle(&self, rid: &str, reason: Option<&FinishReason>) -> Result<Bytes, String> {
        let AbortReq { module, class, .. } = self;
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
        let mut failed = None;
        let written: Result<(), PickleWriteError> = writer.object(source, model.root(), |writer| {
            writer.str(RID);
            writer.str(EXACT);
            writer.str(HTTP_WORKER_IPC);
            writer.str(rid);
            if self.fields.iter().any(|field| field == ABORT_ALL) {
                writer.str(ABORT_ALL);
                writer.bool(false);
            }
            if let Some(reason) = reason {
                writer.str(FINISHED_REASON);
                wait(reason.write(writer, 0), &mut failed)?;
            }
            Ok(())
        });
        failed.map_or(Ok(()), |error: RowsError| Err(error.to_string()))?;
        written.and_then(|()| writer.finish()).map_err(|error| error.to_string())
    }
}

/// Reads the rid and `abort_all` of an `AbortReq` whose first fields are the rid and `http_worker_ipc`, in either
/// encoding. `None`: another message.
pub(crate) fn read_abort(message: &Bytes) -> Option<(String, bool)> {
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
