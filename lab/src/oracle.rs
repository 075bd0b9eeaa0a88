//! The expected share of each flow of a case: section 3's allocation, as payload.

use weir_netlab::{topology::Family, traffic::Load};
use weir_share::{Allocator, Demand, Sharer};
use weir_units::BitRate;

use crate::scenario::{Case, Setting};

/// The share of one container, or of the host.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Share {
    /// The container's name, or `host`.
    pub(crate) label: String,
    /// The rate that it may send at, layer 2.
    pub(crate) allocation: BitRate,
    /// The part of the allocation that arrives as payload, Mbit/s.
    pub(crate) goodput: f64,
}

/// The exact allocation of each container of a case, and of the host if it sends.
///
/// The order is that of [`Case::settings`]. A container that sends nothing gets zero.
#[must_use]
pub(crate) fn shares(case: &Case, capacity: BitRate, family: Family) -> Vec<Share> {
    let settings: Vec<(&str, &Setting)> = case.settings().collect();
    let sharers: Vec<Sharer> = settings
        .iter()
        .map(|(_, setting)| {
            let policy = setting.policy().expect("checked when the scenario was read");
            Sharer::new(policy, demand(setting.send, family))
        })
        .collect();
    let mut allocator = Allocator::water_filling();
    let allocations = allocator.allocate(capacity, &[], &sharers);
    settings
        .iter()
        .zip(allocations)
        .map(|((label, setting), &allocation)| Share {
            label: (*label).to_owned(),
            allocation,
            goodput: allocation.as_mbit() * setting.send.payload_share(family),
        })
        .collect()
}

fn demand(load: Load, family: Family) -> Demand {
    load.demand(family).map_or(Demand::UNLIMITED, Demand::rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    /// The paper's line is the same 100 Mbit/s, but its figures are read off a Raspberry Pi. They agree with
    /// the allocation within 10 %.
    #[test]
    fn the_papers_figures_are_near_the_expected_shares_of_its_scenarios() {
        let mut compared = 0;
        for scenario in scenario::built_in() {
            for case in &scenario.cases {
                let shares = shares(case, scenario.capacity, scenario.family);
                for ((label, setting), share) in case.settings().zip(shares) {
                    let Some(paper) = setting.paper else { continue };
                    compared += 1;
                    let off = (share.goodput / paper - 1.0).abs();
                    assert!(
                        off < 0.10,
                        "{} {} {label}: {:.1} against {paper}",
                        scenario.name,
                        case.name,
                        share.goodput
                    );
                }
            }
        }
        assert_eq!(compared, 16, "Fig. 7: 2, Fig. 8: 2, Fig. 9: 7, Fig. 10: 4, Fig. 11: 1");
    }

    #[test]
    fn a_floor_lifts_and_the_others_give_way_by_weight() {
        let minimum = scenario::find("minimum").unwrap();
        let rates = |case: usize| -> Vec<u64> {
            shares(&minimum.cases[case], BitRate::mbit(100), Family::V4)
                .iter()
                .map(|s| s.allocation.bits_per_sec() / 1_000)
                .collect()
        };
        // 70 Mbit/s are divided 2:3:4:5. In the last case 35 Mbit/s are divided 4:5, above the last minimum.
        assert_eq!(rates(1), [30_000, 10_000, 15_000, 20_000, 25_000]);
        assert_eq!(rates(4), [30_000, 20_000, 15_000, 15_555, 19_444]);
    }

    #[test]
    fn who_asks_for_less_leaves_the_rest_to_the_others() {
        let grow = scenario::find("weights-grow").unwrap();
        let mut case = grow.cases[1].clone();
        case.containers.get_mut("C1").unwrap().send = Load::Udp(BitRate::mbit(14));
        let shares = shares(&case, BitRate::mbit(100), Family::V4);
        assert_eq!(shares[0].allocation, BitRate(14_420_000));
        assert_eq!(shares[1].allocation, BitRate(85_580_000));
        assert_eq!(shares[2].goodput, 0.0);
    }
}
