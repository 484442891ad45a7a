//! Compares two trees: kinds, values, order, and which values are one object.

use std::collections::HashMap;

use afterbay_wire::pickle::{Node, NodeId, Tree};

pub fn assert_same(one: &Tree, other: &Tree) {
    let mut walk = TreeCopy { one, other, there: HashMap::new(), back: HashMap::new() };
    walk.node(one.root(), other.root());
}

struct TreeCopy<'t> {
    one: &'t Tree,
    other: &'t Tree,
    there: HashMap<NodeId, NodeId>,
    back: HashMap<NodeId, NodeId>,
}

impl TreeCopy<'_> {
    fn node(&mut self, a: NodeId, b: NodeId) {
        let (one, other) = (self.one.node(a), self.other.node(b));
        match (&one, &other) {
            // The identity of these does not matter.
            (Node::None, Node::None) => return,
            (Node::Bool(a), Node::Bool(b)) => return assert_eq!(a, b),
            (Node::Int(a), Node::Int(b)) => return assert_eq!(a, b),
            (Node::Float(a), Node::Float(b)) => return assert_eq!(a.to_bits(), b.to_bits()),
            (Node::Tuple([]), Node::Tuple([])) => return,
            (Node::Global { module: a, name: b }, Node::Global { module: c, name: d }) => {
                return assert_eq!((a, b), (c, d));
            }
            _ => {}
        }
        let (there, back) = (self.there.insert(a, b), self.back.insert(b, a));
        assert!(there.is_none_or(|there| there == b), "shared, and then not: {one:?}");
        assert!(back.is_none_or(|back| back == a), "not shared, and then it is: {one:?}");
        if there.is_some() {
            return;
        }
        match (one, other) {
            (Node::BigInt(a), Node::BigInt(b))
            | (Node::Surrogates(a), Node::Surrogates(b))
            | (Node::Bytes(a), Node::Bytes(b))
            | (Node::ByteArray(a), Node::ByteArray(b)) => assert_eq!(a, b),
            (Node::Str(a), Node::Str(b)) => assert_eq!(a, b),
            (Node::List(a), Node::List(b))
            | (Node::Tuple(a), Node::Tuple(b))
            | (Node::Set(a), Node::Set(b))
            | (Node::FrozenSet(a), Node::FrozenSet(b)) => self.nodes(a, b),
            (Node::Dict(a), Node::Dict(b)) => {
                assert_eq!(a.len(), b.len());
                a.zip(b).for_each(|(a, b)| self.nodes(&[a.0, a.1], &[b.0, b.1]));
            }
            (Node::Reduce { callable: a, args: b }, Node::Reduce { callable: c, args: d })
            | (Node::NewObj { class: a, args: b }, Node::NewObj { class: c, args: d })
            | (Node::Build { object: a, state: b }, Node::Build { object: c, state: d })
            | (Node::Append { object: a, items: b }, Node::Append { object: c, items: d })
            | (Node::SetItems { object: a, items: b }, Node::SetItems { object: c, items: d }) => {
                self.nodes(&[a, b], &[c, d]);
            }
            (
                Node::NewObjEx { class: a, args: b, kwargs: c },
                Node::NewObjEx { class: d, args: e, kwargs: f },
            ) => self.nodes(&[a, b, c], &[d, e, f]),
            (one, other) => panic!("{one:?} is {other:?}"),
        }
    }

    fn nodes(&mut self, a: &[NodeId], b: &[NodeId]) {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).for_each(|(a, b)| self.node(*a, *b));
    }
}
