//! Writes the division as commands of iproute2.

use std::{fmt::Write as _, net::IpAddr};

use ipnet::IpNet;
use weir_agree::Direction;
use weir_api::{ClassKind, Export, ExportClass, ExportSelector};

use super::{caveats, ifb, is_about, of_kind, protocols, quoted, rest, sender, title};

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
    let mut text = format!("#!/bin/sh\n# {}\n#\n", title(export, date));
    for line in caveats(export) {
        let _ = writeln!(text, "# - {line}");
    }
    let device = begin(export, &mut text);
    tree(export, device, &mut text);
    let mut filters = Filters { text, device, next: 1 };
    if let Some(control) = of_kind(export, ClassKind::Control) {
        filters.comment("What the network itself needs");
        for (protocol, matches) in CONTROL {
            filters.add(protocol, matches, &control.handle);
        }
    }
    if !export.exempt.is_empty() {
        filters.comment("Networks beside the device: the handle of the root passes them unscheduled");
        for network in &export.exempt {
            let (protocol, matches) = beside(export.direction, *network);
            filters.add(protocol, &matches, "1:");
        }
    }
    for selector in &export.selectors {
        select(export, selector, &mut filters);
    }
    for class in &export.classes {
        match export.direction {
            Direction::Upload => by_interface(class, &mut filters),
            Direction::Download => by_address(class, &mut filters),
        }
    }
    let mut text = filters.text;
    if export.direction == Direction::Download {
        // No packet comes before the tree is whole.
        text += REDIRECT;
    }
    text
}

/// The commands that send what arrives through the tree.
const REDIRECT: &str = "
# All that arrives passes the tree, and goes on from there
tc qdisc replace dev \"$DEV\" clsact
tc filter add dev \"$DEV\" ingress protocol all prio 1 u32 match u32 0 0 action mirred egress redirect dev \"$IFB\"
";

/// Writes how to undo the script, and the devices. Returns the variable of the device that has the tree.
fn begin(export: &Export, text: &mut String) -> &'static str {
    let (link, ifb) = (default("DEV", &export.link), default("IFB", &ifb(export)));
    let device = match export.direction {
        Direction::Upload => {
            let _ = write!(text, "# To undo it: tc qdisc del dev \"$DEV\" root\nset -e\n{link}\n");
            "\"$DEV\""
        }
        Direction::Download => {
            let _ = write!(
                text,
                "# To undo it: tc filter del dev \"$DEV\" ingress prio 1; ip link del \"$IFB\"\n\
                 set -e\n{link}{ifb}\n\
                 ip link add \"$IFB\" type ifb\nip link set dev \"$IFB\" up\n"
            );
            "\"$IFB\""
        }
    };
    let default = rest(export).map_or("4", |class| class.handle.trim_start_matches("1:"));
    let _ = writeln!(text, "tc qdisc replace dev {device} root handle 1: htb default {default}");
    device
}

/// The line that names a device unless the environment does. A default of the shell takes no quoted word everywhere.
fn default(variable: &str, device: &str) -> String {
    match quoted(device) {
        plain if plain == device => format!("{variable}=${{{variable}:-{device}}}\n"),
        word => format!("[ -n \"${variable}\" ] || {variable}={word}\n"),
    }
}

/// Writes the classes and their queues.
fn tree(export: &Export, device: &str, text: &mut String) {
    let default = rest(export).map(|class| &class.handle);
    for class in &export.classes {
        let ExportClass { name, handle, parent, rate, ceil, burst, cburst, quantum, prio, .. } = class;
        let other = if Some(handle) == default { ", and what no filter takes" } else { "" };
        let _ = write!(
            text,
            "\n# {name}{other}\ntc class add dev {device} parent {parent} classid {handle} htb rate {}bit ceil {}bit \
             burst {}b cburst {}b quantum {} prio {prio}\n",
            rate.0, ceil.0, burst.0, cburst.0, quantum.0
        );
        if let Some(limit) = class.queue {
            let queue = queue_handle(handle.trim_start_matches("1:"));
            let kind = match class.largest {
                // The rate never holds back. This queue splits packets above its burst.
                Some(largest) => format!("tbf rate 1000gbit burst {}b", largest.0),
                None => "bfifo".to_owned(),
            };
            let limit = limit.0;
            let _ = writeln!(
                text,
                "tc qdisc add dev {device} parent {handle} handle {queue}: {kind} limit {limit}"
            );
        }
    }
}

