use weir_units::BitRate;

use crate::{
    Bound, Policy, Sharer,
    sharer::{Demander, Rule},
};

/// One level of groups around any [`Rule`].
///
/// First the groups and the classes outside of them share the capacity, then the members of
/// each group share what it got. Keeps its memory from call to call.
#[derive(Debug, Default)]
pub(crate) struct GroupAllocator {
    /// Claims in the order of their division: classes outside, groups, members group by group.
    claims: Vec<Demander>,
    shares: Vec<u64>,
    share_bounds: Vec<Bound>,
    /// Where each class stands in `claims`.
    places: Vec<usize>,
    /// For the classes outside, then for each group: the place after its last.
    ends: Vec<usize>,

    /// The allocation of each class.
    pub(crate) allocations: Vec<BitRate>,
    /// The reason for it.
    pub(crate) bounds: Vec<Bound>,
    /// The allocation of each group.
    pub(crate) group_allocations: Vec<BitRate>,
    /// The reason for it.
    pub(crate) group_bounds: Vec<Bound>,
}

impl GroupAllocator {
    pub(crate) fn allocate(
        &mut self,
        rule: &mut dyn Rule,
        capacity: BitRate,
        groups: &[Policy],
        sharers: &[Sharer],
    ) {
        rule.reserve(groups.len() + sharers.len());
        let outside = self.place(groups.len(), sharers);
        let tops = outside + groups.len();

        let mut from = tops;
        for (g, policy) in groups.iter().enumerate() {
            let to = self.ends[g + 1];
            self.claims[outside + g] = Demander::of_group(policy, &self.claims[from..to]);
            from = to;
        }

        self.share(rule, capacity.0, 0, tops);
        let mut from = tops;
        for g in 0..groups.len() {
            let to = self.ends[g + 1];
            self.share(rule, self.shares[outside + g], from, to);
            from = to;
        }

        self.group_allocations.clear();
        self.group_allocations.extend(self.shares[outside..tops].iter().map(|&share| BitRate(share)));
        self.group_bounds.clear();
        self.group_bounds.extend_from_slice(&self.share_bounds[outside..tops]);
        self.allocations.clear();
        self.allocations.extend(self.places.iter().map(|&place| BitRate(self.shares[place])));
        self.bounds.clear();
        self.bounds.extend(self.places.iter().map(|&place| self.share_bounds[place]));
    }

    /// Puts every class into its place by counting; returns how many are outside of groups.
    fn place(&mut self, groups: usize, sharers: &[Sharer]) -> usize {
        let section = |sharer: &Sharer| sharer.group.map_or(0, |g| g as usize + 1);
        self.ends.clear();
        self.ends.resize(groups + 1, 0);
        for sharer in sharers {
            assert!(section(sharer) <= groups, "group {:?} of {groups}", sharer.group);
            self.ends[section(sharer)] += 1;
        }
        let outside = self.ends[0];
        let mut start = 0;
        for (section, end) in self.ends.iter_mut().enumerate() {
            let length = *end;
            *end = start; // grows to the end while the classes are placed
            start += length + if section == 0 { groups } else { 0 };
        }

        let all = sharers.len() + groups;
        self.claims.clear();
        self.claims.resize(all, Demander::NONE);
        self.shares.clear();
        self.shares.resize(all, 0);
        self.share_bounds.clear();
        self.share_bounds.resize(all, Bound::Idle);
        self.places.clear();
        for sharer in sharers {
            let place = &mut self.ends[section(sharer)];
            self.claims[*place] = Demander::of(sharer);
            self.places.push(*place);
            *place += 1;
        }
        outside
    }

    fn share(&mut self, rule: &mut dyn Rule, capacity: u64, from: usize, to: usize) {
        let (shares, bounds) = (&mut self.shares[from..to], &mut self.share_bounds[from..to]);
        rule.share(capacity, &self.claims[from..to], shares, bounds);
    }
}
