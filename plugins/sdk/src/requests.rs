//! What a plugin keeps for each request.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::RequestId;

/// A value for each request that is open: put in by `opened`, taken out by `closed`.
///
/// A hash map whose key is a [`RequestId`]: those are counted up by the host, so one multiplication spreads them.
///
/// ```
/// use afterbay_plugin::Requests;
///
/// let mut tokens = Requests::new();
/// tokens.insert(7, 0);
/// *tokens.get_mut(7).unwrap() += 3;
/// assert_eq!(tokens.remove(7), Some(3));
/// assert!(tokens.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Requests<T> {
    map: HashMap<RequestId, T, BuildHasherDefault<Multiply>>,
}

impl<T> Requests<T> {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { map: HashMap::default() }
    }

    /// Puts a value in; the one that was there comes back.
    pub fn insert(&mut self, request: RequestId, value: T) -> Option<T> {
        self.map.insert(request, value)
    }

    /// A request's value.
    #[must_use]
    pub fn get(&self, request: RequestId) -> Option<&T> {
        self.map.get(&request)
    }

    /// A request's value, to be changed.
    pub fn get_mut(&mut self, request: RequestId) -> Option<&mut T> {
        self.map.get_mut(&request)
    }

    /// Takes a value out.
    pub fn remove(&mut self, request: RequestId) -> Option<T> {
        self.map.remove(&request)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &T)> {
        self.map.iter().map(|(&request, value)| (request, value))
    }
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Fibonacci hashing: 2^64 divided by the golden ratio. The map looks at the top bits and at the low ones.
#[derive(Clone, Copy, Debug, Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_thousand_requests_are_found_again_and_removed() {
        let mut requests = Requests::new();
        for request in 0..100_000 {
            assert_eq!(requests.insert(request, request * 2), None);
        }
        assert_eq!(requests.len(), 100_000);
        for request in 0..100_000 {
            assert_eq!(requests.get(request), Some(&(request * 2)));
            assert_eq!(requests.remove(request), Some(request * 2));
        }
        assert!(requests.is_empty());
    }
}
