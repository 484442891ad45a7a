//! The imports that have an effect outside of the instance: `store`, `call` and `health`.
//!
//! An instance that is not on the path (a replay, a tool, an instance that is being prepared) changes no store, and its
//! calls are never sent. The stream takes the calls and the health mark after each call of the plugin.

use wasmtime::component::{LinkerInstance, WasmList, WasmStr};

use crate::bindings::afterbay::plugin::store::StoreError;
use crate::columns::RequestId;
use crate::grants::Store;
use crate::guest::{Caller, Guest, cut};
use crate::limits::{
    CALL_BODY_BYTES_MAX, CALLS_WAITING_MAX, ENDPOINT_BYTES_MAX, HEALTH_BYTES_MAX, KEY_BYTES_MAX,
    KEYS_LISTED_MAX, UNSENT_CALLS_MAX, VALUE_BYTES_MAX,
};

/// The number of a plugin's call, unique in its instance.
pub type CallId = u64;

/// A call that a plugin made (`call.send`), for the stream to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentCall {
    /// The number of the call. The answer names it.
    pub call: CallId,
    /// The request that the call is about. It may not be open.
    pub request: RequestId,
    /// The endpoint's name, as the plugin gives it.
    pub endpoint: String,
    /// The body, or the reason why the call cannot be sent.
    pub body: Result<Vec<u8>, Unsent>,
}

/// The reason why a call is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// The instance was not on the path when it made the call, so the call is cancelled.
    #[error("made during a replay")]
    NotOnPath,
    /// The body or the endpoint's name is too long.
    #[error("the {what} has {bytes} bytes, at most {limit} are allowed")]
    TooLong {
        /// `body` or `name of the endpoint`.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many calls wait for the stream.
    #[error("{CALLS_WAITING_MAX} calls were made at once, the limit")]
    TooMany,
}

/// The effects of an instance that wait for the stream.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Whether the instance is on the path: its effects take place.
    pub(crate) are_enabled: bool,
    calls: Vec<SentCall>,
    last_call: CallId,
    /// The reason why the stream is not ready, as the plugin says.
    pub(crate) not_ready: Option<String>,
    /// Whether the mark has changed since the stream has read it.
    pub(crate) has_health_changed: bool,
}

impl Effects {
    pub(crate) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    pub(crate) fn drain_calls(&mut self) -> Vec<SentCall> {
        std::mem::take(&mut self.calls)
    }

    /// Records a call. The error ends the guest.
    fn send(
        &mut self,
        endpoint: (String, usize),
        request: RequestId,
        body: Result<Vec<u8>, usize>,
    ) -> wasmtime::Result<CallId> {
        if self.calls.len() >= UNSENT_CALLS_MAX {
            wasmtime::bail!("made more than {UNSENT_CALLS_MAX} calls at once, the limit");
        }
        let too_long = |what, bytes, limit| Unsent::TooLong { what, bytes, limit };
        let body = match (endpoint.1, body) {
            _ if !self.are_enabled => Err(Unsent::NotOnPath),
            (bytes, _) if bytes > ENDPOINT_BYTES_MAX => {
                Err(too_long("name of the endpoint", bytes, ENDPOINT_BYTES_MAX))
            }
            (_, Err(bytes)) => Err(too_long("body", bytes, CALL_BODY_BYTES_MAX)),
            (_, Ok(_)) if self.calls.len() >= CALLS_WAITING_MAX => Err(Unsent::TooMany),
            (_, Ok(body)) => Ok(body),
        };
        self.last_call += 1;
        self.calls.push(SentCall { call: self.last_call, request, endpoint: endpoint.0, body });
        Ok(self.last_call)
    }
}

fn send(
    mut caller: Caller<'_>,
    (endpoint, request, body): (WasmStr, RequestId, WasmList<u8>),
) -> wasmtime::Result<(CallId,)> {
    let endpoint = cut(&mut caller, &endpoint, ENDPOINT_BYTES_MAX)?;
    let bytes = body.as_le_slice(&caller);
    let body = match bytes.len() {
        // A body that is not sent is not copied.
        _ if !caller.data().effects.are_enabled => Ok(Vec::new()),
        0..=CALL_BODY_BYTES_MAX => Ok(bytes.to_vec()),
        bytes => Err(bytes),
    };
    let Guest { clock, effects, .. } = caller.data_mut();
    clock.charge_bytes(body.as_ref().map_or(0, Vec::len))?;
    Ok((effects.send(endpoint, request, body)?,))
}

fn set_not_ready(mut caller: Caller<'_>, (reason,): (Option<WasmStr>,)) -> wasmtime::Result<()> {
    let reason = reason.map(|reason| cut(&mut caller, &reason, HEALTH_BYTES_MAX)).transpose()?;
    let effects = &mut caller.data_mut().effects;
    let reason = reason.map(|(reason, _)| reason);
    effects.has_health_changed |= reason != effects.not_ready;
    effects.not_ready = reason;
    Ok(())
}

