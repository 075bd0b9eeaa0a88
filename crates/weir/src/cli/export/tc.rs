//! Writes the division as commands of iproute2.

use std::fmt::Write as _;

use weir_api::{ClassKind, Export, ExportClass, ExportSelector};

use super::{caveats, is_about, protocols, rest, sender};

/// ARP, 802.1X, DHCP and neighbour discovery: the protocol, and the match for u32.
const CONTROL: [(&str, &str); 9] = [
    ("arp", "match u32 0 0"),
    ("0x888e", "match u32 0 0"),
    ("ip", "match ip protocol 17 0xff match u16 0 0x1fff at 6 match ip dport 67 0xffff"),
    ("ip", "match ip protocol 17 0xff match u16 0 0x1fff at 6 match ip dport 68 0xffff"),
    ("ipv6", "match ip6 protocol 17 0xff match ip6 dport 546 0xfffe"),
    // ICMPv6 types 133 to 137.
    ("ipv6", "match ip6 protocol 58 0xff match u8 0x85 0xff at 40"),
    ("ipv6", "match ip6 protocol 58 0xff match u8 0x86 0xfe at 40"),
    ("ipv6", "match ip6 protocol 58 0xff match u8 0x88 0xff at 40"),
    ("ipv6", "match ip6 protocol 58 0xff match u8 0x89 0xff at 40"),
];

/// Writes a shell script. `date` appears in its first lines.
pub(super) fn script(export: &Export, date: &str) -> String {
    let Export { version, link, capacity, .. } = export;
    let mut text =
        format!("#!/bin/sh\n# The division of {link}, {capacity}, as weir {version} held it on {date}.\n#\n");
    for line in caveats(export) {
        let _ = writeln!(text, "# - {line}");
    }
    let default = rest(export).map_or("1:4", |class| class.handle.as_str());
    let minor = default.trim_start_matches("1:");
    let _ = write!(
        text,
        "# To undo it: tc qdisc del dev \"$DEV\" root\nset -e\nDEV=${{DEV:-{link}}}\n\n\
         tc qdisc replace dev \"$DEV\" root handle 1: htb default {minor}\n"
    );
    for class in &export.classes {
        let ExportClass { name, handle, parent, rate, ceil, burst, cburst, quantum, prio, .. } = class;
        let other = if *handle == *default { ", and what no filter takes" } else { "" };
        let _ = write!(
            text,
            "\n# {name}{other}\ntc class add dev \"$DEV\" parent {parent} classid {handle} htb rate {}bit ceil {}bit \
             burst {}b cburst {}b quantum {} prio {prio}\n",
            rate.0, ceil.0, burst.0, cburst.0, quantum.0
        );
        if let Some(queue) = class.queue {
            let minor = handle.trim_start_matches("1:");
            let _ = writeln!(
                text,
                "tc qdisc add dev \"$DEV\" parent {handle} handle {}: bfifo limit {}",
                queue_handle(minor),
                queue.0
            );
        }
    }
    let mut filters = Filters { text, next: 1 };
    if let Some(control) = export.classes.iter().find(|class| class.kind == Some(ClassKind::Control)) {
        filters.comment("What the network itself needs");
        for (protocol, matches) in CONTROL {
            filters.add(protocol, matches, &control.handle);
        }
    }
    for selector in &export.selectors {
        select(export, selector, &mut filters);
    }
    for class in &export.classes {
        if !class.interfaces.is_empty() {
            filters.comment(&format!("All else that {} sends", class.name));
        }
        for interface in &class.interfaces {
            filters.add("all", &format!("match u32 0 0 indev {interface}"), &class.handle);
        }
        for interface in &class.routed {
            filters.comment(&format!(
                "{} ({interface}) is behind a route: on the link nothing tells its packets from the host's",
                class.name
            ));
        }
    }
    filters.text
}

/// The handle of a class's queue. It must differ from the root's handle.
fn queue_handle(minor: &str) -> String {
    u16::from_str_radix(minor, 16).map_or(minor.to_owned(), |minor| format!("{:x}", minor.max(2)))
}

struct Filters {
    text: String,
    next: u32,
}

impl Filters {
    fn comment(&mut self, text: &str) {
        let _ = writeln!(self.text, "\n# {text}");
    }

    fn add(&mut self, protocol: &str, matches: &str, class: &str) {
        let _ = writeln!(
            self.text,
            "tc filter add dev \"$DEV\" parent 1: protocol {protocol} prio {} u32 {matches} flowid {class}",
            self.next
        );
        self.next += 1;
    }
}

fn select(export: &Export, selector: &ExportSelector, filters: &mut Filters) {
    let name = export.classes.iter().find(|c| c.handle == selector.class).map_or("", |c| c.name.as_str());
    let from = sender(export, selector);
    let inputs: Vec<String> = match from {
        None => vec![String::new()],
        Some(class) if !class.interfaces.is_empty() => {
            class.interfaces.iter().map(|interface| format!(" indev {interface}")).collect()
        }
        Some(class) => {
            filters.comment(&format!(
                "Selected by {name}, of {} only, which nothing tells from the host's packets on the link: {}",
                class.name,
                matches(selector, false, selector.protocol, (0, 0), (0, 0))
            ));
            return;
        }
    };
    filters.comment(&format!("Selected by {name}"));
    let blocks = |ports: Option<[u16; 2]>| match ports {
        None => vec![(0, 0)],
        Some([first, last]) => weir_bpf::port_blocks(&(first..=last)),
    };
    for v6 in [false, true].into_iter().filter(|v6| is_about(selector, *v6)) {
        for protocol in protocols(selector) {
            for source in blocks(selector.source_ports) {
                for destination in blocks(selector.destination_ports) {
                    let matches = matches(selector, v6, protocol, source, destination);
                    for input in &inputs {
                        let ip = if v6 { "ipv6" } else { "ip" };
                        filters.add(ip, &format!("{matches}{input}"), &selector.class);
                    }
                }
            }
        }
    }
}

/// The matches for u32, with ports as value and mask.
fn matches(
    selector: &ExportSelector,
    v6: bool,
    protocol: Option<u8>,
    source: (u16, u16),
    destination: (u16, u16),
) -> String {
    let ip = if v6 { "ip6" } else { "ip" };
    let mut parts = Vec::new();
    if let Some(protocol) = protocol {
        parts.push(format!("match {ip} protocol {protocol} 0xff"));
    }
    // A later fragment has no ports. (tc's own `firstfrag` matches only a fragment that others follow.)
    if !v6 && (source.1 | destination.1) != 0 {
        parts.push("match u16 0 0x1fff at 6".to_owned());
    }
    for (side, (port, mask)) in [("sport", source), ("dport", destination)] {
        if mask != 0 {
            parts.push(format!("match {ip} {side} {port} {mask:#x}"));
        }
    }
    for (side, net) in [("src", &selector.source), ("dst", &selector.destination)] {
        if let Some(net) = net {
            parts.push(format!("match {ip} {side} {net}"));
        }
    }
    if let Some(dscp) = selector.dscp {
        let field = if v6 { "priority" } else { "dsfield" };
        parts.push(format!("match {ip} {field} {:#x} 0xfc", dscp << 2));
    }
    if parts.is_empty() { "match u32 0 0".to_owned() } else { parts.join(" ") }
}
