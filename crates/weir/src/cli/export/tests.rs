use weir_units::{BitRate, Bytes};

use super::*;

fn class(name: &str, kind: Option<ClassKind>, handle: &str, parent: &str, mbit: (u64, u64)) -> ExportClass {
    ExportClass {
        name: name.to_owned(),
        kind,
        handle: handle.to_owned(),
        parent: parent.to_owned(),
        rate: BitRate::mbit(mbit.0),
        ceil: BitRate::mbit(mbit.1),
        burst: Bytes(16_384),
        cburst: Bytes(65_536),
        quantum: Bytes(1514),
        prio: 1,
        queue: kind.is_some().then_some(Bytes(300_000)),
        interfaces: Vec::new(),
        routed: Vec::new(),
    }
}

fn export() -> Export {
    let selector = ExportSelector {
        class: "1:10".to_owned(),
        from: None,
        protocol: Some(6),
        source_ports: Some([8081, 8081]),
        destination_ports: None,
        source: None,
        destination: Some("10.0.0.0/8".to_owned()),
        dscp: Some(46),
    };
    let of_web = ExportSelector {
        from: Some("1:11".to_owned()),
        protocol: None,
        source_ports: Some([90, 91]),
        destination: None,
        dscp: None,
        ..selector.clone()
    };
    Export {
        version: "0.1.0".to_owned(),
        link: "eth0".to_owned(),
        capacity: BitRate::mbit(100),
        engine: "htb".to_owned(),
        classes: vec![
            class("link", None, "1:1", "1:", (100, 100)),
            class("host", Some(ClassKind::Host), "1:4", "1:1", (5, 5)),
            class("req-1", Some(ClassKind::Selector), "1:10", "1:1", (19, 19)),
            ExportClass {
                interfaces: vec!["veth1".to_owned()],
                ..class("web", Some(ClassKind::Container), "1:11", "1:1", (1, 100))
            },
        ],
        selectors: vec![selector, of_web],
    }
}

#[test]
fn the_tc_script_has_the_tree_of_the_paper_and_its_filters() {
    let text = tc::script(&export(), "2026-11-20T12:00:00Z");
    for line in [
        "# The division of eth0, 100mbit, as weir 0.1.0 held it on 2026-11-20T12:00:00Z.",
        "tc qdisc replace dev \"$DEV\" root handle 1: htb default 4",
        "# host, and what no filter takes",
        "tc class add dev \"$DEV\" parent 1:1 classid 1:10 htb rate 19000000bit ceil 19000000bit burst 16384b cburst 65536b quantum 1514 prio 1",
        "tc qdisc add dev \"$DEV\" parent 1:10 handle 10: bfifo limit 300000",
        "tc filter add dev \"$DEV\" parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff match u16 0 0x1fff at 6 match ip sport 8081 0xffff match ip dst 10.0.0.0/8 match ip dsfield 0xb8 0xfc flowid 1:10",
        "tc filter add dev \"$DEV\" parent 1: protocol ipv6 prio 5 u32 match ip6 protocol 17 0xff match ip6 sport 90 0xfffe indev veth1 flowid 1:10",
        "tc filter add dev \"$DEV\" parent 1: protocol all prio 6 u32 match u32 0 0 indev veth1 flowid 1:11",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn the_tcng_configuration_reads_as_the_papers_figure() {
    let text = tcng::script(&export(), "2026-11-20T12:00:00Z");
    for line in [
        "class (<$req_1_10>) if ip_proto == IPPROTO_TCP && tcp_sport == 8081 && (ip_dst & 255.0.0.0) == 10.0.0.0 && (ip_tos & 0xfc) == 0xb8;",
        "/* left out: a selector of $req_1_10, of one container only */",
        "class (<$host_4>) if 1;",
        "class (rate 100000000bps, ceil 100000000bps, burst 16384B, cburst 65536B) {",
        "$req_1_10 = class (rate 19000000bps, ceil 19000000bps, burst 16384B, cburst 65536B, quantum 1514B, prio 1) { fifo (limit 300000B); };",
    ] {
        assert!(text.lines().any(|l| l.trim() == line), "{line}\nis not in\n{text}");
    }
    assert_eq!(text.matches('{').count(), text.matches('}').count());
}