/// Calls the store with a key. `bad` is the answer for a key that no store can have.
fn with_key<T>(
    mut caller: Caller<'_>,
    key: &WasmStr,
    bad: T,
    call: impl FnOnce(&dyn Store, &str, Caller<'_>) -> wasmtime::Result<T>,
) -> wasmtime::Result<(T,)> {
    let (key, bytes) = cut(&mut caller, key, KEY_BYTES_MAX)?;
    // A component that imports this interface was granted it.
    let Some(store) = caller.data().grants.store.clone().filter(|_| (1..=KEY_BYTES_MAX).contains(&bytes))
    else {
        return Ok((bad,));
    };
    Ok((call(&*store, &key, caller)?,))
}

fn get(caller: Caller<'_>, (key,): (WasmStr,)) -> wasmtime::Result<(Option<Vec<u8>>,)> {
    with_key(caller, &key, None, |store, key, mut caller| {
        let value = store.get(key);
        caller.data_mut().clock.charge_bytes(value.as_ref().map_or(0, Vec::len))?;
        Ok(value)
    })
}

fn set(
    caller: Caller<'_>,
    (key, value): (WasmStr, WasmList<u8>),
) -> wasmtime::Result<(Result<(), StoreError>,)> {
    with_key(caller, &key, Err(StoreError::BadKey), |store, key, mut caller| {
        let bytes = value.as_le_slice(&caller);
        if bytes.len() > VALUE_BYTES_MAX {
            return Ok(Err(StoreError::Full));
        }
        let stored = if caller.data().effects.are_enabled { store.set(key, bytes) } else { Ok(()) };
        let bytes = bytes.len();
        caller.data_mut().clock.charge_bytes(bytes)?;
        Ok(stored)
    })
}

fn delete(caller: Caller<'_>, (key,): (WasmStr,)) -> wasmtime::Result<()> {
    with_key(caller, &key, (), |store, key, caller| {
        if caller.data().effects.are_enabled {
            store.delete(key);
        }
        Ok(())
    })?;
    Ok(())
}

fn increment(
    caller: Caller<'_>,
    (key, delta): (WasmStr, i64),
) -> wasmtime::Result<(Result<i64, StoreError>,)> {
    with_key(caller, &key, Err(StoreError::BadKey), |store, key, caller| {
        Ok(store.increment(key, if caller.data().effects.are_enabled { delta } else { 0 }))
    })
}

fn list_keys(
    mut caller: Caller<'_>,
    (prefix, after): (WasmStr, Option<WasmStr>),
) -> wasmtime::Result<(Vec<String>,)> {
    let (prefix, bytes) = cut(&mut caller, &prefix, KEY_BYTES_MAX)?;
    let after = after.map(|after| cut(&mut caller, &after, KEY_BYTES_MAX)).transpose()?;
    let Some(store) = caller.data().grants.store.clone().filter(|_| bytes <= KEY_BYTES_MAX) else {
        return Ok((Vec::new(),));
    };
    let mut keys = store.keys(&prefix, after.as_ref().map(|(after, _)| after.as_str()), KEYS_LISTED_MAX);
    keys.truncate(KEYS_LISTED_MAX);
    caller.data_mut().clock.charge_bytes(keys.iter().map(String::len).sum())?;
    Ok((keys,))
}

pub(crate) fn link_call(mut instance: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    instance.func_wrap("send", send)
}

pub(crate) fn link_health(mut instance: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    instance.func_wrap("set-not-ready", set_not_ready)
}

pub(crate) fn link_store(mut instance: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    instance.func_wrap("get", get)?;
    instance.func_wrap("set", set)?;
    instance.func_wrap("delete", delete)?;
    instance.func_wrap("increment", increment)?;
    instance.func_wrap("list-keys", list_keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_past_the_bound_are_not_sent_and_far_past_it_end_the_guest() {
        let mut effects = Effects { are_enabled: true, ..Effects::default() };
        let send = |effects: &mut Effects, body| effects.send(("moderation".into(), 10), 7, body);
        for call in 1..=UNSENT_CALLS_MAX as u64 {
            assert_eq!(send(&mut effects, Ok(vec![1])).unwrap(), call);
        }
        assert!(send(&mut effects, Ok(vec![1])).is_err());
        let calls = effects.drain_calls();
        let unsent = calls.iter().filter(|call| call.body == Err(Unsent::TooMany)).count();
        assert_eq!(unsent, UNSENT_CALLS_MAX - CALLS_WAITING_MAX);
        send(&mut effects, Err(CALL_BODY_BYTES_MAX + 1)).unwrap();
        assert!(matches!(effects.drain_calls()[0].body, Err(Unsent::TooLong { what: "body", .. })));
        effects.are_enabled = false;
        send(&mut effects, Ok(Vec::new())).unwrap();
        assert_eq!(effects.drain_calls()[0].body, Err(Unsent::NotOnPath));
    }
}