/// Adds the filters of what a class sends.
fn by_interface(class: &ExportClass, filters: &mut Filters) {
    if !class.interfaces.is_empty() {
        filters.comment(&format!("All else that {} sends", class.name));
    }
    for interface in &class.interfaces {
        filters.add("all", &format!("match u32 0 0 indev {}", quoted(interface)), &class.handle);
    }
    if class.routed.is_empty() {
        return;
    }
    let by = match class.addresses[..] {
        [] => "on the link nothing tells its packets from the host's",
        _ => "its addresses tell its packets, unless NAT replaces them",
    };
    filters.comment(&format!("{} ({}) is behind a route: {by}", class.name, class.routed.join(", ")));
    for address in &class.addresses {
        let (protocol, matches) = of_address("src", address);
        filters.add(protocol, &matches, &class.handle);
    }
}

/// The protocol of an address, and the match for u32.
fn of_address(side: &str, address: &IpAddr) -> (&'static str, String) {
    of_network(side, IpNet::from(*address))
}

/// The same of a network.
fn of_network(side: &str, network: IpNet) -> (&'static str, String) {
    match network {
        IpNet::V4(_) => ("ip", format!("match ip {side} {network}")),
        IpNet::V6(_) => ("ipv6", format!("match ip6 {side} {network}")),
    }
}

/// The protocol and the match of packets to a network, or from it if they arrive.
fn beside(direction: Direction, network: IpNet) -> (&'static str, String) {
    let side = match direction {
        Direction::Upload => "dst",
        Direction::Download => "src",
    };
    of_network(side, network)
}

/// Adds the filters of what arrives for a class.
fn by_address(class: &ExportClass, filters: &mut Filters) {
    let is_known =
        matches!(class.kind, None | Some(ClassKind::Group | ClassKind::Control | ClassKind::Default));
    if class.addresses.is_empty() {
        if !is_known {
            filters.comment(&format!("{} has no address of its own: nothing tells its packets", class.name));
        }
        return;
    }
    filters.comment(&format!("All that arrives for {}", class.name));
    for address in &class.addresses {
        let (protocol, matches) = of_address("dst", address);
        filters.add(protocol, &matches, &class.handle);
    }
}

/// The handle of a class's queue. It must differ from the root's handle.
fn queue_handle(minor: &str) -> String {
    u16::from_str_radix(minor, 16).map_or(minor.to_owned(), |minor| format!("{:x}", minor.max(2)))
}

struct Filters {
    text: String,
    /// The variable of the device that has the tree.
    device: &'static str,
    next: u32,
}

impl Filters {
    fn comment(&mut self, text: &str) {
        let _ = writeln!(self.text, "\n# {text}");
    }

    fn add(&mut self, protocol: &str, matches: &str, class: &str) {
        let _ = writeln!(
            self.text,
            "tc filter add dev {} parent 1: protocol {protocol} prio {} u32 {matches} flowid {class}",
            self.device, self.next
        );
        self.next += 1;
    }
}

fn select(export: &Export, selector: &ExportSelector, filters: &mut Filters) {
    let name = export.classes.iter().find(|c| c.handle == selector.class).map_or("", |c| c.name.as_str());
    let from = sender(export, selector);
    let is_known = |class: &ExportClass| [false, true].into_iter().any(|v6| !inputs(class, v6).is_empty());
    if let Some(class) = from.filter(|class| !is_known(class)) {
        filters.comment(&format!(
            "Selected by {name}, of {} only, which nothing tells from the host's packets on the link: {}",
            class.name,
            matches(selector, false, selector.protocol, (0, 0), (0, 0))
        ));
        return;
    }
    filters.comment(&format!("Selected by {name}"));
    let blocks = |ports: Option<[u16; 2]>| match ports {
        None => vec![(0, 0)],
        Some([first, last]) => weir_bpf::port_blocks(&(first..=last)),
    };
    for v6 in [false, true].into_iter().filter(|v6| is_about(selector, *v6)) {
        let inputs = from.map_or_else(|| vec![String::new()], |class| inputs(class, v6));
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

/// The matches of a sender's packets: its interfaces, or its addresses if it is behind a route.
fn inputs(class: &ExportClass, v6: bool) -> Vec<String> {
    let routed = class.addresses.iter().filter(|address| !class.routed.is_empty() && address.is_ipv6() == v6);
    let interfaces = class.interfaces.iter().map(|interface| format!(" indev {}", quoted(interface)));
    interfaces.chain(routed.map(|address| format!(" {}", of_address("src", address).1))).collect()
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
