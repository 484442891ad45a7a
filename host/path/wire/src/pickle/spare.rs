//! Arenas of dropped trees, retained by the thread for the next trees. Without them every large batch would get its
//! memory from the kernel and return it page by page, which costs up to half as much as reading the batch.

use std::cell::Cell;

use crate::pickle::arena::Arena;
use crate::pickle::bounds::{SPARE_ARENAS, SPARE_NODES};
use crate::pickle::tree::Tree;

thread_local! {
    static SPARE: Cell<Vec<Arena>> = const { Cell::new(Vec::new()) };
}

/// Returns an empty arena with room for this many nodes and children. A spare arena is used only if it is at most four
/// times larger, because a tree may live for long.
pub(crate) fn take(nodes: usize, children: usize) -> Arena {
    let spare = SPARE.try_with(|cell| {
        let mut spare = cell.take();
        let fits = spare.iter().position(|arena| (nodes..=4 * nodes).contains(&arena.nodes.capacity()));
        let arena = fits.map(|at| spare.swap_remove(at));
        cell.set(spare);
        arena
    });
    match spare {
        Ok(Some(mut arena)) => {
            arena.clear();
            arena
        }
        _ => Arena::with_capacity(nodes, children),
    }
}

/// Retains an arena, in place of the oldest one at the limit. Small arenas are left to the allocator.
pub(crate) fn keep(arena: Arena) {
    if !SPARE_NODES.contains(&arena.nodes.capacity()) || arena.children.capacity() > 4 * SPARE_NODES.end() {
        return;
    }
    // A thread that is ending retains nothing.
    let _ = SPARE.try_with(|cell| {
        let mut spare = cell.take();
        if spare.len() == SPARE_ARENAS {
            spare.remove(0);
        }
        spare.push(arena);
        cell.set(spare);
    });
}

impl Drop for Tree {
    fn drop(&mut self) {
        keep(std::mem::take(&mut self.arena));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pickle::arena::{NONE, Tag};

    #[test]
    fn a_spare_arena_is_as_empty_as_a_new_one_and_not_far_too_large() {
        let nodes = *SPARE_NODES.start();
        let new = Arena::with_capacity(nodes, nodes);
        let mut used = Arena::with_capacity(nodes, nodes);
        used.share(NONE);
        used.add_parent(Tag::List, &[NONE]);
        let memory = used.nodes.as_ptr();
        keep(used);
        assert_ne!(take(nodes / 8, nodes).nodes.as_ptr(), memory, "eight times too large");
        let spare = take(nodes, nodes);
        assert_eq!(spare.nodes.as_ptr(), memory);
        assert_eq!((spare.nodes.len(), spare.children.len(), spare.shared), (new.nodes.len(), 0, 0));
        assert_eq!(spare.nodes[0].shared, 0);
    }

    #[test]
    fn a_thread_keeps_no_more_arenas_than_the_bound_and_none_too_large() {
        for _ in 0..2 * SPARE_ARENAS {
            keep(Arena::with_capacity(*SPARE_NODES.start(), 0));
        }
        keep(Arena::with_capacity(SPARE_NODES.end() + 1, 0));
        keep(Arena::with_capacity(*SPARE_NODES.start(), 4 * SPARE_NODES.end() + 1));
        assert_eq!(SPARE.take().len(), SPARE_ARENAS);
    }
}
