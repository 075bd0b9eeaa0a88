//! A doubly linked list in a slab, found by key: every step O(1), no memory once grown.

use std::hash::Hash;

use crate::hash::Map;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct Node<K, V> {
    key: K,
    value: V,
    /// Towards the front.
    newer: u32,
    /// Towards the back.
    older: u32,
}

/// Front: newest. Back: oldest.
#[derive(Debug, Clone)]
pub(crate) struct Queue<K, V> {
    places: Map<K, u32>,
    nodes: Vec<Node<K, V>>,
    /// Unused slots of `nodes`.
    free: Vec<u32>,
    front: u32,
    back: u32,
}

impl<K, V> Default for Queue<K, V> {
    fn default() -> Queue<K, V> {
        Queue { places: Map::default(), nodes: Vec::new(), free: Vec::new(), front: NONE, back: NONE }
    }
}

impl<K: Copy + Eq + Hash, V: Copy> Queue<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.places.contains_key(&key)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        let at = *self.places.get(&key)?;
        Some(&mut self.nodes[at as usize].value)
    }

    /// Puts a new key in front. The key must not be there.
    pub(crate) fn push_front(&mut self, key: K, value: V) {
        let at = self.slot(key, value);
        self.link_front(at);
    }

    /// Puts a new key at the back. The key must not be there.
    pub(crate) fn push_back(&mut self, key: K, value: V) {
        let at = self.slot(key, value);
        self.nodes[at as usize].newer = self.back;
        match self.back {
            NONE => self.front = at,
            back => self.nodes[back as usize].older = at,
        }
        self.back = at;
    }

    /// Whether the key was there; it is the newest now.
    pub(crate) fn touch(&mut self, key: K) -> bool {
        let Some(&at) = self.places.get(&key) else { return false };
        if at != self.front {
            self.unlink(at);
            self.link_front(at);
        }
        true
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let at = self.places.remove(&key)?;
        self.unlink(at);
        self.free.push(at);
        Some(self.nodes[at as usize].value)
    }

    pub(crate) fn pop_back(&mut self) -> Option<(K, V)> {
        let key = self.nodes.get(self.back as usize)?.key;
        Some((key, self.remove(key).expect("what is linked has a place")))
    }

    /// Walks from the oldest on; `take` says for each whether it leaves and whether to go on.
    pub(crate) fn sift(&mut self, mut take: impl FnMut(K, V) -> Sift) {
        let mut at = self.back;
        while at != NONE {
            let node = &self.nodes[at as usize];
            let (key, newer) = (node.key, node.newer);
            match take(key, node.value) {
                Sift::Keep => {}
                Sift::Take => {
                    self.remove(key);
                }
                Sift::Stop => return,
            }
            at = newer;
        }
    }

    fn slot(&mut self, key: K, value: V) -> u32 {
        let node = Node { key, value, newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 entries")
            }
        };
        let before = self.places.insert(key, at);
        debug_assert!(before.is_none(), "a key is there once");
        at
    }

    fn link_front(&mut self, at: u32) {
        self.nodes[at as usize].older = self.front;
        self.nodes[at as usize].newer = NONE;
        match self.front {
            NONE => self.back = at,
            front => self.nodes[front as usize].newer = at,
        }
        self.front = at;
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.nodes[at as usize].newer, self.nodes[at as usize].older);
        match newer {
            NONE => self.front = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.back = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }
}

/// The fate of an entry that [`Queue::sift`] comes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sift {
    Keep,
    Take,
    /// It stays, and so do all newer ones.
    Stop,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(queue: &mut Queue<u64, ()>) -> Vec<u64> {
        let mut keys = Vec::new();
        queue.sift(|key, ()| {
            keys.push(key);
            Sift::Keep
        });
        keys
    }

    #[test]
    fn a_queue_keeps_the_order_of_last_touch_through_every_operation() {
        let mut queue = Queue::default();
        (0..4).for_each(|key| queue.push_front(key, ()));
        assert!(queue.touch(1) && queue.touch(1) && !queue.touch(9));
        assert_eq!(keys(&mut queue), [0, 2, 3, 1]);
        queue.push_back(7, ());
        assert_eq!(queue.remove(2), Some(()));
        assert_eq!(keys(&mut queue), [7, 0, 3, 1]);
        assert_eq!(queue.pop_back(), Some((7, ())));
        queue.sift(|key, ()| if key == 0 { Sift::Take } else { Sift::Stop });
        assert_eq!((keys(&mut queue), queue.len()), (vec![3, 1], 2));
        queue.pop_back();
        queue.pop_back();
        queue.push_back(5, ());
        assert_eq!((keys(&mut queue), queue.nodes.len()), (vec![5], 5), "slots are used again");
    }
}
