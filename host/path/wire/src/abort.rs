//! Messages to the scheduler: an abort ends one request, and no other. Each engine's module has its form.

use bytes::Bytes;
use serde_json::Value as Json;

use afterbay_types::Engine;

use crate::bounds::MAX_RID_BYTES;
use crate::edit::FinishReason;
use crate::error::AbortError;
use crate::kind::AbortShape;
use crate::sglang::{self, AbortReq};
use crate::vllm;

/// An abort for one scheduler: its names and its encoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortForm(pub(crate) Form);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Struct(AbortReq),
    Names,
}

impl AbortShape {
    /// The engine whose schedulers read this form.
    pub fn engine(self) -> Engine {
        match self {
            AbortShape::Names => Engine::Vllm,
            AbortShape::AnsweredNames => Engine::Smg,
            AbortShape::Msgpack | AbortShape::Struct | AbortShape::Dataclass => Engine::Sglang,
        }
    }
}

impl AbortForm {
    /// The form in every known version of the engine.
    pub fn of(shape: AbortShape) -> AbortForm {
        AbortForm(match shape {
            AbortShape::Names | AbortShape::AnsweredNames => Form::Names,
            shape => Form::Struct(AbortReq::of(shape)),
        })
    }

    /// The form that an engine's connector describes, for a process that encodes in `ipc_format`. `None`: the form follows the
    /// engine's batches.
    pub fn described(
        engine: Engine,
        name: &str,
        json: Option<&Json>,
        ipc_format: &str,
    ) -> Result<Option<AbortForm>, AbortError> {
        match (engine, json) {
            (Engine::Vllm | Engine::Smg, _) => Ok(Some(AbortForm(Form::Names))),
            (Engine::Sglang, None) => Ok(None),
            (Engine::Sglang, Some(json)) => {
                AbortReq::from_json(name, json, ipc_format).map(|form| Some(AbortForm(Form::Struct(form))))
            }
        }
    }

    /// Encodes the message that ends `rid` and no other request. The client of a request that the engine ends by itself gets
    /// `reason`, where the engine lets it. A message of several parts is one [frame](afterbay_types::parts).
    pub fn encode(&self, rid: &str, reason: Option<&FinishReason>) -> Result<Bytes, AbortError> {
        if rid.is_empty() {
            return Err(AbortError::Empty);
        }
        if rid.len() > MAX_RID_BYTES {
            return Err(AbortError::Long { bytes: rid.len() });
        }
        match &self.0 {
            Form::Struct(form) => form.encode(rid, reason),
            Form::Names => Ok(vllm::abort(rid)),
        }
    }
}

/// Reads the rid of an abort, and whether it is of all requests. `None`: another message.
pub fn read_abort(message: &Bytes) -> Option<(String, bool)> {
    vllm::read_abort(message).map(|rid| (rid, false)).or_else(|| sglang::read_abort(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SHAPES: [AbortShape; 3] = [AbortShape::Msgpack, AbortShape::Struct, AbortShape::Dataclass];
    const LONG: &str = "00000000000000009e3779b97f4a7c15";

    fn described(json: &Json, ipc_format: &str) -> Result<AbortForm, AbortError> {
        let form = AbortForm::described(Engine::Sglang, "r.json", Some(json), ipc_format)?;
        Ok(form.unwrap())
    }

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
            let written = AbortForm::of(shape).encode(LONG, None).unwrap();
            assert_eq!(read_abort(&written), read[0], "{shape:?}");
        }
    }

    #[test]
    fn the_rid_is_where_sglang_takes_no_prefix_of_it() {
        let bytes = AbortForm::of(AbortShape::Msgpack).encode("r0", None).unwrap();
        assert_eq!(&bytes[..], b"\x93\xa8AbortReq\xa9\0afterbay\xa2r0");
        let fields = ["http_worker_ipc", "new", "rid", "abort_all"];
        let json = json!({"module": "m", "class": "AbortReq", "fields": fields, "struct": true});
        let later = described(&json, "msgpack").unwrap();
        let bytes = later.encode("r0", None).unwrap();
        assert_eq!(&bytes[..], b"\x94\xa8AbortReq\xa2r0\xc0\xa9\0afterbay");
    }

    #[test]
    fn the_reason_goes_to_an_engine_that_takes_one() {
        let reason = FinishReason::Error { status: 503, message: "late".into() };
        let fields = ["rid", "http_worker_ipc", "abort_all", "finished_reason", "later"];
        let json = json!({"module": "m", "class": "AbortReq", "fields": fields, "struct": true});
        let bytes = described(&json, "msgpack").unwrap().encode("r0", Some(&reason)).unwrap();
        let map = b"\x84\xa4type\xa5abort\xa7message\xa4late\xabstatus_code\xcd\x01\xf7\xa8err_type\xc0";
        assert_eq!(bytes, [&b"\x95\xa8AbortReq\xa9\0afterbay\xa2r0\xc2"[..], map].concat());
        let pickled = described(&json, "pickle").unwrap().encode("r0", Some(&reason)).unwrap();
        let tree = crate::pickle::Tree::parse(pickled.clone()).unwrap();
        let fields = tree.object(tree.root()).unwrap().fields.unwrap();
        let reason = tree.get(fields, "finished_reason").unwrap();
        assert_eq!(tree.get(reason, "message").and_then(|value| tree.str(value)), Some("late"));
        assert_eq!(read_abort(&pickled), Some(("r0".to_owned(), false)));
    }

    #[test]
    fn an_empty_rid_and_a_long_one_are_refused() {
        for shape in SHAPES {
            let encode = |rid: &str| AbortForm::of(shape).encode(rid, None).map(|_| ());
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
        assert!(described(&good, "pickle").is_ok());
        assert!(described(&good, "msgpack").is_err());
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
            let error = described(&bad, "pickle").unwrap_err().to_string();
            assert!(error.starts_with("abort in r.json: ") && error.contains(key), "{error}");
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
