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
        largest: None,
        interfaces: Vec::new(),
        routed: Vec::new(),
        addresses: Vec::new(),
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
        direction: Direction::Upload,
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
        exempt: Vec::new(),
    }
}

/// A download of a container with two addresses, a class of processes, the host, and the rest.
fn download() -> Export {
    let with = |class: ExportClass, addresses: &[&str]| ExportClass {
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        largest: Some(Bytes(9_216)),
        ..class
    };
    let of = |name, kind, handle, mbit| class(name, Some(kind), handle, "1:1", mbit);
    Export {
        direction: Direction::Download,
        capacity: BitRate::mbit(50),
        selectors: Vec::new(),
        classes: vec![
            class("link", None, "1:1", "1:", (50, 50)),
            with(of("default", ClassKind::Default, "1:2", (1, 50)), &[]),
            with(of("control", ClassKind::Control, "1:3", (1, 50)), &[]),
            with(of("host", ClassKind::Host, "1:4", (5, 5)), &["192.0.2.1"]),
            with(of("web", ClassKind::Container, "1:11", (10, 20)), &["10.0.0.2", "fd00::2"]),
            with(of("job", ClassKind::Cgroup, "1:12", (1, 50)), &[]),
        ],
        ..export()
    }
}

#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|l| l.trim() == *line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn tc_script_of_a_download_redirects_to_a_tree_by_addresses() {
    let text = tc::script(&download(), "2026-11-20T12:00:00Z");
    assert_lines(
        &text,
        &[
            "# The division of what arrives by eth0, 50mbit, as weir 0.1.0 held it on 2026-11-20T12:00:00Z.",
            "# - A packet's class is that of its destination address on the link. Behind NAT that is the node's: all \
             belongs to host. weir learns there whose flows have left.",
            "# To undo it: tc filter del dev \"$DEV\" ingress prio 1; ip link del \"$IFB\"",
            "DEV=${DEV:-eth0}",
            "IFB=${IFB:-ifb4eth0}",
            "ip link add \"$IFB\" type ifb",
            "tc qdisc replace dev \"$IFB\" root handle 1: htb default 2",
            "# default, and what no filter takes",
            "tc class add dev \"$IFB\" parent 1:1 classid 1:11 htb rate 10000000bit ceil 20000000bit burst 16384b cburst 65536b quantum 1514 prio 1",
            "tc qdisc add dev \"$IFB\" parent 1:11 handle 11: tbf rate 1000gbit burst 9216b limit 300000",
            "tc filter add dev \"$IFB\" parent 1: protocol arp prio 1 u32 match u32 0 0 flowid 1:3",
            "tc filter add dev \"$IFB\" parent 1: protocol ip prio 10 u32 match ip dst 192.0.2.1/32 flowid 1:4",
            "tc filter add dev \"$IFB\" parent 1: protocol ip prio 11 u32 match ip dst 10.0.0.2/32 flowid 1:11",
            "tc filter add dev \"$IFB\" parent 1: protocol ipv6 prio 12 u32 match ip6 dst fd00::2/128 flowid 1:11",
            "# job has no address of its own: nothing tells its packets",
            "tc qdisc replace dev \"$DEV\" clsact",
        ],
    );
    let last = text.lines().last().unwrap();
    assert_eq!(
        last,
        "tc filter add dev \"$DEV\" ingress protocol all prio 1 u32 match u32 0 0 action mirred egress redirect \
         dev \"$IFB\"",
        "no packet comes before the tree is whole"
    );
    assert!(!text.contains("indev") && !text.contains("Senders are not held back"), "{text}");
}

#[test]
fn tcng_configuration_of_a_download_is_that_of_the_redirections_target() {
    let text = tcng::script(&download(), "2026-11-20T12:00:00Z");
    assert_lines(
        &text,
        &[
            "dev \"ifb4eth0\" {",
            "class (<$host_4>) if ip_dst == 192.0.2.1;",
            "class (<$web_11>) if ip_dst == 10.0.0.2;",
            "class (<$default_2>) if 1;",
            "* - Its queues do not split super-packets, which miss their weights.",
        ],
    );
    assert!(text.contains("ingress protocol all prio 1 u32 match u32 0 0 action mirred"), "{text}");
    assert_eq!(text.matches('{').count(), text.matches('}').count());
}

