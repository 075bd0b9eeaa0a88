//! Completion times in bounded memory.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use weir_cc::{Direction, FlowRecord, Histogram, MAX_CELLS, Rules, Stats};
use weir_units::{BitRate, Bytes};

proptest! {
    #[test]
    fn a_percentile_is_never_too_low_and_at_most_an_eighth_too_high(
        values in prop::collection::vec(prop_oneof![0..20u64, 0..5_000u64, 0..(1u64 << 39)], 1..300),
        percent in 0.0..=100.0f64,
    ) {
        let mut histogram = Histogram::default();
        values.iter().for_each(|value| histogram.add(*value));
        let mut sorted = values.clone();
        sorted.sort_unstable();
        let rank = ((values.len() as f64 * percent / 100.0).ceil() as usize).clamp(1, values.len());
        let exact = sorted[rank - 1];
        let found = histogram.percentile(percent);
        prop_assert!(found >= exact && found - exact <= exact / 8, "{found} for {exact}");
        prop_assert_eq!(histogram.most(), sorted[sorted.len() - 1]);
        prop_assert_eq!(histogram.mean(), values.iter().sum::<u64>() / values.len() as u64);
    }
}

fn flow(to: IpAddr, sent: u64, took_us: u64) -> FlowRecord {
    let bbr: weir_cc::Algorithm = "bbr".parse().unwrap();
    FlowRecord {
        ended_ms: 0,
        class: None,
        to,
        remote_port: 443,
        local_port: 40_000,
        direction: Some(Direction::Out),
        sent: Bytes(sent),
        received: Bytes(0),
        took_us,
        first: bbr.clone(),
        last: bbr,
        switched_at: None,
        least_rtt_us: 10_000,
        smoothed_rtt_us: 12_000,
        most_rtt_us: 35_000,
        retransmits: 2,
        delivery_rate: BitRate::mbit(10),
        tried: false,
        rule: None,
    }
}

#[test]
fn flow_that_is_older_than_the_agent_is_left_out() {
    let network = "10.0.0.0/8".parse().unwrap();
    let mut stats = Stats::default();
    let known = flow(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 5_000_000_000, 3_000_000);
    stats.add(network, &FlowRecord { direction: None, ..known.clone() });
    assert!(stats.view().rows.is_empty());
    stats.add(network, &known);
    assert_eq!(stats.view().rows.len(), 1);
}

#[test]
fn flows_are_told_apart_by_network_size_and_algorithm() {
    let mut stats = Stats::default();
    let to: IpAddr = "192.0.2.1".parse().unwrap();
    let net = "192.0.2.0/24".parse().unwrap();
    for took in [1_000, 2_000, 3_000] {
        stats.add(net, &flow(to, 5_000, took));
    }
    stats.add(net, &FlowRecord { last: "cubic".parse().unwrap(), ..flow(to, 2_000_000_000, 9_000_000) });
    // It received only.
    stats.add(net, &flow(to, 0, 77));
    let view = stats.view();
    let rows: Vec<_> = view
        .rows
        .iter()
        .map(|r| {
            (
                r.below.map(|b| b.0),
                r.algorithm.as_str(),
                r.flows,
                r.bytes.0,
                r.retransmits,
                r.completion.most_us,
            )
        })
        .collect();
    assert_eq!(
        rows,
        [(Some(10_000), "bbr", 3, 15_000, 6, 3_000), (None, "bbr>cubic", 1, 2_000_000_000, 2, 9_000_000)]
    );
    // 35 ms where 10 ms are the way's own: 25 ms waited in a buffer, two and a half times what is on the way.
    assert_eq!((view.paths.len(), view.paths[0].flows, view.paths[0].buffer_bdp), (1, 4, 2.5));
}

#[test]
fn memory_is_bounded_however_many_networks_there_are() {
    let (mut stats, rules) = (Stats::default(), Rules::default());
    let flows = 3 * MAX_CELLS as u32;
    for i in 0..flows {
        let to = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + (i << 8)));
        stats.add(rules.network_of(to), &flow(to, 100, 1));
    }
    let view = stats.view();
    assert_eq!(view.rows.len(), MAX_CELLS + 1, "one more for all networks that came later");
    assert_eq!(view.rows.iter().map(|r| r.flows).sum::<u64>(), u64::from(flows));
    assert_eq!(view.paths.len(), MAX_CELLS + 1);
    assert_eq!(view.uncounted, 0);
}
