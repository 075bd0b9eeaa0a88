//! A step function of time, kept as its steps in a balanced tree.
//!
//! An AVL tree over the instants of change. A node knows the sum of the steps below it and the
//! highest and lowest sum of a prefix of them, so that the highest value in an interval and the
//! first instant above a value are found in O(log n). Depth is at most 1.44 log2 n
//! whatever the instants are: a customer who chooses them cannot unbalance it.

use std::ops::ControlFlow;

const NIL: u32 = u32::MAX;
/// A value that no sum reaches, in both directions, with room to add to it.
const BEYOND: i64 = i64::MAX / 4;

#[derive(Debug, Clone, Copy)]
struct Node {
    at: i64,
    step: i64,
    sum: i64,
    high: i64,
    low: i64,
    left: u32,
    right: u32,
    height: u8,
}

/// Steps by instant; the function is `base` before the first, and it is not asked for before
/// `horizon`.
#[derive(Debug, Clone)]
pub(crate) struct Steps {
    nodes: Vec<Node>,
    free: Vec<u32>,
    root: Option<u32>,
    base: i64,
    horizon: i64,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps { nodes: Vec::new(), free: Vec::new(), root: None, base: 0, horizon: i64::MIN }
    }
}

/// Sum, highest and lowest prefix of the steps in a range.
#[derive(Clone, Copy)]
struct Fold {
    sum: i64,
    high: i64,
    low: i64,
}

const EMPTY: Fold = Fold { sum: 0, high: -BEYOND, low: BEYOND };

impl Fold {
    fn then(self, next: Fold) -> Fold {
        Fold {
            sum: self.sum + next.sum,
            high: self.high.max(self.sum + next.high),
            low: self.low.min(self.sum + next.low),
        }
    }

    fn step(step: i64) -> Fold {
        Fold { sum: step, high: step, low: step }
    }
}

/// Where the value is low for long enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gap {
    /// From there on.
    At(i64),
    /// Not before that; the search was given up.
    NotBefore(i64),
    /// Nowhere.
    None,
}

/// A search for a gap, on its way from the past to the future.
struct Search {
    from: i64,
    limit: i64,
    length: Option<i64>,
    max_tries: u32,
    /// Since when the value has been low; none while it is above the limit.
    since: Option<i64>,
}