/// A route keeps a packet's source, and NAT does not.
#[test]
fn routed_containers_that_leave_are_known_by_their_addresses() {
    let mut routed = export();
    let web = &mut routed.classes[3];
    web.routed = std::mem::take(&mut web.interfaces);
    let text = tc::script(&routed, "2026-11-20T12:00:00Z");
    assert_lines(
        &text,
        &["# web (veth1) is behind a route: on the link nothing tells its packets from the host's"],
    );
    routed.classes[3].addresses = vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let text = tc::script(&routed, "2026-11-20T12:00:00Z");
    assert_lines(
        &text,
        &[
            "# web (veth1) is behind a route: its addresses tell its packets, unless NAT replaces them",
            "tc filter add dev \"$DEV\" parent 1: protocol ip prio 2 u32 match ip protocol 6 0xff match u16 0 0x1fff at 6 match ip sport 90 0xfffe match ip src 10.0.0.2/32 flowid 1:10",
            "tc filter add dev \"$DEV\" parent 1: protocol ipv6 prio 5 u32 match ip6 protocol 17 0xff match ip6 sport 90 0xfffe match ip6 src fd00::2/128 flowid 1:10",
            "tc filter add dev \"$DEV\" parent 1: protocol ip prio 6 u32 match ip src 10.0.0.2/32 flowid 1:11",
            "tc filter add dev \"$DEV\" parent 1: protocol ipv6 prio 7 u32 match ip6 src fd00::2/128 flowid 1:11",
        ],
    );
    let text = tcng::script(&routed, "2026-11-20T12:00:00Z");
    assert_lines(&text, &["class (<$web_11>) if ip_src == 10.0.0.2;"]);
}

#[test]
fn device_of_a_redirection_has_a_name_that_the_kernel_takes() {
    let of = |link: &str| ifb(&Export { link: link.to_owned(), ..download() });
    assert_eq!(of("eth0"), "ifb4eth0");
    assert_eq!(["enp0s31f6np0s0", "enp0s31f6np0s1"].map(of), ["ifb40s31f6np0s0", "ifb40s31f6np0s1"]);
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

#[test]
fn networks_beside_the_device_pass_the_tree_before_all_classes() {
    let exempt = ["192.168.1.0/24", "fd00::/64"].map(|text| text.parse().unwrap()).to_vec();
    let text = tc::script(&Export { exempt: exempt.clone(), ..export() }, "2026-11-20T12:00:00Z");
    assert_lines(
        &text,
        &[
            "tc filter add dev \"$DEV\" parent 1: protocol ip prio 1 u32 match ip dst 192.168.1.0/24 flowid 1:",
            "tc filter add dev \"$DEV\" parent 1: protocol ipv6 prio 2 u32 match ip6 dst fd00::/64 flowid 1:",
        ],
    );
    let down = Export { exempt, ..download() };
    let text = tc::script(&down, "2026-11-20T12:00:00Z");
    assert_lines(
        &text,
        &[
            "tc filter add dev \"$IFB\" parent 1: protocol ip prio 10 u32 match ip src 192.168.1.0/24 flowid 1:",
        ],
    );
    let caveat = "* - It has no way past a tree: packets of exempt networks are scheduled too.";
    assert_lines(&tcng::script(&down, "2026-11-20T12:00:00Z"), &[caveat]);
    assert!(!tcng::script(&download(), "2026-11-20T12:00:00Z").contains("exempt"));
}

#[test]
fn script_with_a_group_says_what_its_idle_members_cost() {
    let mut grouped = export();
    grouped.classes.insert(1, class("grp", Some(ClassKind::Group), "1:12", "1:1", (1, 100)));
    let caveat = "HTB has no quanta of groups: members divide their group's weight. While a member is idle, its group \
                  lacks that member's part.";
    let [tc, tcng] = [tc::script, tcng::script].map(|script| script(&grouped, "2026-11-20T12:00:00Z"));
    assert_lines(&tc, &[&format!("# - {caveat}")]);
    assert_lines(&tcng, &[&format!("* - {caveat}")]);
    assert!(!tc::script(&export(), "2026-11-20T12:00:00Z").contains("quanta of groups"));
}

/// A shell reads the script's words back as the names.
#[test]
fn devices_with_quotes_in_their_names_are_words_of_the_shell() {
    let link = "e'th\"9$x";
    let mut upload = Export { link: link.to_owned(), ..export() };
    upload.classes[3].interfaces = vec!["ve\"th`1".to_owned()];
    for (of, filter) in [(upload, true), (Export { link: link.to_owned(), ..download() }, false)] {
        let script = tc::script(&of, "2026-11-20T12:00:00Z");
        let traced =
            format!("tc() {{ printf '%s\\n' \"$@\"; }}\nip() {{ printf '%s\\n' \"$@\"; }}\n{script}");
        let run = std::process::Command::new("sh").args(["-c", &traced]).output().unwrap();
        assert!(run.status.success(), "{}\n{script}", String::from_utf8_lossy(&run.stderr));
        let words = String::from_utf8(run.stdout).unwrap();
        assert!(words.lines().any(|word| word == link), "{words}\n{script}");
        assert!(!filter || words.lines().any(|word| word == "ve\"th`1"), "{words}\n{script}");
    }
    assert_eq!(["eth0.100@x", "a b"].map(quoted), ["eth0.100@x", "'a b'"]);
}