impl Search {
    /// The value becomes `value` at `at`.
    fn passes(&mut self, at: i64, value: i64) -> ControlFlow<Gap> {
        match (self.since, self.length) {
            (Some(since), Some(length)) if at >= since + length => {
                return ControlFlow::Break(Gap::At(since));
            }
            (Some(_), _) if value > self.limit => {
                self.since = None;
                if self.max_tries == 0 {
                    return ControlFlow::Break(Gap::NotBefore(at));
                }
                self.max_tries -= 1;
            }
            (None, _) if value <= self.limit => self.since = Some(at),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl Steps {
    /// How many instants of change there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len()
    }

    /// Bytes held, also those that are kept for later.
    pub(crate) fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.free.capacity() * size_of::<u32>()
    }

    /// Adds `step` at `at`; an instant whose steps add up to nothing is forgotten.
    pub(crate) fn add(&mut self, at: i64, step: i64) {
        if at <= self.horizon {
            self.base += step;
        } else if step != 0 {
            self.root = link(self.insert(index(self.root), at, step));
        }
    }

    /// The value at `at`.
    pub(crate) fn value(&self, at: i64) -> i64 {
        let (mut value, mut n) = (self.base, index(self.root));
        while n != NIL {
            let node = &self.nodes[n as usize];
            if node.at <= at {
                value += self.fold(node.left).sum + node.step;
                n = node.right;
            } else {
                n = node.left;
            }
        }
        value
    }

    /// The highest value from `from` on, before `to`.
    pub(crate) fn highest(&self, from: i64, to: Option<i64>) -> i64 {
        let value = self.value(from);
        value.max(value + self.range(index(self.root), Some(from), to).high)
    }

    /// The first instant from `from` on at which the value is above `limit`.
    pub(crate) fn first_above(&self, from: i64, limit: i64) -> Option<i64> {
        if self.value(from) > limit {
            return Some(from);
        }
        self.first(index(self.root), from, self.base, &|before, fold| before + fold.high > limit).ok()
    }

    /// The first instant from `from` on after which the value is at most `limit` for `length`, or
    /// without an end. Gives up behind as many times above the limit as `max_tries` says.
    pub(crate) fn first_gap(&self, from: i64, limit: i64, length: Option<i64>, max_tries: u32) -> Gap {
        let since = (self.value(from) <= limit).then_some(from);
        if since.is_none() && max_tries == 0 {
            return Gap::NotBefore(from);
        }
        let mut search = Search { from, limit, length, max_tries, since };
        match self.search(index(self.root), self.base, &mut search) {
            ControlFlow::Break(found) => found,
            ControlFlow::Continue(_) => search.since.map_or(Gap::None, Gap::At),
        }
    }

    /// The first instant of change after `after`.
    pub(crate) fn next(&self, after: i64) -> Option<i64> {
        let (mut found, mut n) = (None, index(self.root));
        while n != NIL {
            let node = &self.nodes[n as usize];
            if node.at > after {
                found = Some(node.at);
                n = node.left;
            } else {
                n = node.right;
            }
        }
        found
    }

    /// Makes the value at `at` the one before all steps. The values from `at` on stay.
    pub(crate) fn forget_until(&mut self, at: i64) {
        self.horizon = self.horizon.max(at);
        while let (Some(root), Some(first)) = (self.root, self.next(i64::MIN))
            && first <= at
        {
            let (first, rest) = self.detach_first(root);
            self.base += self.nodes[first as usize].step;
            self.free.push(first);
            self.root = link(rest);
        }
    }

    fn fold(&self, n: u32) -> Fold {
        if n == NIL {
            return EMPTY;
        }
        let Node { sum, high, low, .. } = self.nodes[n as usize];
        Fold { sum, high, low }
    }

    /// Over the instants above `from` and below `to`.
    fn range(&self, n: u32, from: Option<i64>, to: Option<i64>) -> Fold {
        if n == NIL || (from.is_none() && to.is_none()) {
            return self.fold(n);
        }
        let node = &self.nodes[n as usize];
        if from.is_some_and(|from| node.at <= from) {
            return self.range(node.right, from, to);
        }
        if to.is_some_and(|to| to <= node.at) {
            return self.range(node.left, from, to);
        }
        let (before, behind) = (self.range(node.left, from, None), self.range(node.right, None, to));
        before.then(Fold::step(node.step)).then(behind)
    }

    /// The first instant above `from` whose value satisfies `holds`, where `before` is the
    /// value before the subtree; or the value behind it.
    fn first(&self, n: u32, from: i64, before: i64, holds: &impl Fn(i64, Fold) -> bool) -> Result<i64, i64> {
        let all = self.fold(n);
        if n == NIL || !holds(before, all) {
            return Err(before + all.sum);
        }
        let node = &self.nodes[n as usize];
        if node.at <= from {
            let before = before + self.fold(node.left).sum + node.step;
            return self.first(node.right, from, before, holds);
        }
        let before = match self.first(node.left, from, before, holds) {
            Ok(found) => return Ok(found),
            Err(before) => before,
        };
        if holds(before, Fold::step(node.step)) {
            return Ok(node.at);
        }
        self.first(node.right, from, before + node.step, holds)
    }

    /// Walks on through the instants of a subtree; returns the value behind it.
    fn search(&self, n: u32, before: i64, search: &mut Search) -> ControlFlow<Gap, i64> {
        let all = self.fold(n);
        let nothing_changes = match search.since {
            Some(_) => before + all.high <= search.limit,
            None => before + all.low > search.limit,
        };
        if n == NIL || nothing_changes {
            return ControlFlow::Continue(before + all.sum);
        }
        let node = &self.nodes[n as usize];
        let before = if node.at <= search.from {
            before + self.fold(node.left).sum + node.step
        } else {
            let value = self.search(node.left, before, search)? + node.step;
            search.passes(node.at, value)?;
            value
        };
        self.search(node.right, before, search)
    }

    fn insert(&mut self, n: u32, at: i64, step: i64) -> u32 {
        if n == NIL {
            let Fold { sum, high, low } = Fold::step(step);
            let node = Node { at, step, sum, high, low, left: NIL, right: NIL, height: 1 };
            if let Some(n) = self.free.pop() {
                self.nodes[n as usize] = node;
                return n;
            }
            self.nodes.push(node);
            return (self.nodes.len() - 1) as u32;
        }
        let node = self.nodes[n as usize];
        match at.cmp(&node.at) {
            std::cmp::Ordering::Less => self.nodes[n as usize].left = self.insert(node.left, at, step),
            std::cmp::Ordering::Greater => self.nodes[n as usize].right = self.insert(node.right, at, step),
            std::cmp::Ordering::Equal if node.step + step == 0 => {
                self.free.push(n);
                if node.left == NIL || node.right == NIL {
                    return if node.left == NIL { node.right } else { node.left };
                }
                let (next, right) = self.detach_first(node.right);
                self.nodes[next as usize].left = node.left;
                self.nodes[next as usize].right = right;
                return self.balance(next);
            }
            std::cmp::Ordering::Equal => self.nodes[n as usize].step += step,
        }
        self.balance(n)
    }

    /// Takes the first node out of a subtree that is not empty; returns it and what is left.
    fn detach_first(&mut self, n: u32) -> (u32, u32) {
        let node = self.nodes[n as usize];
        if node.left == NIL {
            return (n, node.right);
        }
        let (first, left) = self.detach_first(node.left);
        self.nodes[n as usize].left = left;
        (first, self.balance(n))
    }

    fn height(&self, n: u32) -> i32 {
        if n == NIL { 0 } else { i32::from(self.nodes[n as usize].height) }
    }

    /// Brings a node up to date whose subtrees are.
    fn update(&mut self, n: u32) {
        let Node { left, right, step, .. } = self.nodes[n as usize];
        let fold = self.fold(left).then(Fold::step(step)).then(self.fold(right));
        let height = 1 + self.height(left).max(self.height(right));
        let node = &mut self.nodes[n as usize];
        (node.sum, node.high, node.low, node.height) = (fold.sum, fold.high, fold.low, height as u8);
    }

    fn rotate_right(&mut self, n: u32) -> u32 {
        let up = self.nodes[n as usize].left;
        self.nodes[n as usize].left = self.nodes[up as usize].right;
        self.nodes[up as usize].right = n;
        self.update(n);
        self.update(up);
        up
    }

    fn rotate_left(&mut self, n: u32) -> u32 {
        let up = self.nodes[n as usize].right;
        self.nodes[n as usize].right = self.nodes[up as usize].left;
        self.nodes[up as usize].left = n;
        self.update(n);
        self.update(up);
        up
    }

    /// Balances a node whose subtrees are balanced and differ in height by two at most.
    fn balance(&mut self, n: u32) -> u32 {
        let Node { left, right, .. } = self.nodes[n as usize];
        match self.height(left) - self.height(right) {
            2.. => {
                let Node { left: outer, right: inner, .. } = self.nodes[left as usize];
                if self.height(inner) > self.height(outer) {
                    self.nodes[n as usize].left = self.rotate_left(left);
                }
                self.rotate_right(n)
            }
            ..=-2 => {
                let Node { left: inner, right: outer, .. } = self.nodes[right as usize];
                if self.height(inner) > self.height(outer) {
                    self.nodes[n as usize].right = self.rotate_right(right);
                }
                self.rotate_left(n)
            }
            _ => {
                self.update(n);
                n
            }
        }
    }
}

fn index(link: Option<u32>) -> u32 {
    link.unwrap_or(NIL)
}

fn link(index: u32) -> Option<u32> {
    (index != NIL).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Checks order, balance and sums of a subtree; returns its height.
    fn check(steps: &Steps, n: u32, low: i64, high: i64) -> i32 {
        if n == NIL {
            return 0;
        }
        let node = steps.nodes[n as usize];
        assert!(low < node.at && node.at < high && node.step != 0);
        let (left, right) = (check(steps, node.left, low, node.at), check(steps, node.right, node.at, high));
        assert!((left - right).abs() <= 1 && i32::from(node.height) == 1 + left.max(right));
        let fold = steps.fold(node.left).then(Fold::step(node.step)).then(steps.fold(node.right));
        assert_eq!((node.sum, node.high, node.low), (fold.sum, fold.high, fold.low));
        i32::from(node.height)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn it_is_the_step_function_that_a_sorted_map_of_steps_is(
            ops in prop::collection::vec((0..40i64, -3..4i64, prop::bool::weighted(0.05)), 1..40),
        ) {
            let (mut steps, mut model, mut horizon) = (Steps::default(), BTreeMap::new(), -1);
            for (at, step, forget) in ops {
                if forget {
                    steps.forget_until(at);
                    horizon = horizon.max(at);
                } else {
                    steps.add(at.max(horizon), step);
                    *model.entry(at.max(horizon)).or_insert(0) += step;
                }
                check(&steps, index(steps.root), -1, 41);
                let value = |at: i64| model.range(..=at).map(|(_, step)| step).sum::<i64>();
                let changes = model.iter().filter(|(at, step)| **at > horizon && **step != 0).count();
                prop_assert_eq!(steps.len(), changes);
                for from in horizon.max(0)..41 {
                    prop_assert_eq!(steps.value(from), value(from));
                    for to in [from + 1, from + 7] {
                        let highest = (from..to).map(value).max();
                        prop_assert_eq!(Some(steps.highest(from, Some(to))), highest);
                    }
                    prop_assert_eq!(steps.highest(from, None), (from..41).map(value).max().unwrap());
                    for limit in [-2, 0, 3] {
                        prop_assert_eq!(steps.first_above(from, limit), (from..41).find(|&t| value(t) > limit));
                        let gap = |length: i64| (from..41).find(|&t| (t..t + length).all(|t| value(t) <= limit));
                        for length in [1, 6] {
                            let want = gap(length).map_or(Gap::None, Gap::At);
                            prop_assert_eq!(steps.first_gap(from, limit, Some(length), u32::MAX), want);
                        }
                        let want = gap(50).map_or(Gap::None, Gap::At);
                        prop_assert_eq!(steps.first_gap(from, limit, None, u32::MAX), want);
                    }
                    if let Some(next) = steps.next(from) {
                        prop_assert!((from..next).all(|t| value(t) == value(from)) && value(next) != value(next - 1));
                    }
                }
            }
        }
    }

    #[test]
    fn ordered_steps_stay_within_the_height_of_an_avl_tree() {
        let mut steps = Steps::default();
        (0..100_000).for_each(|at| steps.add(at, 1));
        assert!(steps.height(index(steps.root)) <= 24);
        (0..100_000).for_each(|at| steps.add(at, -1));
        assert_eq!((steps.len(), steps.root), (0, None));
    }
}
